// Proposes what followed the last tokens of a sequence where they occurred in it before (prompt lookup:
// Saxena 2023, "Prompt Lookup Decoding").
#ifndef TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_
#define TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/speculation/match_index.h"
#include "runtime/core/speculation/proposer.h"

namespace tensorwright {

class NgramProposer : public Proposer {
 public:
  // least: the fewest tokens that must be equal, 2 or more.
  explicit NgramProposer(int32_t least) : least_(least) {}
  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override;
  void forget(const Sequence& sequence) override { indexes_.erase({sequence.id, sequence.completion}); }

 private:
  const int32_t least_;
  std::map<std::pair<int64_t, int32_t>, MatchIndex> indexes_;  // (request, completion) -> its tokens
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_NGRAM_PROPOSER_H_
