#include "runtime/core/sampling/row_draw.h"

#include "runtime/core/base/philox.h"

namespace tensorwright {

RowDraw row_draw(const Sampling& sampling, uint64_t seed, int64_t position, const History& history) {
  const bool only_token = sampling.logprobs < 0 && !sampling.beams() && !sampling.pools();
  const bool changed =
      sampling.guided || sampling.processor || LogitProcessors::change_row(sampling, history, {});
  const bool narrowed = sampling.temperature > 0 && (sampling.typical_p < 1 || sampling.xtc_probability > 0);
  if (!only_token || changed || narrowed) return {};
  RowDraw draw{true, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p};
  if (sampling.temperature > 0) draw.uniform = philox_uniform(seed, static_cast<uint64_t>(position));
  return draw;
}

}  // namespace tensorwright
