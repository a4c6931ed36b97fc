#include "runtime/core/scheduler/dry_breakers.h"

#include <algorithm>

namespace tensorwright {

DryBreakers::DryBreakers(std::vector<Spelling> spellings) {
  const auto note = [&](int32_t token) {
    largest_ = std::max(largest_, token);
    smallest_ = std::min(smallest_, token);
  };
  for (Spelling& spelling : spellings) {
    int32_t node = 0;
    spelling.tail.resize(std::min(spelling.tail.size(), kMaxTail));
    for (int32_t token : spelling.tail) {
      note(token);
      int32_t next = child(node, token);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[static_cast<size_t>(node)].children;
        children.insert(std::ranges::upper_bound(children, std::pair(token, next)), {token, next});
      }
      node = next;
    }
    std::ranges::for_each(spelling.heads, note);
    std::vector<int32_t>& heads = nodes_[static_cast<size_t>(node)].heads;
    heads.insert(heads.end(), spelling.heads.begin(), spelling.heads.end());
  }
  for (Node& node : nodes_) std::ranges::sort(node.heads);
}

int32_t DryBreakers::tail_at(std::span<const int32_t> tokens, size_t place) const {
  int32_t longest = -1, length = 0;
  for (int32_t node = 0; node >= 0; ++length) {
    if (has_head(node, tokens[place])) longest = length;
    const size_t next = place + 1 + static_cast<size_t>(length);
    if (next >= tokens.size()) break;
    node = child(node, tokens[next]);
  }
  return longest;
}

int32_t DryBreakers::child(int32_t node, int32_t token) const {
  const auto& children = nodes_[static_cast<size_t>(node)].children;
  const auto found = std::ranges::lower_bound(children, token, {}, &std::pair<int32_t, int32_t>::first);
  return found != children.end() && found->first == token ? found->second : -1;
}

bool DryBreakers::has_head(int32_t node, int32_t token) const {
  return std::ranges::binary_search(nodes_[static_cast<size_t>(node)].heads, token);
}

}  // namespace tensorwright
