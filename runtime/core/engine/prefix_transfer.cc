#include "runtime/core/engine/prefix_transfer.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error("TransferError", concat("[transfer] ", parts...));
}

}  // namespace

PrefixExtent PrefixTransfer::extent(std::span<const int32_t> prompt, std::string_view salt) const {
  const KvBlocks::Match match = kv_.match(prompt, salt);
  const auto blocks = static_cast<int32_t>(match.path.size());
  return {blocks, blocks > 0 && executor_.facts().state_bytes > 0};
}

// The blocks of a model without attention only count positions, and have no bytes.
int64_t PrefixTransfer::block_bytes(int32_t group) const {
  const std::vector<int64_t>& sizes = executor_.facts().block_bytes;
  return static_cast<size_t>(group) < sizes.size() ? sizes[static_cast<size_t>(group)] : 0;
}

int64_t PrefixTransfer::bytes_of(std::span<const PrefixPiece> pieces) const {
  int64_t bytes = 0;
  for (const PrefixPiece& piece : pieces) {
    if (piece.group < 0 || piece.group >= kv_.groups() || piece.index < 0)
      refuse("a piece must be a block of one of ", kv_.groups(), " groups, got block ", piece.index,
             " of group ", piece.group);
    bytes += block_bytes(piece.group);
  }
  return bytes;
}

void PrefixTransfer::read(std::span<const int32_t> tokens, std::string_view salt,
                          std::span<const PrefixPiece> pieces, std::span<char> out) const {
  const int64_t bytes = bytes_of(pieces);
  if (static_cast<int64_t>(out.size()) != bytes)
    refuse("the pieces have ", bytes, " bytes, got room for ", out.size());
  const std::vector<PrefixTree::Node*> path = kv_.remembered_path(tokens, salt);
  for (const PrefixPiece& piece : pieces) {
    const auto index = static_cast<size_t>(piece.index), group = static_cast<size_t>(piece.group);
    if (index >= path.size() || path[index]->blocks[group] == PrefixTree::kHole)
      refuse("block ", index, " of group ", group,
             " of a prefix is not remembered any more; compute the prefix");
  }
  char* to = out.data();
  for (const PrefixPiece& piece : pieces) {
    const auto group = static_cast<size_t>(piece.group);
    if (block_bytes(piece.group) == 0) continue;
    executor_.read_block(piece.group, path[static_cast<size_t>(piece.index)]->blocks[group], to);
    to += block_bytes(piece.group);
  }
}

void PrefixTransfer::read_state(std::span<const int32_t> tokens, std::string_view salt,
                                std::span<char> out) const {
  const int64_t bytes = executor_.facts().state_bytes;
  if (bytes == 0 || static_cast<int64_t>(out.size()) != bytes)
    refuse("the states have ", bytes, " bytes, got room for ", out.size());
  const std::vector<PrefixTree::Node*> path = kv_.remembered_path(tokens, salt);
  const bool whole =
      static_cast<int64_t>(path.size()) * kv_.block_size() == static_cast<int64_t>(tokens.size());
  if (path.empty() || !whole || !path.back()->snapshot)
    refuse("the states behind a prefix are not remembered any more; compute the prefix");
  executor_.read_state(path.back()->snapshot.id(), out.data());
}

PrefixNeeds PrefixTransfer::begin(std::span<const int32_t> tokens, std::string_view salt, bool waited_for) {
  if (!kv_.remembers()) refuse("an engine that reuses no prefixes can take none; set enable_prefix_caching");
  const auto size = static_cast<int64_t>(tokens.size());
  if (size == 0 || size % kv_.block_size() != 0 || size >= executor_.facts().max_seq_len)
    refuse("a prefix must have whole blocks of ", kv_.block_size(), " tokens, below ",
           executor_.facts().max_seq_len, " in all, got ", size);
  if (imports_.size() >= kMaxImports)
    refuse("at most ", kMaxImports, " prefixes may be on their way to an engine; compute the prefix here");
  Import import;
  import.tokens.assign(tokens.begin(), tokens.end());
  import.salt = salt;
  import.waited_for = waited_for;
  import.blocks = kv_.blocks_for(size);
  import.arrived.resize(static_cast<size_t>(kv_.groups()));
  for (auto& blocks : import.arrived) blocks.resize(static_cast<size_t>(import.blocks));
  const std::vector<PrefixTree::Node*> path = kv_.remembered_path(tokens, salt);
  kv_.touch(path);
  PrefixNeeds needs;
  for (int32_t index = 0; index < import.blocks; ++index) {
    for (int32_t group = 0; group < kv_.groups(); ++group) {
      const auto i = static_cast<size_t>(index), g = static_cast<size_t>(group);
      if (!kv_.is_needed_behind(group, import.blocks, index)) continue;
      if (i < path.size() && path[i]->blocks[g] != PrefixTree::kHole) continue;
      needs.pieces.push_back({group, index});
    }
  }
  needs.state = import.wants_state =
      executor_.facts().state_bytes > 0 &&
      !(path.size() == static_cast<size_t>(import.blocks) && path.back()->snapshot);
  needs.import = ++begun_;
  imports_.emplace(needs.import, std::move(import));
  return needs;
}

