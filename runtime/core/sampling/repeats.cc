#include "runtime/core/sampling/repeats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tensorwright {

namespace {

// A penalty is at most this, so that a logit stays finite: DRY forbids nothing.
constexpr double kMaxDryPenalty = 1e30;

// Returns how many of the last tokens may be followed back: those behind the last breaker.
int32_t behind_last_breaker(const DryBreakers& breakers, std::span<const int32_t> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  for (int32_t back = 0; back < count; ++back) {
    const int32_t tail = breakers.tail_at(tokens, static_cast<size_t>(count - 1 - back));
    if (tail >= 0) return back - tail;
  }
  return count;
}

}  // namespace

// The Z function of the tokens read backwards (Gusfield, "Algorithms on Strings, Trees and Sequences", 1.4).
void Repeats::match_end(std::span<const int32_t> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  const auto back = [&](int32_t place) { return tokens[static_cast<size_t>(count - 1 - place)]; };
  lengths_.assign(tokens.size(), 0);
  int32_t left = 0, right = 0;  // [left, right) is the match found that reaches furthest
  for (int32_t k = 1; k < count; ++k) {
    int32_t& length = lengths_[static_cast<size_t>(k)];
    if (k < right) length = std::min(right - k, lengths_[static_cast<size_t>(k - left)]);
    while (k + length < count && back(length) == back(k + length)) ++length;
    if (k + length > right) left = k, right = k + length;
  }
}

void Repeats::penalize(const Sampling& s, std::span<const int32_t> tokens, std::span<float> row) {
  const int32_t window =
      s.dry_penalty_last_n < 0 ? kMaxDryWindow : std::min(s.dry_penalty_last_n, kMaxDryWindow);
  const std::span<const int32_t> seen = tokens.last(std::min(tokens.size(), static_cast<size_t>(window)));
  const auto count = static_cast<int32_t>(seen.size());
  if (count <= s.dry_allowed_length) return;
  const int32_t limit = s.dry_breakers ? behind_last_breaker(*s.dry_breakers, seen) : count;
  if (limit < s.dry_allowed_length) return;
  match_end(seen);
  longest_.resize(row.size(), 0);
  const auto next = [&](int32_t k) { return static_cast<size_t>(seen[static_cast<size_t>(count - k)]); };
  for (int32_t k = 1; k < count; ++k) {
    const int32_t length = std::min(lengths_[static_cast<size_t>(k)], limit);
    if (length >= s.dry_allowed_length) longest_[next(k)] = std::max(longest_[next(k)], length);
  }
  for (int32_t k = 1; k < count; ++k) {
    const size_t token = next(k);
    if (longest_[token] == 0) continue;
    const int32_t length = std::exchange(longest_[token], 0);
    if (s.dry_breakers && s.dry_breakers->is_breaker(static_cast<int32_t>(token))) continue;
    const double penalty = s.dry_multiplier * std::pow(s.dry_base, length - s.dry_allowed_length);
    row[token] -= static_cast<float>(std::min(penalty, kMaxDryPenalty));
  }
}

void Repeats::ban_ngrams(int32_t n, std::span<const int32_t> tokens, std::span<float> row) {
  const auto count = static_cast<int32_t>(tokens.size());
  if (n > count) return;
  match_end(tokens);
  // Of the n tokens, the first n - 1 stand before the place k, and the last one at it.
  for (int32_t k = 1; k <= count; ++k) {
    const int32_t length = k < count ? lengths_[static_cast<size_t>(k)] : 0;
    if (length < n - 1) continue;
    row[static_cast<size_t>(tokens[static_cast<size_t>(count - k)])] =
        -std::numeric_limits<float>::infinity();
  }
}

}  // namespace tensorwright
