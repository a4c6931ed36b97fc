#include "runtime/core/speculation/draft_heads.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "runtime/core/base/clock.h"
#include "runtime/core/base/error.h"
#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

namespace {

// So many features of a sequence may be kept before the heads compute them, if nothing is proposed meanwhile:
// as many as fit in these bytes with those of all others, but kLeastKept in any case. Those that the executor
// keeps in the sequence's blocks take no memory more.
constexpr int64_t kKeptBytes = int64_t{64} << 20;
constexpr int32_t kLeastKept = 64;
// A sequence whose proposals were all right has so many more.
constexpr int32_t kAlwaysKept = kMaxDraft + 1;

int32_t kept_features_of(const HeadsOptions& options, int32_t width) {
  const int64_t pass = std::max(options.max_tokens / 2, 1);
  if (width == 0) return static_cast<int32_t>(pass);
  const int64_t fit = kKeptBytes / (int64_t{options.max_seqs} * width * static_cast<int64_t>(sizeof(float)));
  return static_cast<int32_t>(std::min(std::max(fit, int64_t{kLeastKept}), pass));
}

}  // namespace

DraftHeads::DraftHeads(Executor& executor, HeadsOptions options)
    : executor_(executor),
      options_(std::move(options)),
      width_(kept_columns(executor.facts())),
      most_kept_(kept_features_of(options_, width_)),
      draws_(executor.threads(), executor.facts().vocab_size, options_.tokens) {
  if (tokens_at_once(executor_.facts(), options_.tokens) != 1)
    throw Error("EngineError", "[heads] the engine's heads say several tokens at once; build it again");
  executor_.want_features(true);
}

void DraftHeads::begin() {
  const ModelFacts& facts = executor_.facts();
  const std::vector<float> features(static_cast<size_t>(facts.block_size) * static_cast<size_t>(width_));
  const auto run = [&](const Step& step) { executor_.run_draft(step, features.data()); };
  measure_steps(facts, std::min(options_.max_seqs, options_.max_tokens), run,
                [this](int32_t tokens, double seconds) { cost_.observe(tokens, seconds); });
  const int32_t many = std::min({facts.block_size, options_.max_tokens, facts.max_seq_len});
  Step step = prompt_step(facts, many);
  step.logit_rows.clear();
  const Clock::time_point begin = Clock::now();
  run(step);
  position_s_ = seconds_since(begin) / many;
}

// Counts a pass that computed many positions and few tokens.
void DraftHeads::learn_position(int32_t positions, double seconds) {
  constexpr double kNew = 0.2;
  const double bounded = std::min(seconds / positions, 4 * position_s_);
  position_s_ += kNew * (bounded - position_s_);
}

int64_t DraftHeads::kept_features() const {
  int64_t kept = 0;
  for (const auto& [name, mirror] : mirrors_) kept += mirror.end - mirror.first;
  return kept;
}

double DraftHeads::start_seconds(const Sequence& sequence) const {
  const auto found = mirrors_.find({sequence.id, sequence.completion});
  const int32_t kept = found == mirrors_.end() ? 0 : found->second.end - found->second.first;
  return kept > kAlwaysKept ? kept * position_s_ : 0;
}

DraftHeads::Mirror* DraftHeads::find(const Sequence& sequence) {
  const auto found = mirrors_.find({sequence.id, sequence.completion});
  return found == mirrors_.end() ? nullptr : &found->second;
}

void DraftHeads::computed(const StepPlan& plan) {
  const FeatureRows features = executor_.features();
  if (!features.computed()) return;  // nobody keeps them
  int64_t row = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    keep(features, row, chunk);
    row += chunk.tokens + chunk.drafted;
  }
}

// Keeps the features of a chunk, from this row on. A sequence that goes on where it was before adds to what
// is kept; behind a wrong proposal, a preemption or a prefix from the cache it begins anew from there.
void DraftHeads::keep(const FeatureRows& features, int64_t row, const PlannedChunk& chunk) {
  const Sequence& sequence = *chunk.sequence;
  const int32_t count = chunk.tokens + chunk.drafted, start = sequence.computed;
  Mirror& mirror = mirrors_[{sequence.id, sequence.completion}];
  if (mirror.given_up) return;
  const bool lost = features.in_slots && mirror.seen >= 0 && block_at(sequence, mirror.seen) != mirror.block;
  if (lost || start < mirror.first || start > mirror.end) mirror.first = start;
  mirror.end = start + count;
  if (features.in_slots) {
    mirror.seen = start;
    mirror.block = block_at(sequence, start);
    return;
  }
  mirror.features.resize(static_cast<size_t>(start - mirror.first) * static_cast<size_t>(width_));
  const float* feature = features.data + row * features.stride;
  for (int32_t i = 0; i < count; ++i, feature += features.stride)
    mirror.features.insert(mirror.features.end(), feature, feature + width_);
}

