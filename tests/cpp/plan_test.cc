// The plan reader: takes a sound plan, refuses each broken field by name, and survives arbitrary damage. It
// has more than 500 lines because each kind of instruction has its faults, all in the words of one reader.
#include "runtime/core/plan/plan.h"

#include <algorithm>
#include <iterator>

#include "plugins/embedding/kernel.h"
#include "plugins/paged_attention/layout.h"
#include "runtime/core/base/error.h"
#include "runtime/core/plan/op_table.h"
#include "tests/cpp/check.h"
#include "tests/cpp/plan_faults.h"

using namespace tensorwright;
using tw_test::check_says;
using tw_test::fault_of;
using tw_test::Random;
using tw_test::ToyPlan;

namespace {

// The fault of a plan whose finished bytes `damage` has changed.
template <typename Damage>
std::string fault_of_bytes(Damage&& damage) {
  ToyPlan toy;
  std::vector<std::byte> bytes = toy.bytes();
  damage(bytes);
  try {
    Plan::parse(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TW_TEST(sound_plan_is_taken) {
  ToyPlan toy;
  const Plan plan = Plan::parse(toy.bytes());
  TW_CHECK_EQ(plan.instructions.size(), toy.instructions.size());
  TW_CHECK_EQ(plan.facts().vocab_size, static_cast<int32_t>(ToyPlan::kVocab));
  TW_CHECK_EQ(plan.facts().block_bytes.at(0), int64_t{2} * 16 * 16 * 4);
  TW_CHECK_EQ(std::string(op_name(3)), std::string("matmul"));
  TW_CHECK(op_name(0) == nullptr);
  TW_CHECK_EQ(plan.facts().state_bytes, int64_t{0});
  toy.states = {{64}, {uint64_t{1} << 32}};
  const ModelFacts facts = Plan::parse(toy.bytes()).facts();
  TW_CHECK_EQ(facts.state_bytes, (int64_t{1} << 32) + 64);
}

// A record that permits more would loosen the reader and the planner of memory alike, so the permissions
// stand here once more. tests/plugins/test_in_place.py shows that each of them keeps the bits.
TW_TEST(results_may_be_written_over_these_operands_only) {
  struct Triple {
    Op op;
    int out, in, without;
  };
  constexpr Triple kPermitted[] = {
      {Op::kRmsNorm, 1, 1, -1},
      {Op::kRmsNorm, 1, 0, -1},
      {Op::kMatmul, 0, 1, -1},
      {Op::kAdd, 0, 0, -1},
      {Op::kAdd, 0, 1, -1},
      {Op::kRmsNormColumns, 0, 0, -1},
      {Op::kElementwise, 0, 0, -1},
      {Op::kElementwise, 0, 1, -1},
      {Op::kElementwise, 0, 2, -1},
      {Op::kElementwise, 0, 3, -1},
      {Op::kLayerNorm, 1, 1, -1},
      {Op::kLayerNorm, 1, 0, -1},
      {Op::kLayerNorm, 0, 0, 1},
      {Op::kQuantizedMatmul, 0, 1, -1},
      {Op::kWeightOnlyMatmul, 0, 1, -1},
      {Op::kSplitColumns, 0, 0, -1},
      {Op::kAllReduce, 0, 0, -1},
      {Op::kSend, 0, 0, -1},
      {Op::kRmsNormBySums, 0, 0, -1},
  };
  TW_CHECK_EQ(std::size(kOpSharings), std::size(kPermitted));
  for (size_t i = 0; i < std::min(std::size(kOpSharings), std::size(kPermitted)); ++i) {
    const OpSharing& got = kOpSharings[i];
    const Triple& permitted = kPermitted[i];
    TW_CHECK(got.op == permitted.op && got.out == permitted.out && got.in == permitted.in &&
             got.without == permitted.without);
  }
}

TW_TEST(header_faults_are_named) {
  check_says(fault_of_bytes([](auto& b) { b[0] = std::byte{'X'}; }), "magic");
  check_says(fault_of_bytes([](auto& b) { b[8] = std::byte{9}; }), "version must be 3, is 9");
  check_says(fault_of_bytes([](auto& b) { b.pop_back(); }), "header says");
  check_says(fault_of_bytes([](auto& b) { b.clear(); }), "0 bytes");
  check_says(fault_of([](ToyPlan& t) { t.header.block_size = 24; }), "block_size");
  check_says(fault_of([](ToyPlan& t) { t.header.block_size = 0; }), "block_size");
  check_says(fault_of([](ToyPlan& t) { t.header.vocab_size = 0; }), "vocab_size");
  check_says(fault_of([](ToyPlan& t) { t.header.max_seq_len = 0x80000000u; }), "max_seq_len");
  check_says(fault_of([](ToyPlan& t) { t.header.act_dtype = 2; }), "act_dtype");
  check_says(fault_of([](ToyPlan& t) { t.header.logits_buffer = -1; }), "logits_buffer");
  check_says(fault_of([](ToyPlan& t) { t.header.logits_buffer = 0; }), "logits_buffer");
  check_says(fault_of([](ToyPlan& t) { t.header.row_arena_bytes += 1; }), "row_arena_bytes");
  check_says(fault_of([](ToyPlan& t) { t.header.cache_groups = 2; }), "cache_groups");
  check_says(fault_of([](ToyPlan& t) { t.names = "x"; }), "string table");
}

TW_TEST(record_faults_are_named) {
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].dtype = TW_BF16; }), "kv layer 0: dtype");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].dtype = TW_I32; }), "kv layer 0: dtype");
  check_says(fault_of([](ToyPlan& t) {
               t.kv_layers[0].dtype = TW_I8;
               t.kv_layers[0].head_dim = TW_MAX_INT_HEAD_DIM + 1;
             }),
             "kv layer 0: head_dim must be at most 1024 in dtype 3, is 1025");
  check_says(fault_of([](ToyPlan& t) {
               t.kv_layers[0].dtype = TW_I4;
               t.kv_layers[0].head_dim = TW_MAX_INT_HEAD_DIM + 1;
             }),
             "kv layer 0: head_dim must be at most 1024 in dtype 4, is 1025");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].dtype = TW_I4 + 1; }),
             "kv layer 0: dtype must be the header's act_dtype 0, 3 (int8) or 4 (int4), is 5");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].head_dim = 0; }), "kv layer 0: head_dim");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].head_dim = TW_MAX_HEAD_DIM + 1; }),
             "kv layer 0: head_dim must be at most 4096 in dtype 0, is 4097");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].group = 1; }), "kv layer 0: group");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers.push_back({0, 2, 8, TW_F32, 0, 5, 0}); }),
             "kv layer 1: window");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].chunked = 1; }),
             "kv layer 0: chunked must be 0, or 1 with a window, is 1");
  check_says(fault_of([](ToyPlan& t) { t.kv_layers[0].sink_tokens = 4; }),
             "kv layer 0: sink_tokens must be 0, or up to 512 with a window that slides, is 4");
  check_says(fault_of([](ToyPlan& t) {
               t.kv_layers[0].window = 5;
               t.kv_layers[0].sink_tokens = 513;
             }),
             "kv layer 0: sink_tokens must be 0, or up to 512 with a window that slides, is 513");
  check_says(fault_of([](ToyPlan& t) {
               t.kv_layers[0].window = 5;
               t.kv_layers[0].chunked = 2;
             }),
             "kv layer 0: chunked must be 0, or 1 with a window, is 2");
  check_says(fault_of([](ToyPlan& t) {
               t.kv_layers[0].window = 5;
               t.kv_layers.push_back({0, 2, 8, TW_F32, 1, 5, 0});
             }),
             "kv layer 1: chunked must be its group's 0, is 1");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{65}, (uint64_t{1} << 32) + 64, ~uint64_t{63}}) {
    check_says(fault_of([&](ToyPlan& t) { t.states = {{64}, {bytes}}; }), "state 1: bytes");
  }
  check_says(fault_of([](ToyPlan& t) { t.states.resize(4097, {64}); }), "states must be at most 4096");
  check_says(fault_of([](ToyPlan& t) { t.buffers[2].stride_bytes = 0; }), "buffer 2: stride_bytes");
  check_says(fault_of([](ToyPlan& t) { t.buffers[2].offset = 32; }), "buffer 2: offset");
  check_says(fault_of([](ToyPlan& t) { t.buffers[2].offset = ~uint64_t{63}; }), "buffer 2: offset");
  check_says(fault_of([](ToyPlan& t) { t.buffers[2].kind = 2; }), "buffer 2: kind");
  check_says(fault_of([](ToyPlan& t) { t.weights[1].bytes += 4; }), "weight 1: bytes");
  check_says(fault_of([](ToyPlan& t) { t.weights[1].offset = ~uint64_t{63}; }), "weight 1: offset");
  check_says(fault_of([](ToyPlan& t) { t.weights[1].name = 1; }), "weight 1: name");
  check_says(fault_of([](ToyPlan& t) { t.weights[0].n = 17; }), "weight 0: n");
  check_says(fault_of([](ToyPlan& t) { t.weights[0].layout = 7; }), "weight 0: layout");
  check_says(fault_of([](ToyPlan& t) { t.weights[0].dtype = TW_I8; }), "weight 0: dtype");
}

