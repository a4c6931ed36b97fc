#include "plugins/quantized_matmul/quantize.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tensorwright {

QuantizationError quantize_panels(tw_quantize_weights_fn kernel, int dtype, int64_t group,
                                  const PackSource& source, void* panels, int64_t stride) {
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
