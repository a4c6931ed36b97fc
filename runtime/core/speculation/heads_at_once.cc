#include "runtime/core/speculation/heads_at_once.h"

#include <algorithm>
#include <utility>

#include "runtime/core/base/clock.h"
#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

HeadsAtOnce::HeadsAtOnce(Executor& executor, HeadsOptions options)
    : executor_(executor),
      options_(std::move(options)),
      width_(feature_width(executor.facts())),
      at_once_(tokens_at_once(executor.facts(), options_.tokens)),
      draws_(executor.threads(), executor.facts().vocab_size, options_.tokens) {
  executor_.want_features(true);
}

void HeadsAtOnce::begin() {
  const std::vector<float> features(
      static_cast<size_t>(std::max(options_.max_seqs, executor_.facts().block_size)) *
      static_cast<size_t>(width_));
  measure_steps(
      executor_.facts(), std::min(options_.max_seqs, options_.max_tokens),
      [&](const Step& step) { executor_.run_draft(step, features.data()); },
      [this](int32_t sequences, double seconds) { cost_.observe(sequences, seconds); });
}

// Features are asked for only if a sequence may get proposals behind the step.
void HeadsAtOnce::prepare(const StepPlan& plan, const Worth& worth) {
  executor_.want_features(std::ranges::any_of(plan.chunks, [&](const PlannedChunk& chunk) {
    return !chunk.sequence->sampling->beams() && worth(*chunk.sequence);
  }));
}

void HeadsAtOnce::computed(const StepPlan& plan) {
  const FeatureRows features = executor_.features();
  if (!features.data) {  // what is kept may have been computed behind wrong proposals
    for (const PlannedChunk& chunk : plan.chunks) {
      const auto found = mirrors_.find({chunk.sequence->id, chunk.sequence->completion});
      if (found != mirrors_.end()) found->second.features.clear();
    }
    return;
  }
  const float* row = features.data;
  for (const PlannedChunk& chunk : plan.chunks) {
    const Sequence& sequence = *chunk.sequence;
    const int32_t count = chunk.tokens + chunk.drafted, kept = std::min(count, chunk.drafted + 1);
    if (!sequence.sampling->beams()) {
      Mirror& mirror = mirrors_[{sequence.id, sequence.completion}];
      mirror.first = sequence.computed + count - kept;
      mirror.features.clear();
      for (int32_t i = count - kept; i < count; ++i) {
        const float* const feature = row + i * features.stride;
        mirror.features.insert(mirror.features.end(), feature, feature + width_);
      }
    }
    row += count * features.stride;
  }
}

void HeadsAtOnce::propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) {
  std::vector<Part> parts;
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].sequence;
    const auto found = mirrors_.find({sequence.id, sequence.completion});
    if (found == mirrors_.end() || wishes[i].most <= 0) continue;
    Mirror& mirror = found->second;
    const auto kept = static_cast<int32_t>(mirror.features.size() / static_cast<size_t>(width_));
    const int32_t last = sequence.size() - 2;  // the position before the token that the next step computes
    if (last < mirror.first || last >= mirror.first + kept || sequence.computed <= last) continue;
    mirror.known = std::min(mirror.known, sequence.size());
    mirror.tokens.resize(static_cast<size_t>(mirror.known));
    mirror.tokens.insert(mirror.tokens.end(), sequence.tokens.begin() + mirror.known, sequence.tokens.end());
    mirror.known = sequence.size();
    if (!mirror.sampling) mirror.sampling = DraftDraws::plain(sequence.sampling);
    parts.push_back({&sequence, &mirror, wishes[i].most, &(*drafts)[i]});
    if (static_cast<int32_t>(parts.size()) == std::min(options_.max_seqs, options_.max_tokens)) break;
  }
  if (parts.empty()) return;
  const Clock::time_point begin = Clock::now();
  draw(run(parts).logits, parts);
  cost_.observe(static_cast<int32_t>(parts.size()), seconds_since(begin));
}

// The heads read neither tokens nor caches; positions are those that a step needs.
DraftRows HeadsAtOnce::run(std::span<const Part> parts) {
  step_ = {};
  step_.seq_starts = {0};
  step_.groups.resize(executor_.facts().block_bytes.size());
  given_.clear();
  for (const Part& part : parts) {
    const int32_t position = part.sequence->size() - 2;
    const float* const feature =
        part.mirror->features.data() + int64_t{position - part.mirror->first} * width_;
    given_.insert(given_.end(), feature, feature + width_);
    step_.token_ids.push_back(part.sequence->tokens.back());
    step_.positions.push_back(position);
    step_.logit_rows.push_back(step_.tokens() - 1);
    step_.seq_starts.push_back(step_.tokens());
    step_.context_lens.push_back(position + 1);
  }
  return executor_.run_draft(step_, given_.data());
}

void HeadsAtOnce::draw(const LogitRows& rows, std::span<const Part> parts) {
  const int32_t columns = executor_.facts().draft_vocab / at_once_;
  std::vector<bool> ended(parts.size(), false);
  for (int32_t place = 0; place < at_once_ && std::ranges::find(ended, false) != ended.end(); ++place) {
    std::vector<DraftDraw> draws;
    for (const Part& part : parts) {
      const History history{part.mirror->tokens, part.sequence->prompt_tokens};
      draws.push_back({part.mirror->sampling.get(), part.sequence->seed, history});
    }
    const LogitRows said = {rows.data + int64_t{place} * columns, rows.stride, rows.rows};
    const std::vector<int32_t> drawn = draws_.draw(executor_, said, columns, draws);
    for (size_t i = 0; i < parts.size(); ++i) {
      ended[i] = ended[i] || place >= parts[i].most || drawn[i] < 0;
      if (ended[i]) continue;
      parts[i].mirror->tokens.push_back(drawn[i]);
      parts[i].draft->push_back(drawn[i]);
    }
  }
}

}  // namespace tensorwright
