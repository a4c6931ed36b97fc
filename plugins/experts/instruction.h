// Multiplies rows that are sorted by expert: the rows of each expert by its own matrix, with the kernels of
// plugins/matmul, quantized_matmul or weight_only_matmul, whose results for a row do not depend on the other
// rows.
#ifndef TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_H_
#define TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_H_

#include <cstdint>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/matmul/kernel.h"
#include "plugins/matmul/tiling.h"
#include "plugins/quantized_matmul/kernel.h"
#include "plugins/weight_only_matmul/kernel.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/plan/plan_format.h"

namespace tensorwright {

inline int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows in scratch, one after the other, each padded to 64 bytes.
struct PaddedRows {
  char* data;
  int dtype;
  int64_t cols;

  int64_t row_bytes() const { return cols * static_cast<int64_t>(tw_dtype_bytes(dtype)); }
  int64_t stride_bytes() const { return align64(row_bytes()); }
  int64_t stride() const { return stride_bytes() / static_cast<int64_t>(tw_dtype_bytes(dtype)); }
  char* at(int64_t row) const { return data + row * stride_bytes(); }
};

class GroupedProduct {
 public:
  // w: the matrices of all experts, one after the other, at `data`. n: output columns of each. x_dtype:
  // TW_F32 or TW_BF16.
  GroupedProduct(const WeightRecord& w, const char* data, int32_t experts, int32_t n, int32_t epilogue,
                 int x_dtype, Isa isa);

  // Returns the bytes of scratch that run() needs for that many rows.
  int64_t scratch_bytes(int64_t rows) const;

  // starts: for each expert the first of its rows, and the end. The tiles of all experts are one parallel
  // region.
  void run(ThreadTeam& team, const std::vector<int32_t>& starts, const PaddedRows& x, const PaddedRows& y,
           char* scratch);

  int32_t k() const { return k_; }
  // Returns the columns of a result without an epilogue, gate and up each padded to whole panels.
  int32_t wide_cols() const { return panels_ * TW_LANES; }
  int64_t matrix_bytes() const { return panels_ * panel_bytes_; }
  // Returns the arithmetic of one row.
  int64_t operations() const { return int64_t{2} * panels_ * TW_LANES * k_; }

 private:
  // The rows of x as the quantized kernels read them: [rows][row_] int8, then [groups_][rows] scales and as
  // many sums.
  struct Quantized {
    int8_t* values;
    float* scales;
    int32_t* sums;
  };

  // Returns whether rows of x are rounded to int8 before a product.
  bool rounds_x() const { return quantized_kernel_ != nullptr; }
  Quantized quantized(char* scratch, int64_t rows) const;
  void quantize(ThreadTeam& team, const PaddedRows& x, int32_t rows, const Quantized& to) const;
  void run_tile(const std::vector<int32_t>& starts, size_t expert, int task, const PaddedRows& x,
                const PaddedRows& y, const Quantized& q) const;

  const char* data_;
  int32_t k_, n_, panels_, epilogue_, group_;
  int w_dtype_;
  int64_t panel_bytes_;
  int64_t groups_, row_;  // groups and int8 elements of a quantized row of x
  tw_matmul_fn kernel_ = nullptr;
  tw_quantize_rows_fn quantize_ = nullptr;
  tw_quantized_matmul_fn quantized_kernel_ = nullptr;
  tw_weight_only_matmul_fn weight_only_kernel_ = nullptr;
  std::vector<MatmulTiling> tilings_;  // of each expert that has rows
  std::vector<int> tasks_;             // the first task of each expert, and the end
};

struct OpContext;

// Makes the product of one of an instruction's weights, which holds the matrices of all experts.
GroupedProduct make_product(const OpContext& context, int32_t weight, int32_t experts, int32_t n,
                            int32_t epilogue, int x_dtype);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_H_
