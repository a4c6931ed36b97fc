#include "plugins/experts/instruction_pairs.h"

#include <algorithm>
#include <limits>

#include "plugins/experts/instruction.h"
#include "plugins/quantized_matmul/layout.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

SortedPairs::SortedPairs(const BufferRef& index, int32_t experts, int32_t identities, int32_t first,
                         int32_t total)
    : index_(index),
      experts_(experts),
      identities_(identities),
      first_(first),
      total_(total > 0 ? total : experts + identities),
      starts_(static_cast<size_t>(experts) + (identities > 0 ? 2 : 1)) {}

int64_t SortedPairs::reserve(const StepLimits& limits) {
  const int64_t rows = index_.kind == static_cast<int>(BufferKind::kTokens) ? limits.tokens : limits.rows;
  const int64_t pairs = rows * index_.cols;
  if (pairs > std::numeric_limits<int32_t>::max()) {
    throw Error("OutOfMemoryError", concat("experts: ", rows, " tokens of ", index_.cols,
                                           " experts each are too many for one step; lower max_num_tokens"));
  }
  pairs_.resize(static_cast<size_t>(pairs));
  places_.resize(pairs_.size());
  return pairs;
}

void SortedPairs::sort(const StepView& view) {
  std::fill(starts_.begin(), starts_.end(), 0);
  const auto each = [&](auto&& body) {
    for (int32_t row = 0; row < index_.rows(view); ++row) {
      const auto* index = reinterpret_cast<const int32_t*>(index_.at(view, row));
      for (int32_t slot = 0; slot < slots(); ++slot) body(index[slot], row * slots() + slot);
    }
  };
  const auto here = [&](int32_t expert) {
    return expert >= first_ && expert < first_ + experts_ + identities_;
  };
  each([&](int32_t expert, int32_t) {
    if (expert < 0 || expert >= total_) {
      throw Error("EngineError", concat("experts: index must be 0 to ", total_ - 1, ", is ", expert,
                                        "; rebuild the engine with build-engine"));
    }
    if (here(expert)) ++starts_[static_cast<size_t>(std::min(expert - first_, experts_)) + 1];
  });
  taken_experts_ =
      std::count_if(starts_.begin() + 1, starts_.begin() + 1 + experts_, [](int32_t n) { return n > 0; });
  for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
  each([&](int32_t expert, int32_t pair) {
    if (!here(expert)) {
      places_[static_cast<size_t>(pair)] = -1;
      return;
    }
    const int32_t place = starts_[static_cast<size_t>(std::min(expert - first_, experts_))]++;
    pairs_[static_cast<size_t>(place)] = pair;
    places_[static_cast<size_t>(pair)] = place;
  });
  // Each start has moved to the start of the next expert.
  std::copy_backward(starts_.begin(), starts_.end() - 1, starts_.end());
  starts_[0] = 0;
}

int32_t SortedPairs::expert(int32_t place) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), place);
  return static_cast<int32_t>(after - starts_.begin()) - 1;
}

void add_slots(const SortedPairs& pairs, const PaddedRows& results, const float* weights, const float* bias,
               int32_t row, float* y, int32_t cols) {
  std::fill(y, y + cols, 0.0f);
  for (int32_t slot = 0; slot < pairs.slots(); ++slot) {
    const int32_t place = pairs.place(row, slot);
    if (place < 0) continue;
    const auto* result = reinterpret_cast<const float*>(results.at(place));
    const float weight = weights ? weights[slot] : 1.0f;
    if (!bias) {
      for (int32_t c = 0; c < cols; ++c) y[c] += weight * result[c];
      continue;
    }
    const float* added = bias + int64_t{pairs.expert(place)} * cols;
    for (int32_t c = 0; c < cols; ++c) y[c] += weight * (result[c] + added[c]);
  }
}

void check_index(const InstructionCheck& c, int32_t identities, int32_t first, int32_t total) {
  const int32_t experts = c.instruction.ints[0];
  const BufferRecord* index = c.in(1);
  c.require_same_kind();
  c.require(experts >= 1 && experts <= (1 << 16), "experts must be 1 to 65536, is ", experts);
  c.require(identities >= 0 && identities <= (1 << 16), "identities must be 0 to 65536, is ", identities);
  c.require(index->dtype == TW_I32, "index must be int32, has dtype ", index->dtype);
  const bool whole = first == 0 && total == 0;
  c.require(whole || (identities == 0 && first >= 0 && total <= (1 << 16) && first <= total - experts),
            "the experts from ", first, " on must lie among all ", total, " and have no identities");
  const int32_t all = whole ? experts + identities : total;
  c.require(index->cols <= static_cast<uint32_t>(all), "index must have at most ", all, " cols, has ",
            index->cols);
  c.require_float32("weights", c.in(2));
  c.require_cols("weights", c.in(2), index->cols);
}

void check_expert_matrices(const InstructionCheck& c, const char* what, int weight, uint64_t panels,
                           uint64_t k) {
  const WeightRecord* w = c.weight(weight);
  if (!is_quantized(*w)) {
    c.require_panels(what, w, panels, k);
    c.require(w->dtype == c.in(0)->dtype, what, " must have x's dtype ", c.in(0)->dtype, ", has ", w->dtype);
    return;
  }
  c.require_quantized(what, w, panels, k);
  c.require_sums(what, w);
}

}  // namespace tensorwright