TW_TEST(instruction_faults_are_named) {
  check_says(fault_of([](ToyPlan& t) { t.instructions[0].op = 77; }), "instruction 0: op 77 is unknown");
  check_says(fault_of([](ToyPlan& t) { t.instructions[0].name = 5; }), "instruction 0 (embedding): name");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].in[0] = 99; }),
             "instruction 3 (matmul): in[0] must be -1 to");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].in[0] = -1; }), "in[0] is missing");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].in[3] = 0; }), "in[3] must be absent");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].ints[1] = 47; }), "y must have 47 cols");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].ints[1] = 100; }),
             "bias must be a raw vector of 112");
  check_says(fault_of([](ToyPlan& t) { t.instructions[6].weight[0] = 3; }), "w must be panels of 32 x 16");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].ints[0] = 5; }), "epilogue");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].ints[7] = 1; }), "ints[7] must be 0");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].weight[1] = 1; }),
             "bias must be a raw vector of 48");
  check_says(fault_of([](ToyPlan& t) { t.instructions[3].in[0] = 7; }), "reads buffer 7 before");
  check_says(fault_of([](ToyPlan& t) { t.instructions[2].floats[0] = -1; }), "eps");
  check_says(fault_of([](ToyPlan& t) { t.instructions[2].out[0] = t.instructions[2].in[0]; }),
             "may not share memory");
  check_says(fault_of([](ToyPlan& t) { t.buffers[1].offset = 0; }), "may not share memory");
  check_says(fault_of([](ToyPlan& t) { t.instructions[7].out[1] = -1; }),
             "residual and sum must come together");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].ints[0] = 1; }), "kv_layer");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].ints[1] = 3; }), "heads");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].ints[2] = 7; }), "rotary_dim");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].ints[2] = -2; }), "rotary_dim");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].ints[2] = 0; }), "must be a table exactly if");
  check_says(fault_of([](ToyPlan& t) { t.instructions[4].in[1] = -1; }), "must be a table exactly if");
  check_says(fault_of([](ToyPlan& t) { t.instructions[5].ints[1] = 4; }), "q must have 32 cols");
  check_says(fault_of([](ToyPlan& t) { t.instructions.pop_back(); }), "logits_buffer");
}

