// The plan reader on latent attention: a layer whose V is a part of K, products of each head with a matrix of
// its own, and the write of latent rows.
#include "plugins/common/kernel_types.h"
#include "tests/cpp/plan_faults.h"

using namespace tensorwright;
using tw_test::check_says;
using tw_test::fault_of;
using tw_test::ToyPlan;

namespace {

constexpr uint32_t kHeads = 3, kInner = 6, kLatent = 8, kRope = 4, kOut = 5;

// Adds latent attention in a layer of its own that reads the stream, and whose result nobody uses.
void add_latent_attention(ToyPlan& t) {
  constexpr auto kTokens = BufferKind::kTokens;
  const int32_t x = t.instructions[2].in[0], hidden = ToyPlan::kHidden;
  const uint32_t q_cols = kHeads * (kInner + kRope), width = kLatent + kRope;
  t.kv_layers.push_back({0, 1, width, TW_F32, 0, 0, kLatent});
  const auto layer = static_cast<int32_t>(t.kv_layers.size() - 1), heads = static_cast<int32_t>(kHeads);
  const int32_t q = t.buffer(kTokens, q_cols), kv = t.buffer(kTokens, width);
  const int32_t absorbed = t.buffer(kTokens, kHeads * kLatent), read = t.buffer(kTokens, kHeads * width);
  const int32_t mixed = t.buffer(kTokens, kHeads * kLatent), y = t.buffer(kTokens, kHeads * kOut);
  t.op(Op::kMatmul, {{x}, {q}, {t.matrix(q_cols, hidden)}, {0, static_cast<int32_t>(q_cols)}, {}});
  t.op(Op::kMatmul, {{x}, {kv}, {t.matrix(width, hidden)}, {0, static_cast<int32_t>(width)}, {}});
  t.op(Op::kHeadProducts, {{q}, {absorbed}, {t.matrix(kHeads * 16, kInner)}, {heads}, {}});
  t.op(Op::kLatentKvWrite, {{absorbed, q, kv}, {read}, {}, {layer, heads}, {}});
  t.op(Op::kPagedAttention, {{read}, {mixed}, {}, {layer, heads}, {0.5f, 0.0f}});
  t.op(Op::kHeadProducts, {{mixed}, {y}, {t.matrix(kHeads * 16, kLatent)}, {heads}, {}});
}

// The instructions that were added last: product, write, attention, product.
template <typename Damage>
std::string fault(Damage&& damage) {
  return fault_of([&](ToyPlan& t) {
    add_latent_attention(t);
    damage(t, &t.instructions[t.instructions.size() - 4]);
  });
}

}  // namespace

TW_TEST(latent_attention_is_taken) {
  TW_CHECK_EQ(fault([](ToyPlan&, Instruction*) {}), std::string());
}

TW_TEST(faults_of_a_latent_layer_are_named) {
  check_says(fault([](ToyPlan& t, Instruction*) { t.kv_layers.back().v_dim = 14; }),
             "v_dim at most head_dim 12");
  check_says(fault([](ToyPlan& t, Instruction*) { t.kv_layers.back().v_dim = 7; }), "must be even");
  check_says(fault([](ToyPlan& t, Instruction*) { t.kv_layers.back().kv_heads = 3; }),
             "v_dim needs one kv_head");
  for (uint16_t dtype : {TW_I8, TW_I4}) {
    check_says(fault([=](ToyPlan& t, Instruction*) { t.kv_layers.back().dtype = dtype; }),
               "not int8 or int4");
  }
}

TW_TEST(head_products_faults_are_named) {
  using I = Instruction;
  check_says(fault([](ToyPlan&, I* i) { i[0].ints[0] = 0; }),
             "(head_products): heads must be 1 to 2^20, is 0");
  check_says(fault([](ToyPlan&, I* i) { i[0].ints[0] = 4; }), "must have whole heads");
  check_says(fault([](ToyPlan&, I* i) { i[0].ints[0] = 1; }), "w must be panels of 32 x");
  check_says(fault([](ToyPlan& t, I* i) { i[0].weight[0] = t.matrix(kHeads * 16, 11); }),
             "must have at most the 10 columns of a head of x, has 11");
}

TW_TEST(latent_kv_write_faults_are_named) {
  using I = Instruction;
  check_says(fault([](ToyPlan&, I* i) { i[1].ints[0] = 0, i[1].ints[1] = 2; }),
             "(latent_kv_write): the kv layer must hold latent rows");
  check_says(fault([](ToyPlan&, I* i) { i[1].ints[1] = 2; }), "q_latent must have 16 cols, has 24");
  check_says(fault([](ToyPlan& t, I* i) { i[1].in[1] = t.instructions[2].in[0]; }),
             "q must have 3 heads of 4 columns");
  check_says(fault([](ToyPlan&, I* i) { i[1].in[2] = i[1].in[1]; }), "kv must have 12 cols, has 30");
  check_says(fault([](ToyPlan&, I* i) { i[1].in[3] = i[1].in[2]; }), "table must have 4 cols, has 12");
  check_says(fault([](ToyPlan&, I* i) { i[1].out[0] = i[2].out[0]; }), "y must have 36 cols, has 24");
}

// A page of latent rows has no place for rows of V. q alone writes nothing.
TW_TEST(a_latent_layer_takes_no_keys_and_values) {
  const auto write = [](uint32_t kv_heads) {
    return fault([=](ToyPlan& t, Instruction*) {
      const uint32_t width = kLatent + kRope, cols = (kHeads + 2 * kv_heads) * width;
      const auto layer = static_cast<int32_t>(t.kv_layers.size() - 1), heads = static_cast<int32_t>(kHeads);
      const int32_t row = t.buffer(BufferKind::kTokens, cols),
                    q = t.buffer(BufferKind::kTokens, kHeads * width);
      const int32_t x = t.instructions[2].in[0], hidden = ToyPlan::kHidden;
      t.op(Op::kMatmul, {{x}, {row}, {t.matrix(cols, hidden)}, {0, static_cast<int32_t>(cols)}, {}});
      t.op(Op::kRotaryKvWrite, {{row}, {q}, {}, {layer, heads, 0}, {}});
    });
  };
  check_says(write(1), "(rotary_kv_write): the kv layer must have rows of V of its own, has v_dim 8");
  TW_CHECK_EQ(write(0), std::string());
}

TW_TEST(attention_over_latents_gives_their_width) {
  check_says(fault([](ToyPlan&, Instruction* i) { i[2].out[0] = i[1].out[0]; }),
             "(paged_attention): y must have 24 cols, has 36");
}

TW_TEST_MAIN()
