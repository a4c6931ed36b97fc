// Defines what a caller asks of the engine, the events that the engine reports, and the checks of a request.
#ifndef TENSORWRIGHT_RUNTIME_CORE_REQUEST_H_
#define TENSORWRIGHT_RUNTIME_CORE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/cache/group_shape.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/scheduler/dry_breakers.h"
#include "runtime/core/scheduler/row_processor.h"
#include "runtime/core/scheduler/token_masks.h"
#include "runtime/core/scheduler/token_sets.h"

namespace tensorwright {

// The range of tenant_weight.
inline constexpr double kMinTenantWeight = 1e-3, kMaxTenantWeight = 1e3;

// When a beam search ends; beam_search.h says it exactly.
enum class EarlyStopping { no, yes, never };

// What a request wants in place of tokens: the row of the last position of its prompt, or the mean of the
// rows of all positions. A row is a hidden state, or logits.
enum class Pooling { none, last, mean };

struct Sampling {
  int32_t n = 1;  // completions of the one prompt
  // Above 1: the n completions are the best of a beam search, which draws nothing, so temperature, top_k,
  // top_p, min_p, typical_p, XTC and seed mean nothing. Penalties, bias and bad words change the logprobs in
  // place of the logits.
  int32_t beam_width = 1;
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::no;
  int32_t max_tokens = 16;
  double temperature = 1.0;      // 0: greedy
  int32_t top_k = 0;             // 0 or -1: off
  double top_p = 1.0;            // 1: off
  double min_p = 0.0;            // 0: off; relative to the likeliest token
  double typical_p = 1.0;        // 1: off; candidates.h says what it keeps
  double xtc_threshold = 0.1;    // of the tokens at least so likely, XTC leaves the least likely one
  double xtc_probability = 0.0;  // 0: off; how often XTC does so
  std::optional<uint64_t> seed;  // drawn once per request if absent; see completion_seed
  TokenSet stop_token_ids;       // end the request even with ignore_eos
  TokenSet eos_token_ids;
  bool ignore_eos = false;
  int32_t min_tokens = 0;           // no end-of-sequence or stop token before this many tokens
  double repetition_penalty = 1.0;  // 1: off; over prompt and output
  double presence_penalty = 0.0;    // 0: off; over the output, like frequency_penalty
  double frequency_penalty = 0.0;
  double dry_multiplier = 0.0;  // 0: off; repeats.h says what DRY does
  double dry_base = 1.75;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = -1;  // the tokens that DRY looks back; -1: all, 0: off
  std::shared_ptr<const DryBreakers> dry_breakers = nullptr;  // null: none
  int32_t no_repeat_ngram_size = 0;                           // 0: off
  std::vector<std::pair<int32_t, double>> logit_bias;
  BannedWords bad_words;  // no word is empty
  double timeout_s = -1;  // from arrival to the end; negative: none
  int32_t priority = 0;   // higher ones start first
  // Who asks. Of equal priorities the requests of the tenant start first that has had the least service for
  // its weight. 0 is a tenant as any other.
  int32_t tenant = 0;
  double tenant_weight = 1;
  // From arrival to the end; negative: none. A request that cannot end by then any more ends with
  // DeadlineError, where timeout_s keeps what there is.
  double deadline_s = -1;
  int32_t logprobs = -1;         // -1: none; 0: the sampled token's; n: those of the n likeliest as well
  int32_t prompt_logprobs = -1;  // the same for each prompt token but the first
  std::shared_ptr<const RowProcessor> processor = nullptr;  // the caller's own code; null: none
  bool guided = false;  // no token is sampled before its mask has come; see token_masks.h
  // Only requests with the same salt find what the prefix cache remembers of a request. See prefix_salt().
  std::string cache_salt;
  SharedAdapter adapter = nullptr;  // what computes the request beside the model; null: nothing does

  // Not none: nothing is sampled. The request ends with its prompt, and its only event has the pooled row.
  Pooling pooling = Pooling::none;
  // The columns of the pooled row that are reported, in this order; empty: all.
  std::vector<int32_t> pooled_columns;

  bool pools() const { return pooling != Pooling::none; }
  // Returns how many sequences the request has once its prompt is computed.
  int32_t sequences() const { return beam_width > 1 ? beam_width : n; }
  bool beams() const { return beam_width > 1; }
};

// Returns the salt under which the prefix cache remembers a request: that of the caller, and with an adapter
// also the key of the adapter's content. Adapters of different content never share a prefix, nor does the
// model alone with one.
std::string prefix_salt(const Sampling& sampling);

struct Request {
  int64_t id = 0;
  std::vector<int32_t> prompt;
  Sampling sampling;
  MaskWords first_mask;  // the mask of token 0 of each completion; empty unless guided
};

struct TokenLogprob {
  int32_t token;
  double logprob;  // natural logarithm of the softmax of the raw logits
  int32_t rank;    // 1 + number of tokens with a strictly greater logit
};

// Why a completion ended: what Event::finish can be. The C interface numbers them in this order.
namespace finishes {
inline constexpr const char *kNone = "", *kStop = "stop", *kLength = "length", *kAbort = "abort",
                            *kTimeout = "timeout", *kError = "error";
inline constexpr const char* kAll[] = {kNone, kStop, kLength, kAbort, kTimeout, kError};
}  // namespace finishes

// What is new of one completion of a request. Tokens of several steps may come in one event if nobody fetched
// the earlier ones. Every one of the n completions has a last event, also if it never started.
struct Event {
  int64_t request_id = 0;
  int32_t completion = 0;  // in [0, n)
  std::vector<int32_t> tokens;
  std::vector<std::vector<TokenLogprob>>
      logprobs;  // [tokens] if the request asks for them: the sampled token, then the others
  // If the request asks for them: the logprobs of the next prompt tokens, from the second on, each once:
  // first the prompt's token, then the others.
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  std::vector<float> pooled;      // of a request that pools, in its last event
  std::string finish;             // of finishes::kAll; kNone: the completion goes on
  int32_t stop_token = -1;        // the end-of-sequence or stop token; it is in `tokens` too
  std::string error_type, error;  // a class of tensorwright.errors, and its message
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens that the prefix cache had when the request started
  int32_t draft_tokens = 0;   // tokens that were proposed for the completion, and those that were right
  int32_t accepted_tokens = 0;
  double cumulative_logprob = 0;  // of the tokens of a beam, in its last event
  double queue_s = -1;            // from arrival to the first step of the completion; -1: none yet
  double first_token_s = -1;      // from arrival to the first token; -1: none yet
};

// Returns the seed that a completion draws with. The first completion has the request's seed, so it is the n
// = 1 run. The others add multiples of an odd constant, so each is the run of a request with that seed.
constexpr uint64_t completion_seed(uint64_t seed, int32_t completion) {
  return seed + static_cast<uint64_t>(completion) * 0x9E3779B97F4A7C15u;
}

// Throws Error{"InvalidRequestError"} unless `words` is the length of a mask.
void validate_mask(const MaskWords& words, const ModelFacts& facts);

// Throws Error: InvalidRequestError, or PromptTooLongError if the request, with its n completions side by
// side, can never end with the KV blocks that there are, or within the model's maximum length.
void validate_request(const Request& request, const ModelFacts& facts, const std::vector<GroupShape>& groups,
                      int32_t max_seqs);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_REQUEST_H_