// ToyPlan's blocks have 16 positions, its sequences 1200.
TW_TEST(queries_may_choose_their_keys) {
  const auto with = [](
                        int32_t budget, void (*change)(ToyPlan&) = [](ToyPlan&) {}) {
    return fault_of([&](ToyPlan& t) {
      t.instructions[5].ints[kBudgetEnd] = budget;
      change(t);
    });
  };
  TW_CHECK_EQ(with(64), std::string());
  TW_CHECK_EQ(with(1200), std::string());
  for (const int32_t budget : {-16, 48, 72, 1216})
    check_says(with(budget),
               "(paged_attention): sparse_prefill must be 0 or a multiple of block_size 16 from 64 to");
  check_says(with(64, [](ToyPlan& t) { t.kv_layers[0].window = 100; }), "needs a kv layer without window");
  check_says(with(64, [](ToyPlan& t) { t.states = {{64}}; }), "without heads, ranks, states and windows");
  check_says(with(64, [](ToyPlan& t) { t.instructions[5].weight[1] = t.vector(ToyPlan::kHeads); }),
             "no slopes");
  ToyPlan t;
  t.instructions[5].ints[kBudgetEnd] = 64;
  const ModelFacts facts = Plan::parse(t.bytes()).facts();
  TW_CHECK_EQ(facts.sparse_prefill, 64);
  TW_CHECK_EQ(facts.chunk_multiple, 16);
}

