#include "runtime/core/simulation/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Prices and their sum over any step stay far from overflowing a clock of 64 bits.
constexpr double kMaxSeconds = 1e6;
constexpr double kMinSeconds = 1e-9;
constexpr double kMaxFactor = 1e6;

[[noreturn]] void refuse(const std::string& fault) { throw Error("InvalidOptionError", "[costs] " + fault); }

void check_price(const char* name, double seconds) {
  if (seconds >= 0 && seconds <= kMaxSeconds) return;  // false for NaN
  refuse(concat(name, " must be 0 to ", kMaxSeconds, " seconds, got ", seconds, "; measure again"));
}

// Returns the positions from which each of `tokens` tokens at the end of `context` positions reads, added up.
double pairs_of(double tokens, double context, double window) {
  const double before = context - tokens;  // positions before the first token
  if (window == 0 || context <= window) return tokens * before + tokens * (tokens + 1) / 2;
  // Tokens that see less than a full window come first.
  const double growing = std::clamp(window - before, 0.0, tokens);
  return growing * before + growing * (growing + 1) / 2 + (tokens - growing) * window;
}

// Where rows of a prompt choose what they see, they take this part of all pairs to choose: one row for each
// block of 32, without values.
constexpr double kChoosing = 1.0 / 64;

}  // namespace

ShapeCounter::ShapeCounter(const ModelFacts& facts) : sparse_prefill_(facts.sparse_prefill) {
  const double all =
      static_cast<double>(std::accumulate(facts.block_bytes.begin(), facts.block_bytes.end(), int64_t{0}));
  for (size_t group = 0; group < facts.block_bytes.size(); ++group)
    groups_.push_back({facts.group_windows[group] + facts.sink_tokens(group),
                       static_cast<double>(facts.block_bytes[group]) / all});
}

CostModel::CostModel(const ModelFacts& facts, StepPrices prices)
    : shapes_(facts), prices_(std::move(prices)) {
  const StepPrices& p = prices_;
  if (p.sizes.empty() || p.sizes.size() != p.seconds.size())
    refuse("the table must have a time for each size, and one size at least; measure again");
  if (p.sizes.front() != 1 || !std::ranges::is_sorted(p.sizes, std::less_equal<>()))
    refuse("the sizes of the table must begin at 1 and ascend; measure again");
  for (const double seconds : p.seconds) check_price("a time of the table", seconds);
  if (!std::ranges::is_sorted(p.seconds))
    refuse("the times of the table must not fall while the sizes ascend; measure again");
  if (p.seconds.front() < kMinSeconds) refuse("a step must take a nanosecond at least; measure again");
  check_price("pair_seconds", p.pair_seconds);
  check_price("context_seconds", p.context_seconds);
  check_price("row_seconds", p.row_seconds);
  check_price("sequence_seconds", p.sequence_seconds);
  for (const double factor : p.spread) {
    if (!(factor > 0 && factor <= kMaxFactor))
      refuse(concat("a factor of the spread must be above 0, up to ", kMaxFactor, ", got ", factor,
                    "; measure again"));
  }
}

StepShape ShapeCounter::shape_of(const Step& step) const {
  StepShape shape{step.tokens(), step.seqs(), step.rows()};
  for (int32_t s = 0; s < step.seqs(); ++s) {
    const double context = step.context_lens[static_cast<size_t>(s)];
    const double tokens = context - step.first_position(s);
    const bool chooses = sparse_prefill_ > 0 && !step.prompt_lens.empty() &&
                         context <= step.prompt_lens[static_cast<size_t>(s)];
    for (const Group& group : groups_) {
      const double window = group.window;
      const double seen = window > 0 ? std::min(context, window + tokens - 1) : context;
      double pairs = pairs_of(tokens, context, chooses ? sparse_prefill_ : window);
      if (chooses) pairs += kChoosing * (pairs_of(tokens, context, 0) - pairs);
      shape.pairs += group.share * pairs;
      shape.reads += group.share * seen;
    }
  }
  return shape;
}

double CostModel::seconds(const StepShape& shape, double drawn) const {
  const double sum = table(shape.tokens) + prices_.pair_seconds * shape.pairs +
                     prices_.context_seconds * shape.reads + prices_.row_seconds * shape.rows +
                     prices_.sequence_seconds * shape.sequences;
  const std::vector<double>& spread = prices_.spread;
  return spread.empty() ? sum : sum * spread[static_cast<size_t>(drawn * static_cast<double>(spread.size()))];
}

double CostModel::table(int32_t tokens) const {
  const std::vector<int32_t>& sizes = prices_.sizes;
  const std::vector<double>& seconds = prices_.seconds;
  if (sizes.size() == 1) return seconds[0];
  const auto above = std::ranges::lower_bound(sizes, tokens) - sizes.begin();
  const auto high = static_cast<size_t>(std::clamp<std::ptrdiff_t>(above, 1, std::ssize(sizes) - 1));
  const double slope = (seconds[high] - seconds[high - 1]) / (sizes[high] - sizes[high - 1]);
  return seconds[high - 1] + slope * (tokens - sizes[high - 1]);
}

}  // namespace tensorwright