PrefixTransfer::Import& PrefixTransfer::find(int64_t import) {
  const auto found = imports_.find(import);
  if (found == imports_.end())
    refuse("requests needed the blocks of a prefix that was on its way; compute the prefix here");
  return found->second;
}

bool PrefixTransfer::write(int64_t import, std::span<const PrefixPiece> pieces, std::span<const char> bytes) {
  Import& found = find(import);
  try {
    const int64_t expected = bytes_of(pieces);
    if (static_cast<int64_t>(bytes.size()) != expected)
      refuse("the pieces have ", expected, " bytes, got ", bytes.size());
    write_pieces(found, pieces, bytes.data());
    return !found.is_cut;
  } catch (...) {
    drop(import);
    throw;
  }
}

void PrefixTransfer::write_pieces(Import& import, std::span<const PrefixPiece> pieces, const char* from) {
  // What a waited-for import takes must not be the remembered blocks that it goes on from.
  std::vector<int32_t> reserves(static_cast<size_t>(kv_.groups()), import.waited_for ? 0 : reserve_);
  if (import.waited_for && !import.tokens.empty()) reserves = kv_.match(import.tokens, import.salt).idle;
  for (const PrefixPiece& piece : pieces) {
    if (import.is_cut && piece.index >= import.blocks) {
      from += block_bytes(piece.group);
      continue;
    }
    if (piece.index >= import.blocks || !kv_.is_needed_behind(piece.group, import.blocks, piece.index))
      refuse("block ", piece.index, " of group ", piece.group, " is no part of the prefix");
    BlockRef& arrived = import.arrived[static_cast<size_t>(piece.group)][static_cast<size_t>(piece.index)];
    if (arrived) refuse("block ", piece.index, " of group ", piece.group, " came twice");
    if (kv_.available(piece.group) > reserves[static_cast<size_t>(piece.group)])
      arrived = kv_.take_block(piece.group);
    if (!arrived && can_be_cut(import)) {
      cut(import, piece.index, kv_.block_size());
      from += block_bytes(piece.group);
      continue;
    }
    if (!arrived) refuse("requests need the blocks that a prefix would take; compute the prefix here");
    if (block_bytes(piece.group) == 0) continue;
    executor_.write_block(piece.group, arrived.id(), from);
    from += block_bytes(piece.group);
  }
}

int32_t PrefixTransfer::finish(int64_t import, std::span<const char> states) {
  Import found = std::move(find(import));
  drop(import);
  if (found.blocks == 0)
    refuse("requests needed all blocks of a prefix that was on its way; compute the prefix here");
  adopt(found, states);
  return found.blocks;
}

// Returns whether the beginning of an import is of use alone: a group with a window needs other blocks then,
// and states are those behind the whole.
bool PrefixTransfer::can_be_cut(const Import& import) const noexcept {
  bool windows = false;
  for (int32_t group = 0; group < kv_.groups(); ++group) windows |= kv_.shape(group).window > 0;
  return import.waited_for && !windows && !import.wants_state;
}

// Leaves the first `blocks` blocks of an import, and gives the others back.
void PrefixTransfer::cut(Import& import, int32_t blocks, int32_t block_size) noexcept {
  for (auto& arrived : import.arrived) arrived.resize(static_cast<size_t>(blocks));
  import.blocks = blocks;
  import.tokens.resize(static_cast<size_t>(blocks) * static_cast<size_t>(block_size));
  import.is_cut = true;
}

void PrefixTransfer::adopt(Import& import, std::span<const char> states) {
  const int64_t expected = import.wants_state ? executor_.facts().state_bytes : 0;
  if (static_cast<int64_t>(states.size()) != expected)
    refuse("the states behind the prefix have ", expected, " bytes, got ", states.size());
  std::function<void(int32_t)> write_state;
  if (import.wants_state) write_state = [&](int32_t slot) { executor_.write_state(slot, states.data()); };
  kv_.adopt(import, write_state);
}

bool PrefixTransfer::give_way() noexcept {
  if (std::erase_if(imports_, [&](const auto& entry) { return !can_be_cut(entry.second); }) > 0) return true;
  for (auto& [id, import] : imports_) {
    for (int32_t last = import.blocks; last-- > 0;) {
      const auto i = static_cast<size_t>(last);
      const bool holds = std::ranges::any_of(
          import.arrived, [&](const auto& arrived) { return static_cast<bool>(arrived[i]); });
      if (!holds) continue;
      cut(import, last, kv_.block_size());
      return true;
    }
  }
  return false;
}

int64_t PrefixTransfer::held(int32_t group) const {
  int64_t held = 0;
  for (const auto& [id, import] : imports_) {
    const std::vector<BlockRef>& blocks = import.arrived[static_cast<size_t>(group)];
    held += std::ranges::count_if(blocks, [](const BlockRef& block) { return static_cast<bool>(block); });
  }
  return held;
}

}  // namespace tensorwright
