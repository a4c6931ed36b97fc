// The sequence breakers of DRY: token sequences across which a repeated text is not followed. A breaker is a
// text, and a token may begin in the middle of it, so a breaker has many spellings: a head, which is a token
// that holds the breaker's beginning, and a tail, the tokens of the rest. All spellings with the same tail
// are one entry; an empty tail means that the head holds the whole breaker.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DRY_BREAKERS_H_
#define TENSORWRIGHT_RUNTIME_CORE_DRY_BREAKERS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tensorwright {

class DryBreakers {
 public:
  struct Spelling {
    std::vector<int32_t> tail;
    std::vector<int32_t> heads;
  };

  DryBreakers() = default;
  explicit DryBreakers(std::vector<Spelling> spellings);

  // Returns the length of the longest tail of a breaker whose head is tokens[place] and whose tail follows
  // there, or -1 if no breaker begins at that place. It compares at most kMaxTail + 1 tokens.
  int32_t tail_at(std::span<const int32_t> tokens, size_t place) const;
  // Returns whether the token alone is a breaker.
  bool is_breaker(int32_t token) const { return has_head(0, token); }
  // Returns the largest and the smallest token of all spellings, for checks; (-1, 0) if there are none.
  std::pair<int32_t, int32_t> bounds() const { return {largest_, smallest_}; }

  static constexpr size_t kMaxTail = 20;  // longer tails are cut, as in llama.cpp

 private:
  // A node of the tree of all tails. Node 0 is the empty tail.
  struct Node {
    std::vector<std::pair<int32_t, int32_t>> children;  // (token, node), by token
    std::vector<int32_t> heads;                         // ascending
  };
  int32_t child(int32_t node, int32_t token) const;  // -1: none
  bool has_head(int32_t node, int32_t token) const;

  std::vector<Node> nodes_ = {Node()};
  int32_t largest_ = -1, smallest_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DRY_BREAKERS_H_
