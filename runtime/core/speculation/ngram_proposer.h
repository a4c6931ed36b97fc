// Proposes what followed the last tokens of a sequence where they occurred in it before (prompt lookup:
// Saxena 2023, "Prompt Lookup Decoding"), or in what was said before, if that is remembered (output_store.h).
#ifndef TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_
#define TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/speculation/match_index.h"
#include "runtime/core/speculation/output_store.h"
#include "runtime/core/speculation/proposer.h"

namespace tensorwright {

class NgramProposer : public Proposer {
 public:
  // least: the fewest tokens that must be equal, 2 or more; one more in an output of another request.
  // remembered: the tokens of outputs to remember; 0: none.
  explicit NgramProposer(int32_t least, int64_t remembered = 0) : least_(least) {
    if (remembered > 0) outputs_.emplace(remembered);
  }
  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override;
  void forget(const Sequence& sequence) override;

 private:
  const int32_t least_;
  std::map<std::pair<int64_t, int32_t>, MatchIndex> indexes_;  // (request, completion) -> its tokens
  std::optional<OutputStore> outputs_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_
