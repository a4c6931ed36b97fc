#include "runtime/core/speculation/draft_model.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "runtime/core/base/clock.h"
#include "runtime/core/base/error.h"
#include "runtime/core/scheduler/step_builder.h"
#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

namespace {

// A sequence whose proposals were all right has two tokens more than the draft model: its own, and the last
// proposed.
constexpr int32_t kAlways = 2;

}  // namespace

DraftModel::DraftModel(std::unique_ptr<Executor> executor, DraftModelOptions options)
    : executor_(std::move(executor)),
      options_(std::move(options)),
      kv_(options_.shapes, executor_->facts().block_size, options_.prefix_cache),
      draws_(executor_->threads(), options_.target_vocab) {
  const ModelFacts& facts = executor_->facts();
  if (facts.state_bytes > 0) {
    throw Error("InvalidOptionError",
                "[draft] a model with recurrent layers cannot be a draft, because its states cannot be taken "
                "back behind a wrong proposal; choose another one");
  }
  std::vector<int32_t> blocks;
  for (const GroupShape& shape : options_.shapes) blocks.push_back(shape.blocks);
  executor_->allocate(blocks, options_.max_tokens, options_.max_seqs, options_.max_seqs, 0);
  kv_.on_copy([this](int32_t group, int32_t from, int32_t to) { executor_->copy_block(group, from, to); });
  measure_steps(
      executor_->facts(), std::min(options_.max_seqs, options_.max_tokens),
      [this](const Step& step) { executor_->run(step); },
      [this](int32_t tokens, double seconds) { cost_.observe(tokens, seconds); });
}

void DraftModel::forget(const Sequence& sequence) {
  const auto found = mirrors_.find({sequence.id, sequence.completion});
  if (found == mirrors_.end()) return;
  kv_.release(found->second.own.blocks);
  mirrors_.erase(found);
}

double DraftModel::start_seconds(const Sequence& sequence) const {
  const auto found = mirrors_.find({sequence.id, sequence.completion});
  const int32_t computed =
      found == mirrors_.end() ? 0 : std::min(found->second.own.computed, found->second.known);
  const int32_t missing = sequence.size() - 1 - computed;
  return missing > kAlways ? cost_.seconds(missing) : 0;
}

void DraftModel::let_go(Mirror& mirror) {
  kv_.release(mirror.own.blocks);
  mirror.own.computed = 0;
  mirror.started = false;
}

// Brings the mirror of a sequence up to its tokens. What was proposed and turned out right stays computed.
DraftModel::Mirror& DraftModel::follow(const Sequence& sequence) {
  Mirror& mirror = mirrors_[{sequence.id, sequence.completion}];
  Sequence& own = mirror.own;
  if (mirror.known == 0) {
    own.id = sequence.id;
    own.completion = sequence.completion;
    own.prompt_tokens = sequence.prompt_tokens;
    own.sampling = DraftDraws::plain(sequence.sampling);
    own.seed = sequence.seed;
  }
  mirror.asked = calls_;
  auto same = static_cast<size_t>(mirror.known);
  while (same < own.tokens.size() && same < sequence.tokens.size() &&
         own.tokens[same] == sequence.tokens[same])
    ++same;
  mirror.known = static_cast<int32_t>(same);
  own.tokens.resize(same);
  own.tokens.insert(own.tokens.end(), sequence.tokens.begin() + static_cast<std::ptrdiff_t>(same),
                    sequence.tokens.end());
  mirror.known = own.size();
  // The last token is computed once more if it was computed already, for its logits.
  own.computed = std::min({own.computed, static_cast<int32_t>(same), own.size() - 1});
  kv_.shrink(own.blocks, std::min(own.blocks.size(), kv_.blocks_for(own.computed)));
  return mirror;
}

void DraftModel::start(Mirror& mirror) {
  if (mirror.started) return;
  const KvBlocks::Match match = kv_.match(mirror.own.tokens, mirror.own.sampling->cache_salt);
  kv_.attach(match, mirror.own.blocks);
  mirror.own.computed = static_cast<int32_t>(match.path.size()) * kv_.block_size();
  mirror.started = true;
}

// Takes the blocks for the next tokens of a mirror. Where there are none, sequences that were not asked for
// in this call give up theirs, the one that was asked for longest ago first.
bool DraftModel::take_blocks(Mirror& mirror, int32_t tokens) {
  Sequence& own = mirror.own;
  while (!kv_.make_writable(own.blocks, own.computed, own.computed + tokens)) {
    Mirror* oldest = nullptr;
    for (auto& [name, other] : mirrors_) {
      if (other.asked == calls_ || other.own.blocks.size() == 0) continue;
      if (!oldest || other.asked < oldest->asked) oldest = &other;
    }
    if (!oldest) return false;
    let_go(*oldest);
  }
  return true;
}

void DraftModel::append(StepPlan& plan, Mirror& mirror, int32_t tokens) {
  PlannedChunk chunk{};
  chunk.sequence = &mirror.own;
  chunk.tokens = tokens;
  plan.chunks.push_back(chunk);
  plan.tokens += tokens;
}

