// The plan reader on recurrences, and on the states that they carry.
#include "plugins/common/kernel_types.h"
#include "tests/cpp/plan_faults.h"

using namespace tensorwright;
using tw_test::check_says;
using tw_test::fault_of;
using tw_test::ToyPlan;

namespace {

constexpr uint32_t kHeads = 4, kGroups = 2, kStates = 3;

// Adds a convolution and a scan that read the stream, and whose results nobody uses.
void add_recurrences(ToyPlan& t) {
  constexpr auto kTokens = BufferKind::kTokens;
  const int32_t x = t.buffer(kTokens, 20), dt = t.buffer(kTokens, kHeads);
  const int32_t row = t.buffer(kTokens, 20), y = t.buffer(kTokens, 8);
  t.states = {{256}, {128}, {384}};
  const int32_t b = t.buffer(kTokens, kStates), wide = t.buffer(kTokens, 20), mixed = t.buffer(kTokens, 8);
  t.op(Op::kMatmul,
       {{t.instructions[2].in[0]}, {b}, {t.matrix(kStates, ToyPlan::kHidden)}, {0, kStates}, {}});
  t.op(Op::kMatmul, {{t.instructions[2].in[0]}, {x}, {t.matrix(20, ToyPlan::kHidden)}, {0, 20}, {}});
  t.op(Op::kMatmul, {{t.instructions[2].in[0]}, {dt}, {t.matrix(kHeads, ToyPlan::kHidden)}, {0, kHeads}, {}});
  t.op(Op::kCarriedConv, {{x}, {row}, {t.vector(60), t.vector(20)}, {0, 1}, {}});
  const int32_t change = t.buffer(kTokens, 8);
  t.op(Op::kCarriedDeltaRule, {{row, dt, dt}, {change}, {t.vector(kHeads)}, {1, kGroups, kHeads, 2}, {1.0f}});
  t.op(Op::kCarriedSelectiveScan, {{x, x, b, b}, {wide}, {t.vector(100)}, {2, kStates}, {}});
  t.op(Op::kCarriedRgLru, {{x, row, x}, {wide}, {t.vector(60)}, {2}, {}});
  t.op(Op::kCarriedLinearAttention, {{x}, {mixed}, {t.vector(2)}, {0, 2, 3}, {}});
  t.op(Op::kCarriedScan, {{row, dt}, {y}, {t.vector(12)}, {1, kHeads, kGroups, kStates}, {0.0f, 1.0f}});
}

template <typename Damage>
std::string fault(Damage&& damage) {
  return fault_of([&](ToyPlan& t) {
    add_recurrences(t);
    damage(t, t.instructions[t.instructions.size() - 6], t.instructions.back());
  });
}

using I = Instruction;

}  // namespace

TW_TEST(recurrences_are_taken) {
  TW_CHECK_EQ(fault([](ToyPlan&, I&, I&) {}), std::string());
}

TW_TEST(convolution_faults_are_named) {
  check_says(fault([](ToyPlan&, I& i, I&) { i.ints[0] = 3; }), "(carried_conv): state must be below 3, is 3");
  check_says(fault([](ToyPlan&, I& i, I&) { i.ints[1] = 2; }), "activation must be below 2, is 2");
  check_says(fault([](ToyPlan& t, I&, I&) { t.states[0].bytes = 128; }),
             "the state must have 160 bytes, has 128");
  check_says(fault([](ToyPlan& t, I& i, I&) { i.weight[0] = t.vector(61); }),
             "w must be a raw vector of 60, is layout 0 of 1 x 61");
  check_says(fault([](ToyPlan& t, I& i, I&) { i.weight[0] = t.vector(340); }),
             "w must have 1 to 16 rows of 20");
  check_says(fault([](ToyPlan&, I& i, I&) { i.weight[1] = i.weight[0]; }), "bias must be a raw vector of 20");
}

TW_TEST(scan_faults_are_named) {
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[0] = -1; }),
             "(carried_scan): state must be below 3, is -1");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[1] = 3; }), "heads must be a multiple of groups");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[2] = 0; }), "heads must be a multiple of groups");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[3] = 0; }), "states must be 1 to");
  check_says(fault([](ToyPlan&, I&, I& i) { i.ints[3] = 4; }), "row must have 24 cols, has 20");
  check_says(fault([](ToyPlan&, I&, I& i) { i.floats[1] = -1.0f; }), "dt_min must be at most dt_max");
  check_says(fault([](ToyPlan&, I&, I& i) { i.in[1] = i.in[0]; }), "dt must have 4 cols, has 20");
  check_says(fault([](ToyPlan& t, I&, I&) { t.states[1].bytes = 64; }),
             "the state must have 96 bytes, has 64");
  check_says(fault([](ToyPlan& t, I&, I& i) { i.weight[0] = t.vector(8); }), "w must be a raw vector of 12");
}

