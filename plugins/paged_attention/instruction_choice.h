// Chooses which blocks of keys a block of a prompt's queries sees, in sparse prefill. choice.py is the
// definition.
//
// The attention kernels do the work: the mean of a block's queries attends to the keys before them, and only
// what the kernels note of each tile of the softmax is wanted, as with a budget of the cache. What a block of
// queries chose is a block table of its own, over which the kernels then attend as over any other: the chosen
// blocks in ascending order look like a shorter sequence, whose last block is the queries' own. So the
// kernels of every instruction set are those of full attention, and a budget that holds everything gives its
// bits.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_INSTRUCTION_CHOICE_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_INSTRUCTION_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/paged_attention/kernel.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/op_table.h"

namespace tensorwright {

class BlockChoice {
 public:
  // The blocks that are not chosen: the first, and the two last ones. A budget has at least one more.
  static constexpr int32_t kKept = kPagedAttentionKeptBlocks;

  struct Shape {
    int32_t kv_heads, group, head_dim, block_size;
    int32_t blocks;      // of keys that a block of queries sees, its own among them
    int32_t max_blocks;  // of a sequence
    int kv_dtype;
  };

  // attend, scale, softcap: those of the attention that the choice is for.
  BlockChoice(const Shape& shape, tw_attention_fn attend, tw_attention_shares_fn shares, float scale,
              float softcap);

  // Returns the bytes of scratch that choose() uses, and that table() reads until the operation ends.
  size_t reserve(const StepLimits& limits, int threads);

  // Lists the blocks of queries of the step that choose; none if the step has no prompt_lens.
  void list(const StepView& view);
  // Returns the positions of a sequence that choose: [begin, end), whole blocks, of any step.
  int32_t begin() const { return shape_.blocks * shape_.block_size; }
  int32_t end(const StepView& view, int32_t seq) const;
  bool none() const { return chosen_.empty(); }

  // Chooses for all listed blocks. q: the buffer of queries. pages: those of the layer. page_bytes: of a
  // block.
  void choose(const StepView& view, ThreadTeam& team, const BufferRef& q, const GroupTables& tables,
              const char* pages, int64_t page_bytes, char* scratch);

  // Returns the number among the listed blocks of that which holds `position` of sequence `seq`.
  int32_t number(int32_t seq, int32_t position) const;
  // Returns the block table of a listed block: shape.blocks entries, the last of them the block's own.
  const int32_t* table(int32_t number, int32_t kv_head, const char* scratch) const {
    return reinterpret_cast<const int32_t*>(scratch) + table_at(number, kv_head);
  }

 private:
  struct Chosen {
    int32_t seq, token, block;  // token: index in the step; block: index in the sequence
  };
  // Neighbouring blocks of queries of one sequence, which go through its keys together.
  struct Batch {
    int32_t first, count;
  };
  struct Work;  // the scratch of a thread

  size_t table_at(int32_t number, int32_t kv_head) const {
    return (static_cast<size_t>(number) * static_cast<size_t>(shape_.kv_heads) +
            static_cast<size_t>(kv_head)) *
           static_cast<size_t>(shape_.blocks);
  }
  size_t tiles_of_block() const { return static_cast<size_t>(shape_.block_size) / TW_LANES; }
  size_t place(char* base, Work* work) const;
  void pool(const StepView& view, const BufferRef& q, const Batch& batch, int32_t kv_head,
            const Work& work) const;
  void score(const Batch& batch, const int32_t* table, const char* pages, int64_t page_bytes, int q_dtype,
             const Work& work) const;
  void weigh(int32_t number, int32_t keys, int32_t stride, const Work& work) const;
  void take(const Chosen& chosen, const int32_t* table, const Work& work, int32_t* out) const;

  const Shape shape_;
  const tw_attention_fn attend_;
  const tw_attention_shares_fn shares_;
  const float scale_, softcap_;
  const int32_t batched_;                     // blocks of queries in a batch at most
  size_t tables_bytes_ = 0, work_bytes_ = 0;  // of all tables, and of a thread's scratch behind them
  std::vector<Chosen> chosen_;                // of this step, by sequence and position
  std::vector<Batch> batches_;                // of this step
  std::vector<int32_t> seq_starts_;  // [seqs]: the first of a sequence's entries of chosen_, less its block
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_INSTRUCTION_CHOICE_H_