// Returns the block of a position in the heads' cache group, -1 if the sequence has none there.
int32_t DraftHeads::block_at(const Sequence& sequence, int32_t position) const {
  const BlockTable& table = sequence.blocks.tables[static_cast<size_t>(executor_.facts().draft_group)];
  const int32_t place = position / executor_.facts().block_size;
  return place < table.size() ? table[place] : -1;
}

void DraftHeads::drop_features(Mirror& mirror, int32_t before) const {
  const auto rows = static_cast<std::ptrdiff_t>(before - mirror.first) * width_;
  mirror.features.erase(mirror.features.begin(), mirror.features.begin() + rows);
  mirror.first = before;
}

// Brings the tokens of a mirror up to the sequence's.
void DraftHeads::follow(const Sequence& sequence, Mirror& mirror) const {
  mirror.known = std::min(mirror.known, sequence.size());
  mirror.tokens.resize(static_cast<size_t>(mirror.known));
  mirror.tokens.insert(mirror.tokens.end(), sequence.tokens.begin() + mirror.known, sequence.tokens.end());
  mirror.known = sequence.size();
  if (!mirror.sampling) mirror.sampling = DraftDraws::plain(sequence.sampling);
}

// Notes the blocks of these positions. Returns the first position from which on no other part of the pass
// writes them: sequences with the same tokens share blocks, and one of them is enough.
int32_t DraftHeads::past_written(const Sequence& sequence, int32_t from, int32_t to) {
  const int32_t size = executor_.facts().block_size;
  const BlockTable& table = sequence.blocks.tables[static_cast<size_t>(executor_.facts().draft_group)];
  for (int32_t i = from / size; i <= (to - 1) / size; ++i)
    if (std::ranges::find(written_, table[i]) != written_.end()) from = std::min(to, (i + 1) * size);
  for (int32_t i = from / size; from < to && i <= (to - 1) / size; ++i) written_.push_back(table[i]);
  return from;
}

// Asks for the features of the step only if a sequence is to keep them: one that begins is given up at once
// where it is not worth it.
void DraftHeads::want_features(const StepPlan& plan, const Worth& worth) {
  bool wanted = false;
  for (const PlannedChunk& chunk : plan.chunks) {
    const Sequence& sequence = *chunk.sequence;
    const auto [at, fresh] = mirrors_.try_emplace({sequence.id, sequence.completion});
    Mirror& mirror = at->second;
    if (fresh || sequence.computed == 0) {
      mirror = {};
      mirror.given_up = !worth(sequence);
    }
    if (sequence.sampling->beams()) mirror.given_up = true;
    wanted = wanted || !mirror.given_up;
  }
  executor_.want_features(wanted);
}

// Computes positions for which many features are kept, all but the last one, which proposals begin with; or
// gives the sequence up.
void DraftHeads::prepare(const StepPlan& plan, const Worth& worth) {
  want_features(plan, worth);
  std::vector<Part> parts;
  int32_t room = options_.max_tokens;
  written_.clear();
  for (const PlannedChunk& chunk : plan.chunks) {
    const Sequence& sequence = *chunk.sequence;
    Mirror* mirror = find(sequence);
    if (!mirror || static_cast<int32_t>(parts.size()) == options_.max_seqs) continue;
    const int32_t last = std::min({mirror->end, sequence.computed, sequence.size() - 1}) - 1;
    if (last - mirror->first < most_kept_) continue;
    if (!worth(sequence)) {
      *mirror = {};
      mirror->given_up = true;
      continue;
    }
    const int32_t to = std::min(last, mirror->first + room);
    const int32_t from = past_written(sequence, mirror->first, to);
    drop_features(*mirror, from);
    if (from == to) continue;
    follow(sequence, *mirror);
    parts.push_back({&sequence, mirror, from, to});
    if ((room -= to - from) == 0) break;
  }
  if (parts.empty()) return;
  const Clock::time_point begin = Clock::now();
  run(parts);
  learn_position(step_.tokens(), seconds_since(begin));
  for (const Part& part : parts) drop_features(*part.mirror, part.to);
}

