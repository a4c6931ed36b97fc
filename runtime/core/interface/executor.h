// The interface of what runs a step of a ragged batch. Each target implements it. The scheduler and the
// engine know of tensors only what this file says.
#ifndef TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/interface/adapter.h"

namespace tensorwright {

// How many blocks a sequence may keep of a cache group that forgets blocks by their scores, and which
// (ops/kept_blocks.h). Without a budget kept is 0.
struct BlockBudget {
  int32_t kept = 0;   // blocks that stay at a decision; between two, a sequence has those of an interval more
  int32_t sinks = 0;  // first blocks, which always stay
  int32_t recent = 0;    // last blocks, which stay at a decision
  int32_t interval = 0;  // positions between two decisions, a multiple of the block size
  int32_t state = -1;    // the state that holds the scores, for the executor
};

// Facts of the model that the scheduler and the sampler need. The engine's files hold them.
struct ModelFacts {
  int32_t vocab_size = 0;
  int32_t max_seq_len = 0;
  int32_t block_size = 0;              // positions in a KV block
  std::vector<int64_t> block_bytes;    // per cache group: bytes of one block over the group's layers
  std::vector<int32_t> group_windows;  // per cache group: window, 0 if none
  // Bytes of one sequence's states over all recurrent layers; 0: the model has none.
  int64_t state_bytes = 0;
  // Per cache group: 1 if its window is chunked (base/first_seen.h), 0 if it slides. Empty: all slide.
  std::vector<uint8_t> group_chunked = {};
  // Per cache group: how many first positions of a sequence every position sees besides its window, which
  // slides. Empty: none in any group.
  std::vector<int32_t> group_sink_tokens = {};
  // Per cache group: what its sequences may keep. Empty: none has a budget.
  std::vector<BlockBudget> group_budgets = {};
  // Of the heads that propose tokens: the columns of a feature; the tokens that they may propose, as many
  // times as they say tokens at once; and their cache group, -1 without one. 0 columns: the model has no
  // heads.
  int32_t draft_width = 0, draft_vocab = 0, draft_group = 0;
  // The cache group in whose slots the executor keeps the features of its positions itself; -1: features are
  // rows of floats, which whoever asks for proposals keeps.
  int32_t feature_group = -1;
  // Where the chunks of a sequence end: at a multiple of this position, or at the end of the tokens that the
  // sequence has. 0: anywhere. A chunk may hold several multiples.
  int32_t chunk_multiple = 0;
  // The most positions that a row of a prompt sees where blocks of rows choose what they see
  // (base/sparse_prefill.h); 0: none chooses. chunk_multiple is then a multiple of block_size.
  int32_t sparse_prefill = 0;
  // The columns of a row of results where the model ends with hidden states; 0: its rows are logits.
  int32_t hidden_width = 0;

  BlockBudget budget(size_t group) const {
    return group < group_budgets.size() ? group_budgets[group] : BlockBudget{};
  }
  // Returns the position whose multiples no chunk of a sequence crosses, because blocks are forgotten there;
  // 0: there is none. All groups with a budget have the same.
  int32_t chunk_stop() const {
    int32_t stop = 0;
    for (const BlockBudget& budget : group_budgets) stop = budget.interval > stop ? budget.interval : stop;
    return stop;
  }
  // Returns the columns of a row of results: logits, or hidden states.
  int32_t columns() const { return hidden_width > 0 ? hidden_width : vocab_size; }