TW_TEST(a_plan_may_keep_heads_as_they_are) {
  TW_CHECK_EQ(fault_of([](ToyPlan& t) {
                t.instructions[4].ints[2] = 0;
                t.instructions[4].in[1] = -1;
              }),
              std::string());
}

// A layer may read the keys and values of another one: it turns q alone, and writes nothing.
TW_TEST(q_alone_reads_what_another_layer_wrote) {
  constexpr int32_t kCols = ToyPlan::kHeads * ToyPlan::kHeadDim;
  const auto reader = [](int32_t layer, int32_t cols) {
    return fault_of([=](ToyPlan& t) {
      t.kv_layers.push_back(t.kv_layers[0]);
      const int32_t x = t.instructions[2].in[0], angles = t.instructions[1].out[0];
      const int32_t row = t.buffer(BufferKind::kTokens, static_cast<uint32_t>(cols));
      const int32_t q = t.buffer(BufferKind::kTokens, kCols), y = t.buffer(BufferKind::kTokens, kCols);
      const int32_t w = t.matrix(static_cast<uint32_t>(cols), ToyPlan::kHidden);
      t.op(Op::kMatmul, {{x}, {row}, {w}, {0, cols}, {}});
      t.op(Op::kRotaryKvWrite, {{row, angles}, {q}, {}, {layer, ToyPlan::kHeads, ToyPlan::kHeadDim}, {}});
      t.op(Op::kPagedAttention, {{q}, {y}, {}, {layer, ToyPlan::kHeads}, {0.35f, 0.0f}});
    });
  };
  TW_CHECK_EQ(reader(0, kCols), std::string());
  TW_CHECK_EQ(reader(1, 3 * kCols), std::string());
  check_says(reader(1, kCols), "(paged_attention): reads kv layer 1 before anything writes it");
  check_says(reader(0, 2 * kCols), "qkv must have 48 cols, has 32");
  check_says(reader(0, kCols - 8), "qkv must have 48 cols, has 8");
}

namespace {

// Heads of one layer behind the toy model: instruction 13 is draft_features.
struct ToyHeads {
  int32_t features, x, qkv, q, y, hidden, logits;

  explicit ToyHeads(ToyPlan& t) {
    const auto tokens = [&](uint32_t cols) { return t.buffer(BufferKind::kTokens, cols); };
    constexpr uint32_t kCols = ToyPlan::kHeads * ToyPlan::kHeadDim;
    features = t.instructions[9].out[0];
    x = tokens(ToyPlan::kHidden), qkv = tokens(3 * kCols), q = tokens(kCols), y = tokens(kCols);
    hidden = t.buffer(BufferKind::kRows, ToyPlan::kHidden), logits = t.buffer(BufferKind::kRows, 5);
    const int32_t o = tokens(ToyPlan::kHidden);
    t.kv_layers.push_back(t.kv_layers[0]);
    t.op(Op::kDraftFeatures, {{features}, {x}, {}, {logits, hidden}, {}});
    t.op(Op::kMatmul, {{x}, {qkv}, {t.matrix(3 * kCols, ToyPlan::kHidden)}, {0, 3 * kCols}, {}});
    t.op(Op::kRotaryKvWrite, {{qkv}, {q}, {}, {1, ToyPlan::kHeads, 0}, {}});
    t.op(Op::kPagedAttention, {{q}, {y}, {}, {1, ToyPlan::kHeads}, {0.35f, 0.0f}});
    t.op(Op::kMatmul, {{y, x}, {o}, {t.matrix(ToyPlan::kHidden, kCols)}, {0, ToyPlan::kHidden}, {}});
    t.op(Op::kGatherRows, {{o}, {hidden}, {}, {}, {}});
    t.op(Op::kMatmul, {{hidden}, {logits}, {t.matrix(5, ToyPlan::kHidden)}, {0, 5}, {}});
  }
};

template <typename Damage>
std::string heads_fault(Damage&& damage) {
  return fault_of([&](ToyPlan& t) {
    const ToyHeads heads(t);
    damage(t, heads);
  });
}

}  // namespace

