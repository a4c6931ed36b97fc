#include "runtime/core/sampling/logit_processors.h"

#include <algorithm>
#include <limits>

#include "runtime/core/base/error.h"
#include "runtime/core/rows/logit_row.h"

namespace tensorwright {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

bool too_short(const Sampling& s, const History& history) {
  return static_cast<int32_t>(history.output().size()) < s.min_tokens;
}

bool changes_row(const Sampling& s, const History& history) {
  return !s.logit_bias.empty() || s.repetition_penalty != 1 || s.frequency_penalty != 0 ||
         s.presence_penalty != 0 || !s.bad_words.empty() || s.no_repeat_ngram_size > 0 ||
         Repeats::penalizes(s) || too_short(s, history);
}

// Returns whether a logit above -inf is left. It looks part by part, because mostly the first part has one.
bool any_left(std::span<const float> row) {
  constexpr size_t kPart = 2048;
  for (size_t i = 0; i < row.size(); i += kPart) {
    if (count_greater(row.subspan(i, std::min(kPart, row.size() - i)), kLowest) > 0) return true;
  }
  return false;
}

}  // namespace

bool LogitProcessors::change_row(const Sampling& sampling, const History& history,
                                 std::span<const uint32_t> mask) {
  return !mask.empty() || changes_row(sampling, history);
}

std::span<const float> LogitProcessors::apply(std::span<const float> logits, const Sampling& sampling,
                                              const History& history, std::span<const uint32_t> mask) {
  const bool changes = changes_row(sampling, history);
  if (!changes && mask.empty()) return logits;
  copy(logits, mask);
  if (changes) change(sampling, history);
  if (!any_left(row_)) {
    throw Error("InvalidRequestError",
                "[sampler] logit_bias, no_repeat_ngram_size, bad_words, min_tokens and guided decoding must "
                "leave a token "
                "to sample, they left none; forbid less");
  }
  return row_;
}

// Copies the row and applies the mask first: -inf stays -inf in all the other steps.
void LogitProcessors::copy(std::span<const float> logits, std::span<const uint32_t> mask) {
  if (mask.empty()) {
    row_.assign(logits.begin(), logits.end());
    return;
  }
  row_.resize(logits.size());
  mask_row(logits, mask, row_.data());
}

void LogitProcessors::change(const Sampling& sampling, const History& history) {
  counts_.resize(row_.size(), 0);
  for (auto [token, bias] : sampling.logit_bias) row_[token] += static_cast<float>(bias);
  if (sampling.repetition_penalty != 1) repetition(sampling, history);
  if (sampling.frequency_penalty != 0 || sampling.presence_penalty != 0) occurrences(sampling, history);
  if (Repeats::penalizes(sampling)) repeats_.penalize(sampling, history.tokens, row_);
  if (sampling.no_repeat_ngram_size > 0)
    repeats_.ban_ngrams(sampling.no_repeat_ngram_size, history.tokens, row_);
  ban(sampling, history);
}

void LogitProcessors::repetition(const Sampling& sampling, const History& history) {
  float penalty = static_cast<float>(sampling.repetition_penalty);
  for (int32_t token : history.tokens) {
    if (counts_[token]++ > 0) continue;  // a token is penalized once, however often it occurs
    float& x = row_[token];
    x = x < 0 ? x * penalty : x / penalty;
  }
  for (int32_t token : history.tokens) counts_[token] = 0;
}

void LogitProcessors::occurrences(const Sampling& sampling, const History& history) {
  float frequency = static_cast<float>(sampling.frequency_penalty);
  float presence = static_cast<float>(sampling.presence_penalty);
  for (int32_t token : history.output()) ++counts_[token];
  for (int32_t token : history.output()) {
    if (counts_[token] == 0) continue;  // done at the token's first occurrence
    row_[token] -= frequency * static_cast<float>(counts_[token]);
    row_[token] -= presence;
    counts_[token] = 0;
  }
}

void LogitProcessors::ban(const Sampling& sampling, const History& history) {
  sampling.bad_words.for_each_last(history.tokens, [&](int32_t token) { row_[token] = kLowest; });
  if (!too_short(sampling, history)) return;
  for (int32_t token : sampling.stop_token_ids.ids()) row_[token] = kLowest;
  if (sampling.ignore_eos) return;
  for (int32_t token : sampling.eos_token_ids.ids()) row_[token] = kLowest;
}

}  // namespace tensorwright