DraftRows DraftHeads::run(std::span<const Part> parts) {
  const ModelFacts& facts = executor_.facts();
  const auto group = static_cast<size_t>(facts.draft_group);
  step_ = {};
  step_.seq_starts = {0};
  step_.groups.resize(facts.block_bytes.size());
  GroupTables& tables = step_.groups[group];
  given_.clear();
  for (const Part& part : parts)
    tables.max_blocks = std::max(tables.max_blocks, part.sequence->blocks.tables[group].size());
  for (const Part& part : parts) {
    const BlockTable& table = part.sequence->blocks.tables[group];
    for (int32_t i = 0; i < tables.max_blocks; ++i)
      tables.block_tables.push_back(i < table.size() ? std::max(table[i], 0) : -1);
    for (int32_t position = part.from; position < part.to; ++position) {
      step_.token_ids.push_back(part.mirror->tokens[static_cast<size_t>(position) + 1]);
      step_.positions.push_back(position);
      tables.slots.push_back(table[position / facts.block_size] * facts.block_size +
                             position % facts.block_size);
    }
    const float* features = part.own;
    if (!features) features = part.mirror->features.data() + int64_t{part.from - part.mirror->first} * width_;
    given_.insert(given_.end(), features, features + int64_t{part.to - part.from} * width_);
    step_.seq_starts.push_back(step_.tokens());
    step_.context_lens.push_back(part.to);
    if (part.most > 0) step_.logit_rows.push_back(step_.tokens() - 1);
  }
  if (executor_.draws_drafts()) step_.draws = DraftDraws::by_executor(draws_of(parts));
  computed_tokens_ += step_.tokens();
  return executor_.run_draft(step_, given_.data());
}

// Returns how the rows of a pass are drawn.
std::vector<DraftDraw> DraftHeads::draws_of(std::span<const Part> parts) {
  std::vector<DraftDraw> draws;
  for (const Part& part : parts) {
    const History history{part.mirror->tokens, part.sequence->prompt_tokens};
    if (part.most > 0) draws.push_back({part.mirror->sampling.get(), part.sequence->seed, history});
  }
  return draws;
}

void DraftHeads::propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) {
  std::vector<Part> parts;
  int32_t room = options_.max_tokens;
  written_.clear();
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].sequence;
    Mirror* mirror = find(sequence);
    const int32_t to = sequence.size() - 1;
    if (!mirror || mirror->given_up || mirror->end < to || mirror->first >= to || sequence.computed < to)
      continue;
    if (to - mirror->first > room) continue;
    const int32_t from = past_written(sequence, mirror->first, to);
    drop_features(*mirror, from);
    if (from == to) continue;
    follow(sequence, *mirror);
    parts.push_back({&sequence, mirror, from, to, nullptr, wishes[i].most, &(*drafts)[i]});
    room -= to - from;
  }
  while (!parts.empty()) {
    const Clock::time_point begin = Clock::now();
    const DraftRows rows = run(parts);
    own_.resize(parts.size() * static_cast<size_t>(width_));
    for (size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      if (!part.own) drop_features(*part.mirror, part.to);
      const float* feature = rows.features.data + static_cast<int64_t>(i) * rows.features.stride;
      std::copy_n(feature, width_, own_.begin() + static_cast<std::ptrdiff_t>(i) * width_);
    }
    const int32_t positions = step_.tokens(), tokens = static_cast<int32_t>(parts.size());
    draw(rows.logits, parts);
    if (positions > tokens * kAlwaysKept) {
      learn_position(positions, seconds_since(begin));
    } else {
      cost_.observe(tokens, seconds_since(begin));
    }
  }
}

// Draws the next token of each part, and leaves the parts that are to get another one.
void DraftHeads::draw(const LogitRows& logits, std::vector<Part>& parts) {
  const std::vector<int32_t> drawn =
      draws_.draw(executor_, logits, executor_.facts().draft_vocab, draws_of(parts));
  std::vector<Part> more;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part part = parts[i];
    if (drawn[i] < 0) continue;
    part.mirror->tokens.push_back(drawn[i]);
    part.draft->push_back(drawn[i]);
    part.from = part.to++;
    part.own = own_.data() + i * static_cast<size_t>(width_);
    if (static_cast<int32_t>(part.draft->size()) < part.most) more.push_back(part);
  }
  parts = std::move(more);
}

}  // namespace tensorwright