TW_TEST(a_plan_may_have_heads) {
  TW_CHECK_EQ(heads_fault([](ToyPlan&, const ToyHeads&) {}), std::string());
  ToyPlan t;
  const ToyHeads heads(t);
  const Plan plan = Plan::parse(t.bytes());
  TW_CHECK_EQ(plan.model_instructions(), size_t{13});
  TW_CHECK_EQ(plan.logit_instructions(), size_t{13});
  const ModelFacts facts = plan.facts();
  TW_CHECK_EQ(facts.draft_width, static_cast<int32_t>(ToyPlan::kHidden));
  TW_CHECK_EQ(facts.draft_vocab, 5);
  TW_CHECK_EQ(facts.draft_group, 0);
  TW_CHECK_EQ(Plan::parse(ToyPlan().bytes()).facts().draft_width, 0);
  TW_CHECK_EQ(Plan::parse(ToyPlan().bytes()).logit_instructions(), size_t{13});
}

TW_TEST(heads_that_only_write_a_cache_have_its_group) {
  ToyPlan t;
  const ToyHeads heads(t);
  t.header.cache_groups = 2;
  t.kv_layers[1].group = 1;
  std::erase_if(t.instructions, [&](const Instruction& i) {
    return i.op == static_cast<uint32_t>(Op::kPagedAttention) && i.ints[0] == 1;
  });
  auto& product = t.instructions[16];  // of what attention wrote: now of q
  TW_CHECK_EQ(product.in[0], heads.y);
  product.in[0] = heads.q;
  TW_CHECK_EQ(Plan::parse(t.bytes()).facts().draft_group, 1);
}

TW_TEST(heads_without_attention_have_no_cache_group) {
  ToyPlan t;
  const int32_t x = t.buffer(BufferKind::kTokens, ToyPlan::kHidden);
  const int32_t hidden = t.buffer(BufferKind::kRows, ToyPlan::kHidden),
                logits = t.buffer(BufferKind::kRows, 3 * 5);
  t.op(Op::kDraftFeatures, {{t.instructions[9].out[0]}, {x}, {}, {logits, hidden}, {}});
  t.op(Op::kGatherRows, {{x}, {hidden}, {}, {}, {}});
  t.op(Op::kMatmul, {{hidden}, {logits}, {t.matrix(3 * 5, ToyPlan::kHidden)}, {0, 3 * 5}, {}});
  const ModelFacts facts = Plan::parse(t.bytes()).facts();
  TW_CHECK_EQ(facts.draft_vocab, 15);
  TW_CHECK_EQ(facts.draft_group, -1);
}

TW_TEST(faults_of_heads_are_named) {
  const auto says = [](const char* part, auto&& damage) { check_says(heads_fault(damage), part); };
  says("target is missing", [](ToyPlan& t, const ToyHeads&) { t.instructions[13].in[0] = -1; });
  says("every buffer must be of kind 0",
       [](ToyPlan& t, const ToyHeads&) { t.instructions[13].in[0] = t.header.logits_buffer; });
  says("y must have 20 cols", [](ToyPlan& t, const ToyHeads& h) { t.instructions[13].out[0] = h.q; });
  says("logits must be a buffer below",
       [](ToyPlan& t, const ToyHeads&) { t.instructions[13].ints[0] = 999; });
  says("hidden must be a buffer below", [](ToyPlan& t, const ToyHeads&) { t.instructions[13].ints[1] = -1; });
  says("every result of heads must be of kind 1",
       [](ToyPlan& t, const ToyHeads& h) { t.instructions[13].ints[0] = h.y; });
  says("hidden must have 20 cols",
       [](ToyPlan& t, const ToyHeads& h) { t.instructions[13].ints[1] = h.logits; });
  says("the heads do not write their results",
       [](ToyPlan& t, const ToyHeads&) { t.instructions[13].ints[0] = t.header.logits_buffer; });
  says("the heads read buffer", [](ToyPlan& t, const ToyHeads& h) { t.instructions[14].in[0] = h.features; });
  says("the heads share kv layer 0 with the model",
       [](ToyPlan& t, const ToyHeads&) { t.instructions[15].ints[0] = t.instructions[16].ints[0] = 0; });
  says("the heads have a cache with a window", [](ToyPlan& t, const ToyHeads&) {
    t.header.cache_groups = 2;
    t.kv_layers[1].group = 1;
    t.kv_layers[1].window = 4;
  });
  says("there are heads behind the heads",
       [](ToyPlan& t, const ToyHeads&) { t.instructions.push_back(t.instructions[13]); });
  says("the heads begin before the logits are written", [](ToyPlan& t, const ToyHeads&) {
    std::rotate(t.instructions.begin() + 12, t.instructions.begin() + 13, t.instructions.end());
  });
}