  bool chunked(size_t group) const { return group < group_chunked.size() && group_chunked[group]; }
  int32_t sink_tokens(size_t group) const {
    return group < group_sink_tokens.size() ? group_sink_tokens[group] : 0;
  }
};

// One cache group's addressing for a step.
struct GroupTables {
  int32_t max_blocks = 0;
  std::vector<int32_t> block_tables;  // [seqs, max_blocks], unused entries -1
  std::vector<int32_t> slots;         // [tokens]: block * block_size + offset
};

// How an executor draws the token of a row, where it does: by what runtime/core/sampling says of these
// parameters of a request, which are valid.
struct RowDraw {
  bool wanted = false;     // false: the row's logits are wanted in place of its token
  double temperature = 0;  // 0: greedy
  int32_t top_k = 0;       // below 1: off
  double top_p = 1;        // 1: off
  double min_p = 0;        // 0: off
  double uniform = 0;      // the random number in [0, 1) of the request's seed and the token's position
};

// A step of `tokens` tokens over `seqs` sequences: any mix of prefill chunks and decode tokens.
struct Step {
  // [tokens]. Below 0 it is -1 - r: the token that the executor draws from row r of the step that was started
  // before this one. Only Executor::start() takes such.
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;     // [tokens]
  std::vector<int32_t> seq_starts;    // [seqs + 1]: first token of each sequence, then the number of tokens
  std::vector<int32_t> context_lens;  // [seqs]: positions in the cache once this step has written its own
  std::vector<int32_t> logit_rows;    // [rows]: tokens whose logits are wanted
  std::vector<GroupTables> groups;    // [cache groups]
  // [seqs]: the slot of each sequence's states; empty if the model has none. A sequence whose first token of
  // the step has position 0 starts from zero states, whatever the slot holds.
  std::vector<int32_t> state_slots = {};
  // [seqs]: the adapter of each sequence, null for one without; empty if no sequence has one. They must live
  // as long as the step runs.
  std::vector<const Adapter*> adapters = {};
  // [seqs]: how many tokens of each sequence are its prompt, where the facts have sparse_prefill. Empty: no
  // row chooses what it sees.
  std::vector<int32_t> prompt_lens = {};
  // [rows]: the rows whose tokens are wanted in place of their logits. Empty: logits of all rows are wanted,
  // as every executor gives them. Only one that draws_tokens() takes others.
  std::vector<RowDraw> draws = {};

  int32_t tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t seqs() const { return static_cast<int32_t>(context_lens.size()); }
  int32_t rows() const { return static_cast<int32_t>(logit_rows.size()); }
  // Returns the position of the first token that the step has of a sequence.
  int32_t first_position(int32_t seq) const {
    const auto s = static_cast<size_t>(seq);
    return context_lens[s] - (seq_starts[s + 1] - seq_starts[s]);
  }
};

// Logits of the rows that a step asked for. They belong to the executor and are valid until its next run().
struct LogitRows {
  const float* data = nullptr;  // [rows, columns()]
  int64_t stride = 0;           // floats between rows
  int32_t rows = 0;
  // [rows]: the token that was drawn from each row, and -1 for a row of logits. The logits of a row with a
  // token mean nothing. Null: no token was drawn.
  const int32_t* tokens = nullptr;
};

// Features of the tokens of a step. They belong to the executor and are valid until it computes again. One
// with a feature_group has them in the slots of their positions, until others are written there.
struct FeatureRows {
  const float* data = nullptr;  // [tokens, draft_width]; null where the executor keeps them
  int64_t stride = 0;           // floats between rows
  bool in_slots = false;        // whether they lie in the slots

