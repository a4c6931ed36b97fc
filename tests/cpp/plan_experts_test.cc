// The plan reader on mixtures of experts: the route, the matrices of all experts, and buffers of whole
// numbers.
#include <cmath>

#include "plugins/common/kernel_types.h"
#include "plugins/route/layout.h"
#include "tests/cpp/plan_faults.h"

using namespace tensorwright;
using tw_test::check_says;
using tw_test::fault_of;
using tw_test::ToyPlan;

namespace {

constexpr uint32_t kExperts = 5, kSlots = 2, kInner = 18;

// Adds a mixture of experts that reads the stream, and whose result nobody uses.
void add_mixture(ToyPlan& t) {
  constexpr auto kTokens = BufferKind::kTokens;
  const int32_t x = t.instructions[2].in[0];
  const int32_t logits = t.buffer(kTokens, kExperts), index = t.buffer(kTokens, kSlots, TW_I32);
  const int32_t shares = t.buffer(kTokens, kSlots), y = t.buffer(kTokens, ToyPlan::kHidden);
  const int32_t gate_up = t.matrix(kExperts * 2 * 32, ToyPlan::kHidden);
  const int32_t down = t.matrix(kExperts * 32, kInner);
  t.op(Op::kMatmul, {{x}, {logits}, {t.matrix(kExperts, ToyPlan::kHidden)}, {0, kExperts}, {}});
  t.op(Op::kRoute, {{logits}, {index, shares}, {}, {kSlots, 1}, {}});
  t.op(Op::kExperts, {{x, index, shares}, {y}, {gate_up, down}, {kExperts, 0}, {}});
}

template <typename Damage>
std::string fault(Damage&& damage) {
  return fault_of([&](ToyPlan& t) {
    add_mixture(t);
    damage(t, t.instructions[t.instructions.size() - 2], t.instructions.back());
  });
}

WeightRecord& weight(ToyPlan& t, const Instruction& i, int operand) {
  return t.weights[static_cast<size_t>(i.weight[operand])];
}

BufferRecord& buffer(ToyPlan& t, int32_t index) { return t.buffers[static_cast<size_t>(index)]; }

}  // namespace

TW_TEST(a_mixture_of_experts_is_taken) {
  TW_CHECK_EQ(fault([](ToyPlan&, Instruction&, Instruction&) {}), std::string());
}

TW_TEST(route_faults_are_named) {
  using I = Instruction;
  check_says(fault([](ToyPlan&, I& route, I&) { route.ints[0] = 0; }), "(route): k must be 1 to the 5 cols");
  check_says(fault([](ToyPlan&, I& route, I&) { route.ints[0] = 6; }),
             "k must be 1 to the 5 cols of logits, is 6");
  check_says(fault([](ToyPlan&, I& route, I&) { route.ints[0] = 3; }), "index must have 3 cols, has 2");
  check_says(fault([](ToyPlan&, I& route, I&) { route.ints[1] = 2; }), "normalise must be 0 or 1, is 2");
  check_says(fault([](ToyPlan& t, I& route, I&) { buffer(t, route.out[0]).dtype = TW_F32; }),
             "index must be int32, has dtype 0");
  check_says(fault([](ToyPlan& t, I& route, I&) { buffer(t, route.out[1]).dtype = TW_BF16; }),
             "weights must be float32, has dtype 1");
}

TW_TEST(a_route_is_bounded) {
  const auto routed = [](int32_t k) {
    return fault([&](ToyPlan& t, Instruction&, Instruction&) {
      constexpr auto kTokens = BufferKind::kTokens;
      constexpr uint32_t kMany = TW_MAX_ROUTE_COMPARISONS / 512;
      const int32_t x = t.instructions[2].in[0], logits = t.buffer(kTokens, kMany);
      const int32_t index = t.buffer(kTokens, static_cast<uint32_t>(k), TW_I32);
      const int32_t shares = t.buffer(kTokens, static_cast<uint32_t>(k));
      t.op(Op::kMatmul, {{x}, {logits}, {t.matrix(kMany, ToyPlan::kHidden)}, {0, kMany}, {}});
      t.op(Op::kRoute, {{logits}, {index, shares}, {}, {k, 1}, {}});
    });
  };
  TW_CHECK_EQ(routed(512), std::string());
  check_says(routed(513), "the cols of logits times k must be at most 1048576, are 2048 times 513");
}