TW_TEST(attention_has_a_sink_and_a_slope_for_each_head) {
  const char* faults[] = {"sinks must be a raw vector of 2", "slopes must be a raw vector of 2"};
  for (int at = 0; at < 2; ++at) {
    const auto fault = [at](uint32_t heads) {
      return fault_of([=](ToyPlan& t) { t.instructions[5].weight[at] = t.vector(heads); });
    };
    TW_CHECK_EQ(fault(ToyPlan::kHeads), std::string());
    check_says(fault(ToyPlan::kHeads + 1), faults[at]);
    check_says(fault(1), faults[at]);
  }
}

TW_TEST(embeddings_by_position_have_a_row_for_each) {
  const auto by_position = [](ToyPlan& t, uint32_t positions) {
    t.instructions[0].ints[0] = TW_IDS_POSITIONS;
    t.header.max_seq_len = positions;
  };
  const uint32_t rows = ToyPlan().weights[0].n;
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { by_position(t, rows); }), std::string());
  check_says(fault_of([&](ToyPlan& t) { by_position(t, rows + 1); }), "table must have a row for each of");
  check_says(fault_of([](ToyPlan& t) { t.instructions[0].ints[0] = 2; }), "ids must be 0 or 1, is 2");
}

TW_TEST(column_norm_faults_are_named) {
  const auto norm = [](ToyPlan& t) -> Instruction& {
    Instruction& i = t.instructions[2];
    i.op = static_cast<uint32_t>(Op::kRmsNormColumns);
    i.ints[0] = 0;
    i.ints[1] = 1;
    return i;
  };
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { norm(t); }), std::string());
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[0] = -1; }), "start must not be negative, is -1");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[0] = 1; }), "heads must end by column");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[1] = 0x7fffffff; }), "heads must end by column");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[1] = 0; }), "heads must be positive, is 0");
  check_says(fault_of([&](ToyPlan& t) { norm(t).floats[0] = -1; }), "eps must not be negative");
}

TW_TEST(layer_norm_faults_are_named) {
  const int32_t width = ToyPlan::kHidden;
  // Of the norm with a residual, and of one of columns of the same row.
  const auto norm = [=](ToyPlan& t) -> Instruction& {
    Instruction& i = t.instructions[7];
    i.op = static_cast<uint32_t>(Op::kLayerNorm);
    i.weight[1] = i.weight[0];
    i.ints[1] = 1;
    i.ints[2] = width;
    return i;
  };
  const auto columns = [=](ToyPlan& t, int32_t w) -> Instruction& {
    Instruction& i = norm(t);
    i.in[1] = i.out[1] = i.weight[1] = -1;
    i.weight[0] = w;
    i.ints[1] = 2;
    i.ints[2] = width / 2 - 1;
    return i;
  };
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { norm(t); }), std::string());
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { norm(t).weight[1] = -1; }), std::string());
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { columns(t, t.vector(width / 2 - 1)); }), std::string());
  TW_CHECK_EQ(fault_of([&](ToyPlan& t) { columns(t, t.vector(width - 2)); }), std::string());
  check_says(fault_of([&](ToyPlan& t) { columns(t, t.vector(width)); }), "w must be a raw vector of 18");
  check_says(fault_of([&](ToyPlan& t) {
               columns(t, t.vector(width - 2)).weight[1] = t.instructions[7].weight[0] - 1;
             }),
             "b must be a raw vector of 18");
  check_says(fault_of([&](ToyPlan& t) { norm(t).out[1] = -1; }), "residual and sum must come together");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[2] = width - 1; }),
             "only whole rows may have a residual");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[2] = -1; }), "width must not be negative, is -1");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[1] = 2; }),
             "heads must end by column 20, they end at 40");
  check_says(fault_of([&](ToyPlan& t) { norm(t).ints[0] = -1; }), "start must not be negative");
  check_says(fault_of([&](ToyPlan& t) { norm(t).floats[0] = -1; }), "eps must not be negative");
  check_says(fault_of([&](ToyPlan& t) { norm(t).out[0] = t.instructions[7].in[0]; }), "may not share memory");
  // Without a residual y may take x's place.
  check_says(fault_of([&](ToyPlan& t) {
               Instruction& i = columns(t, t.vector(width - 2));
               i.out[0] = i.in[0];
             }),
             "reads buffer");
}

