#include "runtime/bindings/quantize_weights.h"

#include <string>

namespace nb = nanobind;

namespace tensorwright {

void require_quantized_format(int dtype, int64_t group, int64_t k) {
  require(tw_codec(dtype).dtype != 0, "dtype must be one of quantized weights, is " + std::to_string(dtype));
  require(tw_quantizes(dtype, group), "group must be 32, 64, 128, or 0 (whole rows) with int8 and fp8, is " +
                                          std::to_string(group) + " with dtype " + std::to_string(dtype));
  require(!tw_sums_whole_rows(dtype, group) || !tw_multiplies_integers(dtype) || k <= TW_MAX_WHOLE_ROW,
          "whole rows must have at most " + std::to_string(TW_MAX_WHOLE_ROW) + " columns, have " +
              std::to_string(k));
}

QuantizationSums quantize(tw_quantize_weights_fn kernel, int dtype, int64_t group, const SourceRows& source,
                          const Bytes& out, int64_t first, int64_t step) {
  const auto rows = static_cast<int64_t>(source.shape(0)), k = static_cast<int64_t>(source.shape(1));
  require_quantized_format(dtype, group, k);
  require_contiguous_rows(source, "source");
  const int64_t bytes = tw_quantized_panel_bytes(dtype, k, group);
  require(k > 0 && first >= 0 && step >= 1, "k and step must be positive, first not negative");
  const int64_t needed = rows == 0 ? 0 : ((panels_of(rows) - 1) * step + first + 1) * bytes;
  require(static_cast<int64_t>(out.size()) >= needed, "out must have " + std::to_string(needed) + " bytes");
  const PackSource from = {source.data(), float_dtype(source, "source"), source.stride(0), rows, k};
  nb::gil_scoped_release release;
  const QuantizationError e =
      quantize_panels(kernel, dtype, group, from, out.data() + first * bytes, step * bytes);
  return {e.error, e.weight, e.finite};
}

}  // namespace tensorwright
