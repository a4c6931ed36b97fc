#include "runtime/core/speculation/drafter.h"

#include <algorithm>

#include "runtime/core/base/clock.h"

namespace tensorwright {

namespace {

// Of so many sequences that are given up one is not.
constexpr int32_t kTriedSequences = 32;

bool is_sampled(const Sequence& sequence) { return sequence.sampling->temperature > 0; }

}  // namespace

StepTime StepTime::of(const StepPlan& plan) {
  StepTime step;
  step.tokens = plan.tokens;
  bool decodes_alone = true;
  for (const PlannedChunk& chunk : plan.chunks) {
    decodes_alone = decodes_alone && chunk.decode && !chunk.forced;
    step.proposed = step.proposed || (chunk.drafted > 0 && !chunk.forced);
  }
  step.decodes = decodes_alone ? static_cast<int32_t>(plan.chunks.size()) : 0;
  return step;
}

void Drafter::observe_step(const StepTime& step) {
  policy_.observe_step(step.tokens, step.seconds);
  const int64_t accepted = stats_.accepted - accepted_before_;
  if (step.decodes > 0) {
    const double proposing = step.proposed ? extend_s_ : 0;
    profit_.observe(step.decodes, step.proposed, step.decodes + static_cast<int32_t>(accepted),
                    step.seconds + proposing);
  }
  accepted_before_ = stats_.accepted, extend_s_ = 0;
}

// Returns how many tokens may follow the sequence beside the one that is drawn anyhow.
int32_t Drafter::most(const Sequence& sequence) const {
  const int32_t left = sequence.sampling->max_tokens - sequence.generated();
  return std::clamp(std::min(left, max_seq_len_ - sequence.size()) - 1, 0, proposer_->most());
}

bool Drafter::worth_starting(const Sequence& sequence, int32_t tokens, int32_t tried) {
  const double start = proposer_->start_seconds(sequence);
  const int32_t left = sequence.sampling->max_tokens - sequence.generated();
  const auto of = [this](int32_t sequences) { return price(sequences); };
  return policy_.worth_starting(start, left, tokens, of, tried, is_sampled(sequence));
}

// Compares the time of proposals with what the proposer says that their tokens take. Where some began, their
// start took a part of it.
void Drafter::learn_price(std::span<const DraftWish> wishes, bool started, double seconds) {
  constexpr double kNew = 0.1, kLeast = 0.5, kMost = 8;
  double said = 0;
  for (int32_t place = 1; place <= kMaxDraft; ++place) {
    const auto sequences = std::ranges::count_if(wishes, [&](const DraftWish& w) { return w.most >= place; });
    if (sequences > 0) said += proposer_->seconds(static_cast<int32_t>(sequences));
  }
  if (started || said <= 0) return;
  dearer_ = (1 - kNew) * dearer_ + kNew * std::clamp(seconds / said, kLeast, kMost);
}

std::vector<Candidate> Drafter::candidates(std::span<const DraftWish> wishes) {
  std::vector<Candidate> found;
  for (const DraftWish& wish : wishes)
    found.push_back({&acceptance_[{wish.sequence->id, wish.sequence->completion}], wish.most, 0,
                     is_sampled(*wish.sequence)});
  return found;
}

std::vector<std::vector<int32_t>> Drafter::propose(std::span<const DraftWish> wishes) {
  std::vector<std::vector<int32_t>> drafts(wishes.size());
  const Clock::time_point start = Clock::now();
  try {
    proposer_->propose(wishes, &drafts);
  } catch (const std::exception&) {  // the step goes on without proposals
    ++stats_.failures;
    return std::vector<std::vector<int32_t>>(wishes.size());
  }
  stats_.propose_s += seconds_since(start);
  return drafts;
}

void Drafter::computed(const StepPlan& plan) {
  try {
    proposer_->computed(plan);
  } catch (const std::exception&) {
    ++stats_.failures;
  }
}

void Drafter::extend(StepPlan& plan, Scheduler& scheduler) {
  const Clock::time_point start = Clock::now();
  accepted_before_ = stats_.accepted;
  const auto decodes = static_cast<int32_t>(std::ranges::count_if(plan.chunks, &PlannedChunk::decode));
  // A fixed number is proposed whether it pays or not.
  const bool watched = options_.tokens == 0;
  const int32_t pause = watched ? profit_.pause_left(static_cast<int32_t>(plan.chunks.size())) : 0;
  const auto worth = [&](const Sequence& sequence) {
    const int32_t left = sequence.sampling->max_tokens - sequence.generated();
    return left > pause && worth_starting(sequence, 1, kTriedSequences);
  };
  try {
    proposer_->prepare(plan, worth);
  } catch (const std::exception&) {
    ++stats_.failures;
  }
  if (watched && decodes > 0 && !profit_.allows(decodes)) return;
  make_drafts(plan, scheduler);
  extend_s_ = seconds_since(start);
}

// Makes room in the sequences' blocks for what is wished. A wish may get less.
void Drafter::reserve(const StepPlan& plan, Scheduler& scheduler, std::span<const size_t> chunks,
                      std::vector<DraftWish>& wishes) const {
  for (size_t i = 0; i < wishes.size(); ++i)
    if (wishes[i].most > 0) wishes[i].most = scheduler.reserve(plan, chunks[i], wishes[i].most);
}

void Drafter::make_drafts(StepPlan& plan, Scheduler& scheduler) {
  std::vector<DraftWish> wishes;
  std::vector<size_t> chunks;  // [wishes]: the place of each in the plan
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const PlannedChunk& chunk = plan.chunks[i];
    // Nobody proposes what follows tokens that a grammar forces.
    if (!chunk.decode || chunk.forced || chunk.sequence->sampling->beams()) continue;
    if (const int32_t count = most(*chunk.sequence);
        count > 0 && worth_starting(*chunk.sequence, plan.tokens)) {
      wishes.push_back({chunk.sequence, count});
      chunks.push_back(i);
    }
  }
  const int32_t room = std::min(options_.max_rows, scheduler.token_room(plan));
  if (wishes.empty() || room <= 0) return;
  std::vector<std::vector<int32_t>> drafts;
  const bool chosen_first = proposer_->uses_blocks() || proposer_->seconds(1) > 0;
  if (!chosen_first) {
    drafts = propose(wishes);
    for (size_t i = 0; i < wishes.size(); ++i) wishes[i].most = static_cast<int32_t>(drafts[i].size());
  }
  std::vector<Candidate> chosen = candidates(wishes);
  policy_.decide(chosen, plan.tokens, room, [this](int32_t sequences) { return price(sequences); });
  if (chosen_first) {
    for (size_t i = 0; i < wishes.size(); ++i) wishes[i].most = chosen[i].length;
    if (proposer_->uses_blocks()) reserve(plan, scheduler, chunks, wishes);
    std::vector<DraftWish> wanted;
    for (const DraftWish& wish : wishes)
      if (wish.most > 0) wanted.push_back(wish);
    if (wanted.empty()) return;
    const bool started = std::ranges::any_of(
        wanted, [&](const DraftWish& wish) { return proposer_->start_seconds(*wish.sequence) > 0; });
    const double before = stats_.propose_s;
    std::vector<std::vector<int32_t>> made = propose(wanted);
    learn_price(wanted, started, stats_.propose_s - before);
    drafts.resize(wishes.size());
    for (size_t i = 0, next = 0; i < wishes.size(); ++i)
      if (wishes[i].most > 0) drafts[i] = std::move(made[next++]);
  }
  for (size_t i = 0; i < wishes.size(); ++i) {
    const auto length = std::min(static_cast<size_t>(chosen[i].length), drafts[i].size());
    if (length == 0 && (!proposer_->uses_blocks() || chosen[i].length == 0)) continue;
    scheduler.extend(plan, chunks[i], std::span(drafts[i]).first(length));
    stats_.proposed += plan.chunks[chunks[i]].drafted;
    stats_.drafts += plan.chunks[chunks[i]].drafted > 0;
  }
}

void Drafter::verified(const Sequence& sequence, int32_t place, bool right) {
  stats_.accepted += right;
  stats_.accepted_at[static_cast<size_t>(place)] += right;
  // A record that could not be made is one that says nothing yet.
  if (auto record = acceptance_.find({sequence.id, sequence.completion}); record != acceptance_.end())
    policy_.observe(&record->second, right, place, is_sampled(sequence));
}

void Drafter::forget(const Sequence& sequence) {
  acceptance_.erase({sequence.id, sequence.completion});
  proposer_->forget(sequence);
}

}  // namespace tensorwright
