// The plan reader on quantized matrices: their layout, groups, sizes and the instruction that takes them.
#include <algorithm>

#include "plugins/quantized_matmul/layout.h"
#include "tests/cpp/plan_faults.h"

using namespace tensorwright;
using tw_test::check_says;
using tw_test::fault_of;
using tw_test::ToyPlan;

namespace {

// The toy plan with the o projection (instruction 6, weight 5) quantized.
Instruction& quantize_projection(ToyPlan& t, uint32_t dtype, uint32_t group) {
  Instruction& i = t.instructions[6];
  i.op = static_cast<uint32_t>(Op::kQuantizedMatmul);
  WeightRecord& w = t.weights[static_cast<size_t>(i.weight[0])];
  w.dtype = dtype, w.group = group, w.layout = static_cast<uint32_t>(WeightLayout::kQuantized);
  w.bytes =
      w.n / TW_LANES * static_cast<uint64_t>(tw_quantized_panel_bytes(static_cast<int>(dtype), w.k, group));
  t.data.resize(std::max<size_t>(t.data.size(), w.offset + w.bytes));
  t.header.weights_bytes = t.data.size();
  return i;
}

}  // namespace

TW_TEST(quantized_matrices_are_taken) {
  for (uint32_t group : {0u, 32u, 64u, 128u}) {
    TW_CHECK_EQ(fault_of([=](ToyPlan& t) { quantize_projection(t, TW_I8, group); }), std::string());
    if (group == 0) continue;
    for (int dtype : {int{TW_I4}, int{TW_U8}, int{TW_U4}, int{TW_I8_F16}, int{TW_I4_F16}, int{TW_U8_F16},
                      int{TW_U4_F16}, int{TW_I3}, int{TW_I2}, int{TW_U3}, int{TW_U2}, int{TW_I3_F16},
                      int{TW_I2_F16}, int{TW_U3_F16}, int{TW_U2_F16}, int{TW_I8_SPARSE}, int{TW_I4_SPARSE}})
      TW_CHECK_EQ(fault_of([=](ToyPlan& t) { quantize_projection(t, static_cast<uint32_t>(dtype), group); }),
                  std::string());
  }
  TW_CHECK_EQ(fault_of([=](ToyPlan& t) { quantize_projection(t, TW_MXFP4, 32); }), std::string());
}

TW_TEST(quantized_faults_are_named) {
  const auto fault = [](uint32_t dtype, uint32_t group, auto&& damage) {
    return fault_of([&](ToyPlan& t) {
      Instruction& i = quantize_projection(t, dtype, group);
      damage(t, i, t.weights[static_cast<size_t>(i.weight[0])]);
    });
  };
  using W = WeightRecord;
  using I = Instruction;
  check_says(fault(TW_I4, 32, [](auto&, I&, W& w) { w.bytes += 64; }), "bytes must be 640, is 704");
  check_says(fault(TW_I8, 0, [](auto&, I&, W& w) { w.bytes -= 1; }), "bytes must be 640, is 639");
  check_says(fault(TW_I4, 32, [](auto&, I&, W& w) { w.group = 0; }),
             "group 0 is unknown for layout 2 and dtype 4");
  check_says(fault(TW_U8, 32, [](auto&, I&, W& w) { w.group = 0; }),
             "group 0 is unknown for layout 2 and dtype 6");
  check_says(fault(TW_U2_F16, 32, [](auto&, I&, W& w) { w.dtype = 99; }), "dtype 99 is unknown for layout 2");
  check_says(fault(TW_I8, 32, [](auto&, I&, W& w) { w.layout = 3; }),
             "(quantized_matmul): w must be of layout 2, is of layout 3");
  check_says(fault(TW_W4A8, 32, [](auto&, I&, W& w) { w.layout = 3; }), "dtype 21 is unknown for layout 3");
  check_says(fault(TW_I4_SPARSE, 64, [](auto&, I&, W& w) { w.layout = 3; }),
             "dtype 23 is unknown for layout 3");
  check_says(fault(TW_MXFP4, 32, [](auto&, I&, W& w) { w.group = 64; }),
             "group 64 is unknown for layout 2 and dtype 5");
  check_says(fault(TW_I8, 32, [](auto&, I&, W& w) { w.group = 16; }),
             "group 16 is unknown for layout 2 and dtype 3");
  check_says(fault(TW_I8, 32, [](auto&, I&, W& w) { w.dtype = TW_BF16; }), "dtype 1 is unknown for layout 2");
  check_says(fault(TW_I8, 32, [](auto&, I&, W& w) { w.layout = 1; }), "dtype 3 is unknown for layout 1");
  check_says(fault(TW_I8, 32, [](auto&, I&, W& w) { w.n -= 1; }), "n must be a multiple of 16");
  check_says(fault(TW_I8, 32, [](auto&, I& i, W&) { i.op = static_cast<uint32_t>(Op::kMatmul); }),
             "instruction 6 (matmul): w must be panels of 32 x 16, is layout 2");
  check_says(
      fault(TW_I8, 32, [](auto&, I& i, W&) { i.weight[0] = 0; }),
      "instruction 6 (quantized_matmul): w must be quantized panels of 32 x 16, is layout 1 of 48 x 20");
  check_says(fault(TW_I8, 32, [](auto&, I& i, W&) { i.ints[0] = 9; }), "epilogue must be 0 to 4, is 9");
  check_says(fault_of([](ToyPlan& t) { t.weights[0].group = 32; }),
             "weight 0: group 32 is unknown for layout 1 and dtype 0");
}

// x is at most 127 and w at least -128, so a sum over 132104 of their products fits int32, and one more might
// not.
TW_TEST(whole_rows_are_no_longer_than_their_sums_are_exact) {
  const auto fault = [](uint32_t half, uint32_t group, int dtype = TW_I8) {
    return fault_of([=](ToyPlan& t) {
      const uint32_t k = 2 * half;
      const int32_t x = t.buffer(BufferKind::kTokens, k), y = t.buffer(BufferKind::kTokens, 16);
      t.op(Op::kRotaryTable, {{}, {x}, {t.vector(half)}, {}, {1.0f}});
      const auto bytes = static_cast<uint64_t>(tw_quantized_panel_bytes(dtype, k, group));
      const uint64_t offset = (t.data.size() + 63) / 64 * 64;
      t.data.resize(offset + bytes);
      t.weights.push_back({static_cast<uint32_t>(dtype), static_cast<uint32_t>(WeightLayout::kQuantized), 16,
                           k, offset, bytes, 0, group});
      const auto w = static_cast<int32_t>(t.weights.size()) - 1;
      t.op(Op::kQuantizedMatmul, {{x}, {y}, {w}, {0, 16}, {}});
    });
  };
  TW_CHECK_EQ(int{TW_MAX_WHOLE_ROW}, 132104);
  TW_CHECK_EQ(fault(TW_MAX_WHOLE_ROW / 2, 0), std::string());
  TW_CHECK_EQ(fault(TW_MAX_WHOLE_ROW / 2 + 1, 128), std::string());
  check_says(
      fault(TW_MAX_WHOLE_ROW / 2 + 1, 0),
      "instruction 14 (quantized_matmul): w of whole rows must have at most 132104 columns, has 132106");
  TW_CHECK_EQ(fault(TW_MAX_WHOLE_ROW / 2, 128, TW_W4A8), std::string());
  check_says(fault(TW_MAX_WHOLE_ROW / 2 + 1, 128, TW_W4A8),
             "w of whole rows must have at most 132104 columns");
}

TW_TEST_MAIN()