TW_TEST(delta_rule_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault([&](ToyPlan& t, I&, I&) { damage(t, t.instructions[t.instructions.size() - 5]); });
  };
  check_says(damaged([](ToyPlan&, I& i) { i.ints[0] = 3; }),
             "(carried_delta_rule): state must be below 3, is 3");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[1] = 3; }), "heads must be a multiple of key_heads");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[3] = 0; }), "width must be 1 to");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[3] = 3; }), "y must have 12 cols, has 8");
  check_says(damaged([](ToyPlan&, I& i) { i.in[0] = i.in[1]; }),
             "row must hold q and k of 1 to 1024 elements");
  check_says(damaged([](ToyPlan&, I& i) { i.in[2] = i.in[0]; }), "beta must have 4 cols, has 20");
  check_says(damaged([](ToyPlan&, I& i) { i.in[1] = i.in[0]; }), "dt must have 4 cols, or 12, has 20");
  check_says(damaged([](ToyPlan& t, I&) { t.states[1].bytes = 64; }), "the state must have 96 bytes, has 64");
  check_says(damaged([](ToyPlan& t, I& i) { i.weight[0] = t.vector(8); }), "w must be a raw vector of 4");
}

TW_TEST(selective_scan_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault([&](ToyPlan& t, I&, I&) { damage(t, t.instructions[t.instructions.size() - 4]); });
  };
  check_says(damaged([](ToyPlan&, I& i) { i.ints[0] = 3; }),
             "(carried_selective_scan): state must be below 3, is 3");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[1] = 0; }), "states must be 1 to");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[1] = 4; }), "b must have 4 cols, has 3");
  check_says(damaged([](ToyPlan&, I& i) { i.in[1] = i.in[2]; }), "dt must have 20 cols, has 3");
  check_says(damaged([](ToyPlan&, I& i) { i.in[3] = i.in[0]; }), "c must have 3 cols, has 20");
  check_says(damaged([](ToyPlan& t, I&) { t.states[2].bytes = 320; }),
             "the state must have 384 bytes, has 320");
  check_says(damaged([](ToyPlan& t, I& i) { i.weight[0] = t.vector(60); }),
             "w must be a raw vector of 100, is layout 0 of 1 x 60");
}

TW_TEST(rg_lru_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault([&](ToyPlan& t, I&, I&) { damage(t, t.instructions[t.instructions.size() - 3]); });
  };
  check_says(damaged([](ToyPlan&, I& i) { i.ints[0] = 3; }), "(carried_rg_lru): state must be below 3, is 3");
  check_says(damaged([](ToyPlan& t, I& i) { i.in[1] = t.instructions.back().in[1]; }),
             "input must have 20 cols, has 4");
  check_says(damaged([](ToyPlan& t, I& i) { i.in[2] = t.instructions.back().in[1]; }),
             "decay must have 20 cols, has 4");
  check_says(damaged([](ToyPlan& t, I& i) {
               t.states.push_back({64});
               i.ints[0] = 3;
             }),
             "the state must have 80 bytes, has 64");
  check_says(damaged([](ToyPlan& t, I& i) { i.weight[0] = t.vector(20); }),
             "w must be a raw vector of 60, is layout 0 of 1 x 20");
}

TW_TEST(linear_attention_faults_are_named) {
  const auto damaged = [](auto&& damage) {
    return fault([&](ToyPlan& t, I&, I&) { damage(t, t.instructions[t.instructions.size() - 2]); });
  };
  check_says(damaged([](ToyPlan&, I& i) { i.ints[0] = 3; }),
             "(carried_linear_attention): state must be below 3, is 3");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[1] = 0; }), "heads must be 1 to");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[1] = 3; }), "y must have a multiple of 3 cols, has 8");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[2] = 0; }), "states must be 1 to");
  check_says(damaged([](ToyPlan&, I& i) { i.ints[2] = 4; }), "row must have 24 cols, has 20");
  check_says(damaged([](ToyPlan& t, I& i) { i.weight[0] = t.vector(3); }), "w must be a raw vector of 2");
  check_says(damaged([](ToyPlan& t, I& i) {
               t.states.push_back({64});
               i.ints[0] = 3;
             }),
             "the state must have 96 bytes, has 64");
}

TW_TEST_MAIN()