TW_TEST(concat_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault_of([&](ToyPlan& t) {
      const int32_t x = t.instructions[2].in[0];
      const int32_t y = t.buffer(BufferKind::kTokens, 3 * ToyPlan::kHidden);
      t.op(Op::kConcat, {{x, x, x}, {y}, {}, {}, {}});
      damage(t, t.instructions.back());
    });
  };
  using I = Instruction;
  TW_CHECK_EQ(damaged([](ToyPlan&, I&) {}), std::string());
  check_says(damaged([](ToyPlan&, I& i) { i.in[2] = -1; }), "(concat): y must have 40 cols, has 60");
  check_says(damaged([](ToyPlan&, I& i) { i.in[3] = i.in[0]; }), "y must have 80 cols, has 60");
  check_says(damaged([](ToyPlan&, I& i) { std::swap(i.in[2], i.in[3]); }), "in[3] needs in[2]");
  check_says(damaged([](ToyPlan&, I& i) { i.in[1] = -1; }), "in[1] is missing");
  check_says(damaged([](ToyPlan& t, I& i) { t.buffers[static_cast<size_t>(i.out[0])].dtype = TW_BF16; }),
             "y must be float32");
}

TW_TEST(split_columns_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault_of([&](ToyPlan& t) {
      const int32_t x = t.instructions[2].in[0];
      const int32_t rest = t.buffer(BufferKind::kTokens, ToyPlan::kHidden);
      const int32_t taken = t.buffer(BufferKind::kTokens, 3);
      t.op(Op::kSplitColumns, {{x}, {rest, taken}, {t.vector(3)}, {}, {}});
      damage(t, t.instructions.back());
    });
  };
  using I = Instruction;
  TW_CHECK_EQ(damaged([](ToyPlan&, I&) {}), std::string());
  check_says(damaged([](ToyPlan& t, I& i) { i.weight[0] = t.vector(4); }),
             "(split_columns): columns must be a raw vector of 3");
  check_says(damaged([](ToyPlan&, I& i) { i.out[1] = -1; }), "out[1] is missing");
  check_says(damaged([](ToyPlan& t, I& i) { i.out[0] = t.buffer(BufferKind::kTokens, 8); }),
             "rest must have 20 cols, has 8");
  check_says(damaged([](ToyPlan& t, I& i) { t.buffers[static_cast<size_t>(i.out[1])].dtype = TW_BF16; }),
             "both results must have x's dtype");
}

TW_TEST(program_faults_are_named) {
  // The residual norm's operands serve: two inputs and w, of one width.
  const auto with = [](std::initializer_list<int> code) {
    return fault_of([&](ToyPlan& t) {
      Instruction& i = t.instructions[7];
      i.op = static_cast<uint32_t>(Op::kElementwise);
      i.out[1] = -1;
      i.floats[0] = i.floats[1] = 1;
      uint8_t bytes[32] = {};
      std::copy(code.begin(), code.end(), bytes);
      std::memcpy(i.ints, bytes, sizeof bytes);
    });
  };
  check_says(with({}), "must leave one value, leaves 0");
  check_says(with({1, 2}), "must leave one value, leaves 2");
  check_says(with({1, 16}), "takes 2 of 1 values");
  check_says(with({3}), "program byte 0 reads an absent input");
  check_says(with({1, 77}), "program byte 1 is 77, which is no code");
  check_says(with({1, 32, 0, 32}), "program byte 3 must be 0 after the end");
  check_says(with({1, 1, 1, 1, 1, 1, 1, 1, 1}), "stack must hold at most 8");
}

