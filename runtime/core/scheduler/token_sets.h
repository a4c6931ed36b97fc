// Holds tokens and words of a request, ordered once so that a lookup is fast however many there are.
#ifndef TENSORWRIGHT_RUNTIME_CORE_TOKEN_SETS_H_
#define TENSORWRIGHT_RUNTIME_CORE_TOKEN_SETS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace tensorwright {

// A set of ids, each once, ascending.
class TokenSet {
 public:
  TokenSet() = default;
  TokenSet(std::vector<int32_t> ids);
  TokenSet(std::initializer_list<int32_t> ids) : TokenSet(std::vector<int32_t>(ids)) {}

  bool contains(int32_t id) const { return std::ranges::binary_search(ids_, id); }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::vector<int32_t> ids_;
};

// The sequences of tokens that must not occur. They are a tree over the tokens of each word except the last,
// read backwards: one walk from a sequence's end finds all words that the next token could complete.
class BannedWords {
 public:
  BannedWords() = default;
  BannedWords(std::vector<std::vector<int32_t>> words);  // words without a token ban nothing
  BannedWords(std::initializer_list<std::vector<int32_t>> words)
      : BannedWords(std::vector<std::vector<int32_t>>(words)) {}

  bool empty() const { return words_.empty(); }
  const std::vector<std::vector<int32_t>>& words() const { return words_; }  // as the caller gave them
  // Calls ban(token) for the last token of every word whose other tokens are the end of `tokens`.
  template <typename Ban>
  void for_each_last(std::span<const int32_t> tokens, const Ban& ban) const {
    int32_t node = 0;
    for (size_t left = tokens.size();; --left) {
      auto last = std::ranges::lower_bound(lasts_, node, {}, &Last::node);
      for (; last != lasts_.end() && last->node == node; ++last) ban(last->token);
      if (left == 0 || (node = child(node, tokens[left - 1])) < 0) return;
    }
  }

 private:
  struct Edge {
    int32_t parent, token, child;
  };
  struct Last {
    int32_t node, token;
  };
  int32_t child(int32_t node, int32_t token) const;  // -1: none

  std::vector<std::vector<int32_t>> words_;
  std::vector<Edge> edges_;  // by parent and token; the root is node 0
  std::vector<Last> lasts_;  // by node
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_TOKEN_SETS_H_