TW_TEST(experts_faults_are_named) {
  using I = Instruction;
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[0] = 0; }), "(experts): experts must be 1 to 65536, is 0");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[0] = 4; }),
             "gate_up must be panels of 256 x 20, is layout 1 of 320 x 20");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[0] = 1; }), "index must have at most 1 cols, has 2");
  TW_CHECK_EQ(fault([](ToyPlan&, I&, I& i) { i.ints[2] = 3; }), std::string());
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[2] = -1; }), "identities must be 0 to 65536, is -1");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[2] = 65537; }), "identities must be 0 to 65536, is 65537");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[1] = 4; }), "activation must be below 4, is 4");
  check_says(fault([](ToyPlan&, I&, I& i) { i.weight[1] = i.weight[0]; }), "down must be panels of 160 x 20");
  check_says(fault([](ToyPlan& t, I&, I& i) {
               WeightRecord& down = weight(t, i, 1);
               down.n -= 16, down.bytes -= uint64_t{16} * kInner * 4;
             }),
             "down must be panels of 160 x 18, is layout 1 of 144 x 18");
  check_says(fault([](ToyPlan&, I&, I& i) { i.in[1] = i.in[2]; }), "index must be int32, has dtype 0");
  check_says(fault([](ToyPlan&, I&, I& i) { i.in[2] = i.in[0]; }), "weights must have 2 cols, has 20");
  check_says(fault([](ToyPlan&, I&, I& i) { i.out[0] = i.in[2]; }), "y must have 20 cols, has 2");
  check_says(fault([](ToyPlan&, I&, I& i) { i.out[0] = i.in[0]; }), "out[0] may not share memory with in[0]");
  check_says(fault([](ToyPlan& t, I&, I& i) {
               WeightRecord& gate_up = weight(t, i, 0);
               gate_up.dtype = TW_BF16, gate_up.bytes /= 2;
             }),
             "gate_up must have x's dtype 0, has 1");
}

namespace {

// Adds a mixture that routes by scores, and whose experts are two instructions with biases.
void add_halves(ToyPlan& t) {
  constexpr auto kTokens = BufferKind::kTokens;
  const int32_t x = t.instructions[2].in[0], logits = t.buffer(kTokens, 6);
  const int32_t index = t.buffer(kTokens, kSlots, TW_I32), shares = t.buffer(kTokens, kSlots);
  const int32_t inner = t.buffer(kTokens, kSlots * kInner), y = t.buffer(kTokens, ToyPlan::kHidden);
  const int32_t up = t.matrix(6 * 2 * 32, ToyPlan::kHidden), down = t.matrix(6 * 32, kInner);
  t.op(Op::kMatmul, {{x}, {logits}, {t.matrix(6, ToyPlan::kHidden)}, {0, 6}, {}});
  t.op(Op::kRouteByScore, {{logits},
                           {index, shares},
                           {t.vector(6), t.vector(6)},
                           {kSlots, 1, 1, 1, 3, 2, 2, 0},
                           {2.5f, 0, 0, 0}});
  t.op(Op::kExpertsUp,
       {{x, index}, {inner}, {up, t.vector(6 * 2 * kInner)}, {6, 0, 1, 0}, {1.7f, 7.0f, 1.0f}});
  t.op(Op::kExpertsDown, {{inner, index, shares}, {y}, {down, t.vector(6 * ToyPlan::kHidden)}, {6}, {}});
}

template <typename Damage>
std::string fault_of_halves(Damage&& damage) {
  return fault_of([&](ToyPlan& t) {
    add_halves(t);
    Instruction* last = &t.instructions.back();
    damage(t, last[-2], last[-1], last[0]);
  });
}

}  // namespace

TW_TEST(halves_of_experts_are_taken) {
  using I = Instruction;
  TW_CHECK_EQ(fault_of_halves([](ToyPlan&, I&, I&, I&) {}), std::string());
  TW_CHECK_EQ(fault_of_halves([](ToyPlan&, I&, I& up, I& down) {
                up.in[2] = down.in[2], down.in[2] = -1, up.weight[1] = down.weight[1] = -1;
              }),
              std::string());
  for (int absent : {0, 1}) {
    TW_CHECK_EQ(fault_of_halves([=](ToyPlan&, I& route, I&, I&) { route.weight[absent] = -1; }),
                std::string());
  }
}

