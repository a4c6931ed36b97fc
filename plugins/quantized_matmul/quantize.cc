#include "plugins/quantized_matmul/quantize.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "plugins/quantized_matmul/prune.h"

namespace tensorwright {
namespace {

// Quantizes panel by panel: prunes 16 rows, quantizes them as dense ones, and packs what is not 0.
QuantizationError quantize_sparse_panels(tw_quantize_weights_fn kernel, int dtype, int64_t group,
                                         const PackSource& source, void* panels, int64_t stride) {
  const int dense = tw_codec(dtype).bits == 8 ? TW_I8 : TW_I4;
  std::vector<float> rows(static_cast<size_t>(TW_LANES * source.k));
  std::vector<char> panel(static_cast<size_t>(tw_quantized_panel_bytes(dense, source.k, group)));
  const int64_t bytes = source.dtype == TW_BF16 ? 2 : 4;
  QuantizationError total;
  for (int64_t row = 0; row < source.rows; row += TW_LANES) {
    const void* data = static_cast<const char*>(source.data) + row * source.stride * bytes;
    const int64_t count = std::min<int64_t>(TW_LANES, source.rows - row);
    const Pruned pruned = prune_rows({data, source.dtype, source.stride, count, source.k}, rows.data());
    const QuantizationError kept = quantize_panels(
        kernel, dense, group, {rows.data(), TW_F32, source.k, count, source.k}, panel.data(), 0);
    pack_sparse_panel(dtype, source.k, group, panel.data(),
                      static_cast<char*>(panels) + row / TW_LANES * stride);
    total.error += kept.error + pruned.error;
    total.weight += kept.weight + pruned.error;
    total.finite = total.finite && kept.finite && pruned.finite;
  }
  return total;
}

}  // namespace

QuantizationError quantize_panels(tw_quantize_weights_fn kernel, int dtype, int64_t group,
                                  const PackSource& source, void* panels, int64_t stride) {
  if (tw_codec(dtype).sparse) return quantize_sparse_panels(kernel, dtype, group, source, panels, stride);
  std::vector<float> x(static_cast<size_t>(tw_quantized_group(source.k, group) * TW_LANES));
  const int64_t bytes = source.dtype == TW_BF16 ? 2 : 4;
  QuantizationError total;
  int32_t finite = 1;
  tw_quantize_weights_args args = {dtype,    source.dtype, group,         0,
                                   source.k, source.data,  source.stride, panels,
                                   x.data(), &total.error, &total.weight, &finite};
  for (int64_t row = 0; row < source.rows; row += TW_LANES) {
    args.rows = std::min<int64_t>(TW_LANES, source.rows - row);
    args.w = static_cast<const char*>(source.data) + row * source.stride * bytes;
    args.panel = static_cast<char*>(panels) + row / TW_LANES * stride;
    std::memset(args.panel, 0, static_cast<size_t>(tw_quantized_panel_bytes(dtype, source.k, group)));
    kernel(&args);
  }
  total.finite = finite != 0;
  return total;
}

}  // namespace tensorwright