  bool computed() const { return data || in_slots; }
};

// What heads say of the rows that a step asked for; valid until the executor computes again.
struct DraftRows {
  LogitRows logits;      // [rows, draft_vocab]
  FeatureRows features;  // [rows, draft_width]: the heads' own
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ModelFacts& facts() const = 0;
  // Makes room for blocks[g] KV blocks of group g, for the states of `state_slots` sequences (0 if the model
  // has none), and for steps of at most these sizes. The engine calls it once, before any step.
  virtual void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                        int32_t max_seqs, int32_t state_slots) = 0;
  // The thread that will call run() calls this once, at its begin.
  virtual void begin_thread() {}
  // The same thread calls this once, at its end: no step comes after it.
  virtual void end_thread() noexcept {}
  // Computes a step and returns its logits. Throws before any effect if the step is malformed.
  virtual LogitRows run(const Step& step) = 0;
  // Returns whether run() draws tokens from rows, as Step::draws asks. It may give the logits of such a row
  // after all, where it is not sure of the token.
  virtual bool draws_tokens() const { return false; }
  // Returns whether start() and finish() are there beside run().
  virtual bool runs_ahead() const { return false; }
  // Starts a step, and returns before it is computed. One other step may be underway; if this one has tokens
  // of it, each of its rows is one that the executor draws from. What is copied or computed after this call
  // comes after the step. Throws as run() does, and before any effect if the step is malformed.
  virtual void start(const Step& step);
  // Waits for the step that was started first of those that are underway. Returns its rows as run() does,
  // valid until the next call of start(), finish() or run().
  virtual LogitRows finish();
  // Copies one block of a group, for copy-on-write.
  virtual void copy_block(int32_t group, int32_t from, int32_t to) = 0;
  // Copies the states of all recurrent layers from one slot to another.
  virtual void copy_state(int32_t from, int32_t to) = 0;
  // Returns which blocks of a sequence no later step of it reads, in a group with a budget: 1 for each block
  // that is forgotten, by its place in the sequence. slot: that of the sequence's states. Valid until the
  // next run().
  virtual std::span<const uint8_t> gone_blocks(int32_t /*group*/, int32_t /*slot*/) const { return {}; }
  // Copy one block of a group out of the cache or into it, over all layers of the group: block_bytes[group]
  // bytes, as the cache lays them out. Throws Error{"InvalidOptionError"} if the executor cannot.
  virtual void read_block(int32_t group, int32_t block, char* to) const;
  virtual void write_block(int32_t group, int32_t block, const char* from);
  // The same for the states of a slot: state_bytes bytes.
  virtual void read_state(int32_t slot, char* to) const;
  virtual void write_state(int32_t slot, const char* from);
  // Whether run() computes features too; not at first.
  virtual void want_features(bool /*wanted*/) {}
  // Returns the features of the last run(), if they are wanted.
  virtual FeatureRows features() const { return {}; }
  // Returns whether run_draft() draws tokens from rows too, each a column of its logits.
  virtual bool draws_drafts() const { return false; }
  // Computes a step of the heads: token i of the step has the token behind its position, and features[i],
  // [tokens, draft_width], is what run() or run_draft() gave for the position. Of the step's groups only
  // draft_group counts, and none if that is -1. Throws before any effect if the step is malformed, or the
  // model has no heads.
  //
  // An executor with a feature_group takes no features: it reads those in the slots of the step's tokens, and
  // writes the heads' own feature of a row to the slot of the position behind it, if the sequence has a block
  // there. The step has the slots of that group then, and its block tables where that is draft_group.
  virtual DraftRows run_draft(const Step& step, const float* features);
  // Returns whether the executor made this adapter, so that its steps may have it. Any thread may call it.
  virtual bool owns(const Adapter& /*adapter*/) const { return false; }
  // The number of threads that run_tasks() uses.
  virtual int threads() const { return 1; }
  // Does work between steps: calls fn(task, thread) once for every task in [0, tasks), where thread is in
  // [0, threads()), and returns when all tasks are done. fn must not throw.
  virtual void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) {
    for (int task = 0; task < tasks; ++task) fn(task, 0);
  }
};

inline DraftRows Executor::run_draft(const Step& /*step*/, const float* /*features*/) {
  throw std::logic_error("[executor] this executor has no heads");
}

inline void Executor::start(const Step& /*step*/) {
  throw std::logic_error("[executor] this executor computes a step while its caller waits");
}

inline LogitRows Executor::finish() { throw std::logic_error("[executor] no step is underway"); }

namespace executor_detail {

[[noreturn]] inline void refuse_transfer() {
  throw Error(
      "InvalidOptionError",
      "[executor] only an engine of target cpu and of one rank gives blocks of its cache to others and "
      "takes theirs; build such a one");
}

}  // namespace executor_detail

inline void Executor::read_block(int32_t /*group*/, int32_t /*block*/, char* /*to*/) const {
  executor_detail::refuse_transfer();
}

inline void Executor::write_block(int32_t /*group*/, int32_t /*block*/, const char* /*from*/) {
  executor_detail::refuse_transfer();
}

inline void Executor::read_state(int32_t /*slot*/, char* /*to*/) const { executor_detail::refuse_transfer(); }

inline void Executor::write_state(int32_t /*slot*/, const char* /*from*/) {
  executor_detail::refuse_transfer();
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_
