// The beam searches under way. Each beam is a sequence of the scheduler. It waits until all beams of its
// request have their next rows; then some go on, some go on as others do, and some are put aside.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BEAMS_H_
#define TENSORWRIGHT_RUNTIME_CORE_BEAMS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/core/sampling/beam_search.h"
#include "runtime/core/sampling/sampler.h"
#include "runtime/core/scheduler/scheduler.h"

namespace tensorwright {

class Beams {
 public:
  explicit Beams(int32_t max_seq_len) : max_seq_len_(max_seq_len) {}

  // Takes what may follow a beam, all of whose tokens are computed. If it throws, nothing has changed but
  // that the other beams of the request may be there.
  void take(Sequence& sequence, std::vector<NextToken> next, Scheduler& scheduler);
  // Returns the requests all of whose beams have what may follow them.
  std::vector<int64_t> complete() const;
  // Goes on with such a request by a token. Returns whether the search is over. If it throws, the request
  // cannot go on.
  bool advance(int64_t id, Scheduler& scheduler);
  const std::vector<BeamAnswer>& answers(int64_t id) const { return searches_.at(id).search.answers(); }
  // The request's sequences are gone.
  void forget(int64_t id) { searches_.erase(id); }

 private:
  // How a beam got its last token.
  struct Link {
    int32_t before;  // the place of the beam that it followed
    std::vector<TokenLogprob> logprobs;
  };
  struct Beam {
    Sequence* sequence;
    double score = 0;
    bool ready = false;
    std::vector<NextToken> next = {};
  };
  struct Search {
    BeamSearch search;
    std::vector<Beam> beams;               // the best first
    std::vector<Sequence*> spare;          // that no beam has; between two steps they are put aside
    std::vector<std::vector<Link>> links;  // [tokens, beams] if logprobs are asked for
    int32_t length = 0;                    // generated tokens of each beam
  };

  Search& open(Sequence& first, Scheduler& scheduler);
  BeamAnswer answer(const Search& search, const Continuation& last) const;
  static void follow(Search& search, const std::vector<Continuation>& next, Scheduler& scheduler);
  static const NextToken& chosen(const Search& search, const Continuation& continuation);

  const int32_t max_seq_len_;
  std::map<int64_t, Search> searches_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BEAMS_H_
