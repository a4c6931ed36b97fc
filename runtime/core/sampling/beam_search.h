// Chooses the beams of one request, step by step, as transformers' _beam_search does: of all that may follow
// the beams, the likeliest go on. It knows no sequences and no caches.
//
// In each step the continuations of all beams are in one order, by the sum of their logprobs. Those that end
// and are among the first `width` become answers, with the score sum / length ^ length_penalty; the best
// `width` answers stay. The first `width` of those that do not end are the next beams. The search is over
// when no beam goes on, when there are `width` answers and early_stopping is yes, or when there are and the
// best beam, at its present length, scores no better than the worst of them; with early_stopping never and a
// positive penalty, it is not the present length that counts but the longest that is allowed.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BEAM_SEARCH_H_
#define TENSORWRIGHT_RUNTIME_CORE_BEAM_SEARCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// A token that may follow a beam.
struct Continuation {
  int32_t beam;  // the place of the beam in their order
  int32_t token;
  double score;  // the sum of the logprobs of the beam's generated tokens and of this one
};

struct BeamAnswer {
  std::vector<int32_t> tokens;                      // without the prompt
  std::vector<std::vector<TokenLogprob>> logprobs;  // [tokens] if the request asks for them
  std::string finish;
  int32_t stop_token = -1;
  double cumulative_logprob = 0;
  double score = 0;
};

class BeamSearch {
 public:
  using Ends = std::function<bool(int32_t token)>;
  using Make = std::function<BeamAnswer(const Continuation&)>;

  // longest: the most tokens that an answer can have.
  BeamSearch(const Sampling& sampling, int32_t longest);

  // Takes what may follow the beams, at least the `width` likeliest of each and as many that do not end.
  // length: the tokens of each with its continuation. make: returns the answer that a continuation is,
  // without its scores. Returns the next beams, the best first, none if the search is over.
  std::vector<Continuation> advance(std::vector<Continuation> all, int32_t length, const Ends& ends,
                                    const Make& make);
  const std::vector<BeamAnswer>& answers() const { return answers_; }  // the best first

 private:
  bool over(double best_running, int32_t length) const;
  void add(BeamAnswer answer, double cumulative, int32_t length);

  const size_t width_;
  const double length_penalty_;
  const EarlyStopping early_stopping_;
  const int32_t longest_;
  std::vector<BeamAnswer> answers_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BEAM_SEARCH_H_
