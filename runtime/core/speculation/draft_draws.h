// Draws the tokens of proposals: with the sampler, the seed and the position with which the engine will draw,
// so that a proposal is right as often as the two distributions allow.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DRAFT_DRAWS_H_
#define TENSORWRIGHT_RUNTIME_CORE_DRAFT_DRAWS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/interface/executor.h"
#include "runtime/core/sampling/sampler.h"

namespace tensorwright {

// A sequence whose next token is proposed.
struct DraftDraw {
  const Sampling* sampling;
  uint64_t seed;
  History history;  // its tokens, with those that were proposed so far
};

class DraftDraws {
 public:
  // vocab: the tokens of the model that verifies. tokens: its token for each column of a row; empty: a
  // column is its own token. Columns behind `vocab` are left out.
  DraftDraws(int threads, int32_t vocab, std::vector<int32_t> tokens = {});

  // Returns how an executor that draws tokens draws these rows, those that it can; empty if it can draw none.
  static std::vector<RowDraw> by_executor(std::span<const DraftDraw> draws);

  // Returns a token for each row: that of the executor, or one drawn on its threads. -1: the row has no
  // distribution, or allows nothing; the target's own row decides what becomes of the request.
  std::vector<int32_t> draw(Executor& executor, const LogitRows& logits, int32_t cols,
                            std::span<const DraftDraw> draws);

  // Returns the parameters with which proposals are drawn: those of the request, without logprobs.
  static std::shared_ptr<const Sampling> plain(const std::shared_ptr<const Sampling>& sampling);

 private:
  int32_t draw_one(std::span<const float> row, const DraftDraw& draw, int thread);

  const int32_t vocab_;
  const std::vector<int32_t> tokens_;
  std::vector<Sampler> samplers_;           // [threads]
  std::vector<std::vector<float>> padded_;  // [threads]: a row of `vocab_` columns
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DRAFT_DRAWS_H_
