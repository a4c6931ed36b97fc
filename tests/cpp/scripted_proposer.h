// A proposer that knows what each completion says alone, and proposes that, with as many wrong tokens and
// wrong lengths as a test wants.
#ifndef TENSORWRIGHT_TESTS_CPP_SCRIPTED_PROPOSER_H_
#define TENSORWRIGHT_TESTS_CPP_SCRIPTED_PROPOSER_H_

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "runtime/core/speculation/proposer.h"
#include "tests/cpp/engine_cases.h"

namespace tw_test {

// (request, completion) -> prompt and answer.
using Script = std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>>;

struct ScriptedBehaviour {
  uint32_t wrong_in = 0;   // one token of so many is wrong; 0: none
  uint32_t throw_in = 0;   // one proposal of so many throws; 0: none
  bool short_ones = true;  // lengths are drawn; else each is as long as it may be
};

class ScriptedProposer : public Proposer {
 public:
  ScriptedProposer(Script script, ScriptedBehaviour behaviour, uint32_t seed = 1)
      : script_(std::move(script)), behaviour_(behaviour), random_(seed) {}

  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override {
    TW_CHECK_EQ(drafts->size(), wishes.size());
    for (size_t i = 0; i < wishes.size(); ++i) {
      const Sequence& sequence = *wishes[i].sequence;
      TW_CHECK(wishes[i].most > 0 && wishes[i].most <= kMaxDraft);
      TW_CHECK(sequence.draft.empty() && sequence.pending() == 1);
      const std::vector<int32_t>& all = script_.at({sequence.id, sequence.completion});
      size_t length = static_cast<size_t>(wishes[i].most);
      if (behaviour_.short_ones) length = random_() % (length + 1);
      for (size_t k = 0; k < length; ++k) {
        const size_t at = sequence.tokens.size() + k;
        const bool wrong = behaviour_.wrong_in > 0 && random_() % behaviour_.wrong_in == 0;
        int32_t token = at < all.size() ? all[at] : static_cast<int32_t>(random_() % kVocab);
        (*drafts)[i].push_back(wrong ? (token + 1) % kVocab : token);
      }
    }
    if (behaviour_.throw_in > 0 && random_() % behaviour_.throw_in == 0) throw std::runtime_error("no idea");
  }
  void forget(const Sequence& sequence) override { forgotten.push_back({sequence.id, sequence.completion}); }

  std::vector<std::pair<int64_t, int32_t>> forgotten;

 private:
  const Script script_;
  const ScriptedBehaviour behaviour_;
  std::mt19937 random_;
};

inline std::vector<int32_t> whole(const Request& r, const Outcome& outcome) {
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), outcome.tokens.begin(), outcome.tokens.end());
  return all;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_SCRIPTED_PROPOSER_H_