// Plans the pass that computes what the sequences have and the draft model has not: as much as one pass
// takes, those that lack least first. Of the completions of a request one computes the prompt; the others
// find it in the cache in a later call. `drawing` gets those whose next token is drawn from the pass.
StepPlan DraftModel::plan_first(std::vector<Wanted>& wanted, std::vector<Wanted*>* drawing) {
  std::vector<Wanted*> order;
  for (Wanted& one : wanted) order.push_back(&one);
  std::ranges::stable_sort(order, {}, [](const Wanted* one) { return one->mirror->own.pending(); });
  StepPlan plan;
  std::set<int64_t> in_prompt;
  for (Wanted* one : order) {
    Mirror& mirror = *one->mirror;
    Sequence& own = mirror.own;
    start(mirror);
    if (own.computed + 1 < own.prompt_tokens && !in_prompt.insert(own.id).second) {
      let_go(mirror);
      continue;
    }
    const int32_t tokens = std::min(own.pending(), options_.max_tokens - plan.tokens);
    if (tokens <= 0) continue;
    if (!take_blocks(mirror, tokens)) {
      let_go(mirror);
      continue;
    }
    append(plan, mirror, tokens);
    if (tokens == own.pending()) drawing->push_back(one);
  }
  return plan;
}

// Plans the pass that computes the tokens which were drawn last, of the sequences that are to get more.
StepPlan DraftModel::plan_next(std::vector<Wanted*>& drawing) {
  StepPlan plan;
  std::erase_if(drawing, [&](Wanted* one) {
    Sequence& own = one->mirror->own;
    const bool more = !one->failed && static_cast<int32_t>(one->draft->size()) < one->most &&
                      own.size() <= executor_->facts().max_seq_len &&
                      own.tokens.back() < executor_->facts().vocab_size && take_blocks(*one->mirror, 1);
    if (more) append(plan, *one->mirror, 1);
    return !more;
  });
  return plan;
}

void DraftModel::propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) {
  ++calls_;
  const ModelFacts& facts = executor_->facts();
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].sequence;
    if (sequence.size() > facts.max_seq_len) {
      forget(sequence);
      continue;
    }
    Mirror& mirror = follow(sequence);
    const auto from = mirror.own.tokens.begin() + mirror.own.computed;
    // A token that the draft model does not have is never computed, so it is looked at again and again.
    if (std::any_of(from, mirror.own.tokens.end(), [&](int32_t t) { return t >= facts.vocab_size; }))
      continue;
    wanted.push_back({&mirror, wishes[i].most, &(*drafts)[i]});
  }
  std::vector<Wanted*> drawing;
  StepPlan plan = plan_first(wanted, &drawing);
  if (plan.chunks.empty()) return;
  run(plan, drawing);
  for (plan = plan_next(drawing); !plan.chunks.empty(); plan = plan_next(drawing)) run(plan, drawing);
}

void DraftModel::run(const StepPlan& plan, std::vector<Wanted*>& drawing) {
  const Clock::time_point begin = Clock::now();
  build_step(plan, kv_.groups(), kv_.block_size(), &step_);
  step_.draws.clear();
  if (executor_->draws_tokens()) step_.draws = DraftDraws::by_executor(draws_of(drawing));
  const LogitRows logits = executor_->run(step_);
  computed_tokens_ += plan.tokens;
  for (const PlannedChunk& chunk : plan.chunks) {
    Sequence& own = *chunk.sequence;
    own.computed += chunk.tokens;
  }
  for (const PlannedChunk& chunk : plan.chunks) {
    Mirror& mirror = mirrors_.at({chunk.sequence->id, chunk.sequence->completion});
    if (chunk.sequence->size() == mirror.known) remember(mirror);
  }
  draw(logits, drawing);
  cost_.observe(plan.tokens,
                seconds_since(begin));  // the draws as well
}

// Remembers the computed tokens of a sequence that has no proposed ones yet, and gives back the blocks that
// no later position sees. The last token may be computed again, so it does not count.
void DraftModel::remember(Mirror& mirror) {
  Sequence& own = mirror.own;
  const int32_t lasting = std::min(own.computed, own.size() - 1);
  kv_.publish(own.blocks, std::span(own.tokens).first(static_cast<size_t>(lasting)),
              own.sampling->cache_salt);
  kv_.drop_unseen(own.blocks, lasting);
}

// Returns how the rows of a pass are drawn.
std::vector<DraftDraw> DraftModel::draws_of(const std::vector<Wanted*>& drawing) {
  std::vector<DraftDraw> draws;
  for (const Wanted* one : drawing) {
    const Sequence& own = one->mirror->own;
    draws.push_back({own.sampling.get(), own.seed, {own.tokens, own.prompt_tokens}});
  }
  return draws;
}

// Draws the next token of each sequence of `drawing`, whose rows are in the same order.
void DraftModel::draw(const LogitRows& logits, std::vector<Wanted*>& drawing) {
  if (logits.rows != static_cast<int32_t>(drawing.size()))
    throw Error("TensorwrightError", "[draft] a pass must return a row for each sequence that draws");
  const std::vector<int32_t> tokens =
      draws_.draw(*executor_, logits, executor_->facts().vocab_size, draws_of(drawing));
  for (size_t i = 0; i < drawing.size(); ++i) {
    Wanted& one = *drawing[i];
    one.failed = tokens[i] < 0;
    if (one.failed) continue;
    one.mirror->own.tokens.push_back(tokens[i]);
    one.draft->push_back(tokens[i]);
  }
}

void DraftModel::check() const {
  for (int32_t group = 0; group < kv_.groups(); ++group) {
    int64_t held = 0;
    for (const auto& [name, mirror] : mirrors_) {
      if (mirror.own.blocks.size() > 0) held += mirror.own.blocks.tables[static_cast<size_t>(group)].held();
    }
    kv_.check(group, held);
  }
}

}  // namespace tensorwright
