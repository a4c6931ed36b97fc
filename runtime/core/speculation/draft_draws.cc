#include "runtime/core/speculation/draft_draws.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "runtime/core/sampling/row_draw.h"

namespace tensorwright {

DraftDraws::DraftDraws(int threads, int32_t vocab, std::vector<int32_t> tokens)
    : vocab_(vocab),
      tokens_(std::move(tokens)),
      samplers_(static_cast<size_t>(threads)),
      padded_(samplers_.size()) {}

std::shared_ptr<const Sampling> DraftDraws::plain(const std::shared_ptr<const Sampling>& sampling) {
  if (sampling->logprobs < 0) return sampling;
  auto plain = std::make_shared<Sampling>(*sampling);
  plain->logprobs = -1;
  return plain;
}

std::vector<RowDraw> DraftDraws::by_executor(std::span<const DraftDraw> draws) {
  std::vector<RowDraw> rows;
  bool any = false;
  for (const auto& [sampling, seed, history] : draws) {
    rows.push_back(row_draw(*sampling, seed, static_cast<int64_t>(history.tokens.size()), history));
    any = any || rows.back().wanted;
  }
  if (!any) rows.clear();
  return rows;
}

std::vector<int32_t> DraftDraws::draw(Executor& executor, const LogitRows& logits, int32_t cols,
                                      std::span<const DraftDraw> draws) {
  std::vector<int32_t> drawn(draws.size(), -1);
  executor.run_tasks(static_cast<int>(draws.size()), [&](int task, int thread) {
    const auto i = static_cast<size_t>(task);
    if (logits.tokens && logits.tokens[i] >= 0 && cols <= vocab_) {
      const auto token = static_cast<size_t>(logits.tokens[i]);
      drawn[i] = tokens_.empty() ? logits.tokens[i] : tokens_[token];
      return;
    }
    const std::span<const float> row(logits.data + task * logits.stride, static_cast<size_t>(cols));
    try {
      drawn[i] = draw_one(row, draws[i], thread);
    } catch (const std::exception&) {  // see draw()
    }
  });
  return drawn;
}

int32_t DraftDraws::draw_one(std::span<const float> row, const DraftDraw& draw, int thread) {
  const auto vocab = static_cast<size_t>(vocab_);
  if (!tokens_.empty() || row.size() < vocab) {
    std::vector<float>& padded = padded_[static_cast<size_t>(thread)];
    padded.assign(vocab, -std::numeric_limits<float>::infinity());
    if (tokens_.empty()) {
      std::ranges::copy(row, padded.begin());
    } else {
      for (size_t i = 0; i < row.size(); ++i) padded[static_cast<size_t>(tokens_[i])] = row[i];
    }
    row = padded;
  }
  const auto position = static_cast<int64_t>(draw.history.tokens.size());
  return samplers_[static_cast<size_t>(thread)]
      .sample(row.first(vocab), *draw.sampling, draw.seed, position, draw.history)
      .token;
}

}  // namespace tensorwright