TW_TEST(truncation_is_refused_at_every_length) {
  ToyPlan toy;
  const std::vector<std::byte> bytes = toy.bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    TW_CHECK_ERROR(Plan::parse(std::span(bytes.data(), length)), "EngineError");
    // Even if the header owns up to the truncation.
    std::vector<std::byte> shorter(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    const uint64_t size = length;
    if (length >= sizeof(PlanHeader))
      std::memcpy(shorter.data() + offsetof(PlanHeader, file_bytes), &size, 8);
    TW_CHECK_ERROR(Plan::parse(shorter), "EngineError");
  }
}

// Damage is refused or harmless: it never crashes, and what is taken still points inside the files.
TW_TEST(random_damage_never_crashes) {
  ToyPlan toy;
  const std::vector<std::byte> sound = toy.bytes();
  Random random{7};
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = sound;
    for (uint32_t hits = 1 + random.below(3); hits > 0; --hits) {
      const size_t at = random.below(static_cast<uint32_t>(bytes.size() / 4)) * 4;
      const uint32_t values[] = {random.next(), 0u, ~0u, 0x7fffffffu, 0x80000000u, 1u << random.below(32)};
      uint32_t word;
      std::memcpy(&word, &bytes[at], 4);
      word = random.below(2) ? values[random.below(6)] : word ^ (1u << random.below(32));
      std::memcpy(&bytes[at], &word, 4);
    }
    try {
      const Plan plan = Plan::parse(bytes);
      ++taken;
      for (const WeightRecord& weight : plan.weights) {
        TW_CHECK(weight.offset + weight.bytes <= plan.header.weights_bytes);
      }
      for (const Instruction& instruction : plan.instructions)
        TW_CHECK(plan.name(instruction.name)[0] == '\0');
    } catch (const Error& error) {
      TW_CHECK_EQ(error.type(), std::string("EngineError"));
    }
  }
  // Bits of scales and epsilons may change unseen; most of the rest may not.
  TW_CHECK(taken > 0 && taken < 5000);
}

namespace {

// Six blocks of 16 positions, the first one and the last two among them, at each multiple of 64.
void give_budget(ToyPlan& t) {
  t.states = {{kept_bytes(75)}};
  const int32_t ints[] = {6, 1, 2, 64, 1};
  std::copy(std::begin(ints), std::end(ints), t.instructions[5].ints + kBudgetInts);
}

}  // namespace

TW_TEST(what_a_group_keeps_is_a_fact) {
  ToyPlan toy;
  give_budget(toy);
  const ModelFacts facts = Plan::parse(toy.bytes()).facts();
  TW_CHECK_EQ(facts.chunk_stop(), 64);
  TW_CHECK_EQ(facts.budget(0).kept, 6);
  TW_CHECK_EQ(facts.budget(0).state, 0);
  TW_CHECK_EQ(facts.state_bytes, int64_t{704});
  TW_CHECK_EQ(facts.budget(1).kept, 0);
}

TW_TEST(layers_of_a_group_forget_the_same_blocks) {
  const auto fault = [](auto change) {
    return fault_of([&](ToyPlan& t) {
      give_budget(t);
      change(t, t.instructions[5].ints + kBudgetInts);
    });
  };
  check_says(fault([](ToyPlan& t, int32_t* ints) {
               Instruction other = t.instructions[5];
               other.ints[kBudgetInts + 3] = 32;
               (void)ints, t.instructions.insert(t.instructions.begin() + 6, other);
             }),
             "instruction 6: the budget must be that of the other layers of cache group 0");
  check_says(fault([](ToyPlan& t, int32_t*) { t.kv_layers[0].window = 5; }),
             "a layer with a budget must have no window, has 5");
  check_says(fault([](ToyPlan&, int32_t* ints) { ints[4] = 2; }), "scores must be 1 to 1, is 2");
  check_says(fault([](ToyPlan& t, int32_t*) { t.states[0].bytes = 640; }),
             "the state of scores must have 704 bytes, has 640");
  check_says(fault([](ToyPlan&, int32_t* ints) { ints[3] = 1 << 30; }),
             "heads times interval must be at most 1073741824 over all layers, is 2147483648");
}

TW_TEST_MAIN()
