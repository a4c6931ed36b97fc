// Gives prefixes of the KV cache to other engines, and takes theirs: blocks of the groups, and the states of
// recurrent layers behind the prefix. The engine's loop calls it between two steps, so nothing moves while it
// copies. Each call copies what its caller names, so that callers bound how long the next step waits.
//
// A prefix is named by its tokens and its salt, never by a hash. What is read was computed by this engine.
// What is written comes from outside: whoever calls write() must have checked that an engine of the same plan
// and weights computed it for the same tokens. Nobody sees it before finish().
//
// Blocks of imports count as used. They never come between the requests and the cache: where a request that
// runs lacks blocks, imports give theirs back (give_way). An import for a request that waits here and has
// blocks to start may take all blocks, as the request would, and is cut where there are no more; any other
// leaves as many as a step can need, and is dropped.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_TRANSFER_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_TRANSFER_H_

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

// What an engine remembers of a prompt: `blocks` full blocks that a sequence can go on behind, and the states
// behind them if the model has any.
struct PrefixExtent {
  int32_t blocks = 0;
  bool state = false;
};

// An import that has begun: what it still needs, in the order of the blocks.
struct PrefixNeeds {
  int64_t import = 0;
  std::vector<PrefixPiece> pieces;
  bool state = false;
};

class PrefixTransfer {
 public:
  // The most imports that are under way at once.
  static constexpr size_t kMaxImports = 16;

  // reserve: the blocks of each group that imports leave to the requests, but those that a request waits for.
  PrefixTransfer(KvBlocks& kv, Executor& executor, int32_t reserve)
      : kv_(kv), executor_(executor), reserve_(reserve) {}

  // Every function throws Error{"TransferError"} if it cannot do what it says, and then changes nothing,
  // except that write() and finish() drop an import that fails.

  // At least one token of the prompt stays to compute.
  PrefixExtent extent(std::span<const int32_t> prompt, std::string_view salt) const;
  // Copies pieces of a prefix, one behind the other. `out` must be as long as they are.
  void read(std::span<const int32_t> tokens, std::string_view salt, std::span<const PrefixPiece> pieces,
            std::span<char> out) const;
  // Copies the states behind all of `tokens`, whole blocks: state_bytes bytes.
  void read_state(std::span<const int32_t> tokens, std::string_view salt, std::span<char> out) const;

  // Begins to take a prefix of whole blocks. waited_for: whether a request waits for it that has the blocks
  // to start.
  PrefixNeeds begin(std::span<const int32_t> tokens, std::string_view salt, bool waited_for = false);
  // Returns whether the import takes further pieces: false if it was cut.
  bool write(int64_t import, std::span<const PrefixPiece> pieces, std::span<const char> bytes);
  // Remembers the prefix, and returns its blocks: fewer than were asked for if it was cut. states: those
  // behind it, or empty if none were needed.
  int32_t finish(int64_t import, std::span<const char> states);
  void drop(int64_t import) { imports_.erase(import); }

  // Gives back blocks of imports, because requests lack some: all imports that nobody here waits for, or else
  // the last block of one that is waited for. Returns whether it gave any. Takes no memory.
  bool give_way() noexcept;
  // Returns the number of blocks of a group that imports hold.
  int64_t held(int32_t group) const;
  size_t imports() const { return imports_.size(); }

 private:
  struct Import : PrefixImport {
    bool wants_state = false;
    bool waited_for = false;
    bool is_cut = false;  // it has fewer blocks than were asked for
  };
  int64_t block_bytes(int32_t group) const;
  int64_t bytes_of(std::span<const PrefixPiece> pieces) const;
  Import& find(int64_t import);
  bool can_be_cut(const Import& import) const noexcept;
  static void cut(Import& import, int32_t blocks, int32_t block_size) noexcept;
  void write_pieces(Import& import, std::span<const PrefixPiece> pieces, const char* from);
  void adopt(Import& import, std::span<const char> states);

  KvBlocks& kv_;
  Executor& executor_;
  const int32_t reserve_;
  std::map<int64_t, Import> imports_;
  int64_t begun_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_TRANSFER_H_
