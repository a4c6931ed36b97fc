#include "runtime/core/scheduler/request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/core/base/error.h"
#include "runtime/core/cache/prefix_salt.h"

namespace tensorwright {

namespace {

// Below this, logits divided by the temperature leave the range of fp32.
constexpr double kMinTemperature = 1e-6;
constexpr double kMaxTimeout = 1e7;  // seconds; far from overflowing a clock
// Within these bounds, penalties and biases keep ordinary logits finite.
constexpr double kMaxPenalty = 100, kMaxBias = 1e6;

[[noreturn]] void refuse(const char* type, const std::string& must, const std::string& came,
                         const std::string& remedy) {
  throw Error(type, "[request] " + must + ", got " + came + "; " + remedy);
}

void validate_tokens(const char* what, const std::vector<int32_t>& tokens, int32_t vocab_size) {
  for (int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    refuse("InvalidRequestError", std::string(what) + " must be in [0, " + std::to_string(vocab_size) + ")",
           std::to_string(token), "use the engine's own tokenizer");
  }
}

void validate_range(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return;
  refuse("InvalidRequestError",
         std::string(what) + " must be in [" + std::to_string(low) + ", " + std::to_string(high) + "]",
         std::to_string(value), "choose one in range");
}

// Validates the parameters that logit_processors.h applies.
void validate_processors(const Sampling& s, const ModelFacts& facts) {
  validate_range("repetition_penalty", s.repetition_penalty, 1 / kMaxPenalty, kMaxPenalty);
  validate_range("presence_penalty", s.presence_penalty, -kMaxPenalty, kMaxPenalty);
  validate_range("frequency_penalty", s.frequency_penalty, -kMaxPenalty, kMaxPenalty);
  validate_range("dry_multiplier", s.dry_multiplier, 0, kMaxPenalty);
  validate_range("dry_base", s.dry_base, 1, kMaxPenalty);
  validate_range("dry_allowed_length", s.dry_allowed_length, 1, INT32_MAX);
  validate_range("dry_penalty_last_n", s.dry_penalty_last_n, -1, INT32_MAX);
  validate_range("no_repeat_ngram_size", s.no_repeat_ngram_size, 0, INT32_MAX);
  if (s.dry_breakers) {
    const auto [largest, smallest] = s.dry_breakers->bounds();
    validate_tokens("tokens of dry_breakers", {std::max(largest, 0), smallest}, facts.vocab_size);
  }
  if (s.min_tokens < 0 || s.min_tokens > s.max_tokens) {
    refuse("InvalidRequestError",
           "min_tokens must be in [0, max_tokens], which is " + std::to_string(s.max_tokens),
           std::to_string(s.min_tokens), "lower it");
  }
  for (auto [token, bias] : s.logit_bias) {
    validate_tokens("logit_bias tokens", {token}, facts.vocab_size);
    if (bias != -std::numeric_limits<double>::infinity())
      validate_range("a logit_bias that is not -inf", bias, -kMaxBias, kMaxBias);
  }
  for (const std::vector<int32_t>& word : s.bad_words.words()) {
    if (word.empty())
      refuse("InvalidRequestError", "bad_words must have at least one token each", "none", "drop it");
    validate_tokens("bad_words tokens", word, facts.vocab_size);
  }
}

void validate_beams(const Sampling& s, const ModelFacts& facts) {
  const char* type = "InvalidRequestError";
  if (s.beam_width < 1 || s.beam_width > facts.vocab_size) {
    refuse(type, "beam_width must be in [1, vocab_size]", std::to_string(s.beam_width), "use 1 for no beams");
  }
  validate_range("length_penalty", s.length_penalty, -kMaxPenalty, kMaxPenalty);
  if (!s.beams()) return;
  if (s.n > s.beam_width) {
    refuse(type, "n must be at most beam_width, which is " + std::to_string(s.beam_width),
           std::to_string(s.n), "lower n, or raise beam_width");
  }
  if (s.processor)
    refuse(type, "a beam search must be without logits processors", "some", "leave one of them out");
  if (s.guided)
    refuse(type, "a beam search must be without a grammar", "a guided request", "leave one of them out");
}

// Checks that the request asks for what the model's rows are: tokens of logits, or a pooled row of any kind.
void validate_pooling(const Sampling& s, const ModelFacts& facts) {
  const char* type = "TaskError";
  if (!s.pools()) {
    if (facts.hidden_width > 0)
      refuse(type, "a request to a model of hidden states must pool them", "one for tokens",
             "ask for embeddings");
    if (!s.pooled_columns.empty())
      refuse("InvalidRequestError", "pooled_columns must be of a request that pools", "one for tokens",
             "leave them out");
    return;
  }
  if (s.n != 1 || s.beams() || s.guided || s.processor || s.prompt_logprobs >= 0) {
    refuse("InvalidRequestError",
           "a request that pools must be without n, beams, a grammar, processors and prompt_logprobs", "some",
           "leave them out");
  }
  for (int32_t column : s.pooled_columns) {
    if (column >= 0 && column < facts.columns()) continue;
    refuse("InvalidRequestError", "pooled_columns must be in [0, " + std::to_string(facts.columns()) + ")",
           std::to_string(column), "name columns that there are");
  }
}

void validate_sampling(const Sampling& s, const ModelFacts& facts) {
  const char* type = "InvalidRequestError";
  validate_pooling(s, facts);
  if (s.max_tokens < 1) {
    refuse(type, "max_tokens must be at least 1", std::to_string(s.max_tokens), "ask for a token");
  }
  if (!(s.temperature == 0 || (s.temperature >= kMinTemperature && s.temperature <= 1e6))) {
    refuse(type, "temperature must be 0 or in [1e-6, 1e6]", std::to_string(s.temperature),
           "use 0 for greedy");
  }
  if (s.top_k < -1)
    refuse(type, "top_k must be positive, or 0 or -1 for off", std::to_string(s.top_k), "raise it");
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    refuse(type, "top_p must be in (0, 1]", std::to_string(s.top_p), "use 1 for off");
  }
  if (std::isnan(s.timeout_s) || s.timeout_s > kMaxTimeout) {
    refuse(type, "timeout_s must be negative (none) or at most " + std::to_string(kMaxTimeout),
           std::to_string(s.timeout_s), "use -1 for none");
  }
  if (!(s.typical_p > 0 && s.typical_p <= 1)) {
    refuse(type, "typical_p must be in (0, 1]", std::to_string(s.typical_p), "use 1 for off");
  }
  if (std::isnan(s.deadline_s) || s.deadline_s > kMaxTimeout) {
    refuse(type, "deadline_s must be negative (none) or at most " + std::to_string(kMaxTimeout),
           std::to_string(s.deadline_s), "use -1 for none");
  }
  if (s.tenant < 0) refuse(type, "tenant must not be negative", std::to_string(s.tenant), "use 0 for none");
  validate_range("tenant_weight", s.tenant_weight, kMinTenantWeight, kMaxTenantWeight);
  validate_range("min_p", s.min_p, 0, 1);
  validate_range("xtc_threshold", s.xtc_threshold, 0, 1);
  validate_range("xtc_probability", s.xtc_probability, 0, 1);
  if (s.logprobs < -1 || s.logprobs > facts.vocab_size) {
    refuse(type, "logprobs must be -1 (none) or in [0, vocab_size]", std::to_string(s.logprobs), "lower it");
  }
  if (s.prompt_logprobs < -1 || s.prompt_logprobs > facts.vocab_size) {
    refuse(type, "prompt_logprobs must be -1 (none) or in [0, vocab_size]", std::to_string(s.prompt_logprobs),
           "lower it");
  }
  if (s.cache_salt.starts_with(kAdapterMark)) {
    refuse(type, "cache_salt must not begin with the character 0", "one that does", "use another salt");
  }
  validate_tokens("stop token ids", s.stop_token_ids.ids(), facts.vocab_size);
  validate_tokens("end-of-sequence token ids", s.eos_token_ids.ids(), facts.vocab_size);
  validate_processors(s, facts);
  validate_beams(s, facts);
}

// Checks that a guided request brings the mask of its first token, and that no other request does.
void validate_first_mask(const Request& request, const ModelFacts& facts) {
  if (request.sampling.guided) {
    if (request.first_mask.empty())
      refuse("InvalidRequestError", "a guided request must bring the mask of its first token", "none",
             "pass first_mask");
    return validate_mask(request.first_mask, facts);
  }
  if (!request.first_mask.empty())
    refuse("InvalidRequestError", "only a guided request may bring a mask", "one with guided off",
           "set sampling.guided");
}

}  // namespace

