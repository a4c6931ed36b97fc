#include "runtime/core/speculation/heads_at_once.h"

#include <algorithm>
#include <utility>

#include "runtime/core/base/clock.h"
#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

HeadsAtOnce::HeadsAtOnce(Executor& executor, HeadsOptions options)
    : executor_(executor),
      options_(std::move(options)),
      width_(kept_columns(executor.facts())),
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
  if (!features.computed()) {  // what is kept may have been computed behind wrong proposals
    for (const PlannedChunk& chunk : plan.chunks) {
      const auto found = mirrors_.find({chunk.sequence->id, chunk.sequence->completion});
      if (found != mirrors_.end()) found->second.count = 0;
    }
    return;
  }
  int64_t row = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    const Sequence& sequence = *chunk.sequence;
    const int32_t count = chunk.tokens + chunk.drafted, kept = std::min(count, chunk.drafted + 1);
    if (!sequence.sampling->beams()) {
      Mirror& mirror = mirrors_[{sequence.id, sequence.completion}];
      mirror.first = sequence.computed + count - kept;
      mirror.count = kept;
      mirror.features.clear();
      for (int32_t i = count - kept; i < count && !features.in_slots; ++i) {
        const float* const feature = features.data + (row + i) * features.stride;
        mirror.features.insert(mirror.features.end(), feature, feature + width_);
      }
    }
    row += count;
  }
}

void HeadsAtOnce::propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) {
  std::vector<Part> parts;
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].sequence;
    const auto found = mirrors_.find({sequence.id, sequence.completion});
    if (found == mirrors_.end() || wishes[i].most <= 0) continue;
    Mirror& mirror = found->second;
    const int32_t last = sequence.size() - 2;  // the position before the token that the next step computes
    if (last < mirror.first || last >= mirror.first + mirror.count || sequence.computed <= last) continue;
    if (executor_.facts().feature_group >= 0 && slot_at(sequence, last) < 0) continue;
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

// Returns the slot of a position in the group in which the executor keeps features, -1 if the sequence has no
// block there.
int32_t HeadsAtOnce::slot_at(const Sequence& sequence, int32_t position) const {
  const ModelFacts& facts = executor_.facts();
  const BlockTable& table = sequence.blocks.tables[static_cast<size_t>(facts.feature_group)];
  const int32_t place = position / facts.block_size, block = place < table.size() ? table[place] : -1;
  return block < 0 ? -1 : block * facts.block_size + position % facts.block_size;
}

// The heads read neither tokens nor caches, but for the features where the executor keeps them; positions are
// those that a step needs.
DraftRows HeadsAtOnce::run(std::span<const Part> parts) {
  const int32_t group = executor_.facts().feature_group;
  step_ = {};
  step_.seq_starts = {0};
  step_.groups.resize(executor_.facts().block_bytes.size());
  given_.clear();
  for (const Part& part : parts) {
    const int32_t position = part.sequence->size() - 2;
    if (group >= 0) {
      step_.groups[static_cast<size_t>(group)].slots.push_back(slot_at(*part.sequence, position));
    } else {
      const float* const feature =
          part.mirror->features.data() + int64_t{position - part.mirror->first} * width_;
      given_.insert(given_.end(), feature, feature + width_);
    }
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
