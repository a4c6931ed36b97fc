// What runs a step of a ragged batch. The scheduler above knows nothing of tensors; targets stand behind
// this.
#ifndef TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace tensorwright {

// What the engine file says of the model, as the scheduler and the sampler need it.
struct ModelFacts {
  int32_t vocab_size = 0;
  int32_t max_seq_len = 0;
  int32_t block_size = 0;              // positions in a KV block
  std::vector<int64_t> block_bytes;    // per cache group: bytes of one block over the group's layers
  std::vector<int32_t> group_windows;  // per cache group: sliding window, 0 if none
};

// One cache group's addressing for a step.
struct GroupTables {
  int32_t max_blocks = 0;
  std::vector<int32_t> block_tables;  // [seqs, max_blocks], unused entries -1
  std::vector<int32_t> slots;         // [tokens]: block * block_size + offset
};

// A step of `tokens` tokens over `seqs` sequences: any mix of prefill chunks and decode tokens.
struct Step {
  std::vector<int32_t>
      token_ids;  // [tokens]; -1 - r means "the token that row r of the previous step sampled"
  std::vector<int32_t> positions;     // [tokens]
  std::vector<int32_t> seq_starts;    // [seqs + 1]: first token of each sequence, then the number of tokens
  std::vector<int32_t> context_lens;  // [seqs]: positions in the cache once this step has written its own
  std::vector<int32_t> logit_rows;    // [rows]: tokens whose logits are wanted
  std::vector<GroupTables> groups;    // [cache groups]

  int32_t tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t seqs() const { return static_cast<int32_t>(context_lens.size()); }
  int32_t rows() const { return static_cast<int32_t>(logit_rows.size()); }
};

struct Ticket {
  int64_t step = 0;
};

// Logits of the rows a step asked for. Belongs to the executor; valid until the next enqueue.
struct LogitRows {
  const float* data = nullptr;  // [rows, vocab_size]
  int64_t stride = 0;           // floats between rows
  int32_t rows = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ModelFacts& facts() const = 0;
  // Makes room for `blocks` KV blocks per group and for steps of at most these sizes. Called once, before any
  // step.
  virtual void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                        int32_t max_seqs) = 0;
  // Throws before any effect if the step is malformed; an executor without device sampling refuses token_ids
  // < 0.
  virtual Ticket enqueue(const Step& step) = 0;
  virtual LogitRows wait(Ticket ticket) = 0;
  // Copies one block of a group, for copy-on-write.
  virtual void copy_block(int32_t group, int32_t from, int32_t to) = 0;
  // Its threads, for work between steps: calls fn(task, thread) once for every task in [0, tasks), thread in
  // [0, threads()), and returns when all are done. fn must not throw.
  virtual int threads() const { return 1; }
  virtual void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) {
    for (int task = 0; task < tasks; ++task) fn(task, 0);
  }
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_H_