std::string prefix_salt(const Sampling& sampling) {
  return sampling.adapter ? join_salt({sampling.adapter->key(), sampling.cache_salt}) : sampling.cache_salt;
}

void validate_mask(const MaskWords& words, const ModelFacts& facts) {
  if (words.size() == mask_words(facts.vocab_size)) return;
  refuse(
      "InvalidRequestError",
      "a mask must have ceil(vocab_size / 32) = " + std::to_string(mask_words(facts.vocab_size)) + " words",
      std::to_string(words.size()), "make one bit for each of the engine's tokens");
}

void validate_request(const Request& request, const ModelFacts& facts, const std::vector<GroupShape>& groups,
                      int32_t max_seqs) {
  validate_sampling(request.sampling, facts);
  validate_first_mask(request, facts);
  int32_t n = request.sampling.sequences();
  if (request.sampling.n < 1 || n > max_seqs) {
    refuse("InvalidRequestError",
           std::string(request.sampling.beams() ? "beam_width" : "n, the completions,") +
               " must be at least 1 and at most max_batch_size, which is " + std::to_string(max_seqs),
           std::to_string(n), "lower it, or raise max_batch_size");
  }
  if (request.prompt.empty()) {
    refuse("InvalidRequestError", "a prompt must have at least one token", "none", "add a start token");
  }
  validate_tokens("prompt tokens", request.prompt, facts.vocab_size);
  int64_t prompt = static_cast<int64_t>(request.prompt.size());
  int64_t output = request.sampling.pools() ? 0 : request.sampling.max_tokens;
  int64_t total = prompt + output;
  std::string came = std::to_string(prompt) + " + " + std::to_string(output);
  if (total > facts.max_seq_len) {
    refuse(
        "PromptTooLongError",
        "prompt + max_tokens must be at most the engine's max_seq_len " + std::to_string(facts.max_seq_len),
        came, "shorten one, or build the engine with a larger max_seq_len");
  }
  // The last sampled token is never fed back, so its position needs no room. The completions share the full
  // blocks of the prompt, and no others.
  int64_t shared = prompt / facts.block_size,
          entries = (std::max(total - 1, prompt) - 1) / facts.block_size + 1;
  for (const GroupShape& group : groups) {
    if (group.needed(n, shared, entries, facts.block_size) <= group.blocks) continue;
    std::string completions = n == 1 ? "" : " in each of the " + std::to_string(n) + " sequences";
    refuse("PromptTooLongError",
           "prompt + max_tokens - 1" + completions + " must fit the KV cache's " +
               std::to_string(static_cast<int64_t>(group.blocks) * facts.block_size) + " positions",
           came,
           n == 1                     ? "shorten one, or raise kv_cache_memory"
           : request.sampling.beams() ? "lower beam_width, or raise kv_cache_memory"
                                      : "lower n, or raise kv_cache_memory");
  }
}

}  // namespace tensorwright
