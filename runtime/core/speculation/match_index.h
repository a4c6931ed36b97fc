// Finds earlier places of a text of tokens where the last tokens of another, or of the same, occur. Places of
// the same two tokens are a chain, the latest first, as in the LZ77 coders. Adding a token takes constant
// time; a search looks at no more than kCandidates places and compares no more than kLongest tokens at each.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MATCH_INDEX_H_
#define TENSORWRIGHT_RUNTIME_CORE_MATCH_INDEX_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tensorwright {

// Where a suffix occurred: the index behind it, and the number of tokens that are equal there.
struct Match {
  int32_t next = -1;
  int32_t length = 0;
};

class MatchIndex {
 public:
  static constexpr int32_t kCandidates = 32;
  static constexpr int32_t kLongest = 32;

  // Adds the token behind those that are there. If it throws, nothing has changed.
  void add(int32_t token);
  // Begins a new text: no match reaches over the border.
  void cut() { begin_ = size(); }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  std::span<const int32_t> tokens() const { return tokens_; }
  // Returns the place where the longest suffix of `text` occurs, of at least `least` tokens (2 or more), the
  // latest of equally long ones. A place must have a token behind it. `next` is -1 if there is none.
  Match find(std::span<const int32_t> text, int32_t least) const;
  // Returns the tokens behind a place that find() returned, up to the end of its text.
  std::span<const int32_t> behind(const Match& match) const;

 private:
  static uint64_t pair(int32_t first, int32_t second) {
    return uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
  }

  std::vector<int32_t> tokens_;
  std::vector<int32_t> starts_;  // [tokens]: where the text of the token begins
  std::vector<int32_t> before_;  // [tokens]: the last earlier place whose two tokens are the same; -1: none
  std::unordered_map<uint64_t, int32_t> latest_;  // two tokens -> the latest place, that of the second
  int32_t begin_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MATCH_INDEX_H_
