// Remembers what completions said, so that later ones that say the same can be proposed it (suffix decoding:
// Oliaro et al. 2024, "SuffixDecoding"). Requests of one cache salt have a store of their own: nobody learns
// from speed what others were told. All stores together hold at most so many tokens, about 50 bytes each; the
// oldest half of a store goes first, and the store that was used longest ago.
#ifndef TENSORWRIGHT_RUNTIME_CORE_OUTPUT_STORE_H_
#define TENSORWRIGHT_RUNTIME_CORE_OUTPUT_STORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/scheduler/sequence.h"
#include "runtime/core/speculation/match_index.h"

namespace tensorwright {

class OutputStore {
 public:
  // most: the tokens of all stores, at least 2.
  explicit OutputStore(int64_t most) : most_(most) {}

  // Takes the output of a completion that has ended, with the last tokens of the prompt before it. digest()
  // adds it. Where there is no memory, it is forgotten.
  void remember(const Sequence& sequence) noexcept;
  // Adds what was taken, up to `tokens` tokens. Returns how many it added.
  int32_t digest(int32_t tokens);
  // What followed the longest suffix of a text in the salt's store: the number of equal tokens, 0 for none,
  // and the tokens behind them, valid until the next call of digest().
  struct Found {
    int32_t length = 0;
    std::span<const int32_t> next = {};
  };
  Found find(const std::string& salt, std::span<const int32_t> text, int32_t least);
  int64_t tokens() const { return tokens_; }

 private:
  // Young outputs are added until they are half of what one store may hold; then they are the old ones.
  struct Store {
    MatchIndex young, old;
    uint64_t used = 0;
  };
  struct Output {
    std::string salt;
    std::vector<int32_t> tokens;
  };

  void add(Store& store, int32_t token);
  void drop(MatchIndex& index);
  void make_room_for_one(const std::string& salt);

  const int64_t most_;
  std::map<std::string, Store> stores_;
  std::deque<Output> waiting_;  // the first is added from token `added_` on
  size_t added_ = 0;
  int64_t tokens_ = 0, waiting_tokens_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_OUTPUT_STORE_H_
