#include "runtime/core/scheduler/token_sets.h"

namespace tensorwright {

namespace {

using Word = std::vector<int32_t>;

// Returns where the tokens before a word's last token begin, read backwards; they end at rend(). A view would
// be shorter, but clang before 16 does not compile the views of libstdc++.
Word::const_reverse_iterator before_last(const Word& word) { return word.rbegin() + 1; }

size_t shared_length(const Word& a, const Word& b) {
  const auto end = std::mismatch(before_last(a), a.rend(), before_last(b), b.rend()).first;
  return static_cast<size_t>(end - before_last(a));
}

}  // namespace

TokenSet::TokenSet(std::vector<int32_t> ids) : ids_(std::move(ids)) {
  std::ranges::sort(ids_);
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
}

BannedWords::BannedWords(std::vector<Word> words) : words_(std::move(words)) {
  std::vector<const Word*> order;
  for (const Word& word : words_) {
    if (!word.empty()) order.push_back(&word);
  }
  std::ranges::sort(order, [](const Word* a, const Word* b) {
    return std::lexicographical_compare(before_last(*a), a->rend(), before_last(*b), b->rend());
  });
  int32_t nodes = 1;
  std::vector<int32_t> path = {
      0};  // the nodes of the previous word: no earlier word shares more with this one
  for (size_t i = 0; i < order.size(); ++i) {
    path.resize(1 + (i > 0 ? shared_length(*order[i - 1], *order[i]) : 0));
    const auto known = static_cast<ptrdiff_t>(path.size()) - 1;
    for (auto token = before_last(*order[i]) + known; token != order[i]->rend(); ++token) {
      edges_.push_back({path.back(), *token, nodes});
      path.push_back(nodes++);
    }
    lasts_.push_back({path.back(), order[i]->back()});
  }
  std::ranges::sort(edges_, {}, [](const Edge& edge) { return std::pair(edge.parent, edge.token); });
  std::ranges::stable_sort(lasts_, {}, &Last::node);
}

int32_t BannedWords::child(int32_t node, int32_t token) const {
  auto key = [](const Edge& edge) { return std::pair(edge.parent, edge.token); };
  auto found = std::ranges::lower_bound(edges_, std::pair(node, token), {}, key);
  return found != edges_.end() && key(*found) == std::pair(node, token) ? found->child : -1;
}

}  // namespace tensorwright