TW_TEST(faults_of_a_route_by_score_are_named) {
  using I = Instruction;
  const auto set = [](int at, int32_t value) {
    return fault_of_halves([=](ToyPlan&, I& route, I&, I&) { route.ints[at] = value; });
  };
  check_says(set(0, 7), "(route_by_score): k must be 1 to the 6 cols of logits, is 7");
  check_says(set(1, 2), "normalise must be 0 or 1, is 2");
  check_says(set(2, 3), "score must be below 3, is 3");
  check_says(set(3, -1), "by_scores must be 0 or 1, is -1");
  check_says(set(4, 4), "groups must divide the 6 cols of logits, is 4");
  check_says(set(4, 0), "groups must divide the 6 cols of logits, is 0");
  check_says(set(5, 4), "group_limit must be 1 to 3, is 4");
  check_says(set(6, 3), "group_best must be 1 to 2, is 3");
  check_says(set(7, 2), "keeps_others must be 0 or 1, is 2");
  check_says(fault_of_halves(
                 [](ToyPlan&, I& route, I&, I&) { route.ints[4] = 6, route.ints[6] = 1, route.ints[5] = 1; }),
             "k must be at most 1, the experts of the chosen groups, is 2");
  check_says(fault_of_halves([](ToyPlan&, I& route, I&, I&) { route.floats[0] = -1.0f; }),
             "floats[0] must be finite and not negative");
  check_says(fault_of_halves([](ToyPlan&, I& route, I& up, I&) { route.weight[0] = up.weight[1]; }),
             "bias must be a raw vector of 6");
  check_says(fault_of_halves([](ToyPlan&, I& route, I& up, I&) { route.weight[1] = up.weight[1]; }),
             "expert_scales must be a raw vector of 6");
}

TW_TEST(faults_of_halves_of_experts_are_named) {
  using I = Instruction;
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.ints[1] = 4; }),
             "activation must be below 4, is 4");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.ints[2] = 2; }),
             "ints[2] must be 0 or 1, is 2");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.ints[4] = -1; }),
             "ints[4] must be 0 or 1, is -1");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.ints[2] = 0; }),
             "up must be panels of 192 x 20");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.floats[1] = 0.0f; }),
             "limit must be positive, is 0");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.floats[0] = INFINITY; }),
             "slope and up_offset must");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I& down) { up.weight[1] = down.weight[1]; }),
             "bias must be a raw vector of 216");
  check_says(fault_of_halves([](ToyPlan&, I&, I&, I& down) { down.weight[1] = down.weight[0]; }),
             "bias must be a raw vector of 120");
  check_says(fault_of_halves([](ToyPlan&, I&, I&, I& down) { down.ints[0] = 5; }),
             "down must be panels of 160 x 18");
  check_says(fault_of_halves([](ToyPlan& t, I&, I& up, I&) { buffer(t, up.out[0]).cols -= 1; }),
             "y must have a run of cols for each of the 2 cols of index, has 35");
  check_says(fault_of_halves([](ToyPlan&, I&, I& up, I&) { up.in[0] = up.in[1]; }),
             "in[0] must not be int32");
}

TW_TEST(whole_numbers_are_for_routes_and_experts_alone) {
  using I = Instruction;
  check_says(fault([](ToyPlan& t, I&, I& i) { t.instructions[2].in[0] = i.in[1]; }),
             "before anything writes it");
  check_says(fault([](ToyPlan& t, I&, I& i) { t.op(Op::kAdd, {{i.in[1], i.in[1]}, {i.in[2]}, {}, {}, {}}); }),
             "(add): in[0] must not be int32");
  check_says(fault([](ToyPlan& t, I&, I& i) { t.op(Op::kAdd, {{i.in[2], i.in[2]}, {i.in[1]}, {}, {}, {}}); }),
             "(add): out[0] must not be int32");
  check_says(fault([](ToyPlan&, I&, I& i) { i.in[0] = i.in[1]; }), "(experts): in[0] must not be int32");
  check_says(fault([](ToyPlan&, I& route, I&) { route.out[1] = route.out[0]; }), "out[1] must not be int32");
}

TW_TEST_MAIN()
