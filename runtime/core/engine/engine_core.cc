// The engine's step in its order: plan, compute, draw tokens, report events. It has more than 500 lines
// because every part of a step changes the same books of sequences, and a failure in one part is undone in
// another.
#include "runtime/core/engine/engine_core.h"

#include <algorithm>
#include <new>
#include <random>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/invariants.h"
#include "runtime/core/base/make_room.h"
#include "runtime/core/base/sparse_prefill.h"
#include "runtime/core/interface/fatal_error.h"
#include "runtime/core/sampling/row_draw.h"
#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

namespace {

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The number of steps between two checks of the invariants. A check takes about a microsecond.
constexpr int64_t kCheckEvery = 16;

// The engine waits for a late mask for at most 1 / kGraceShare of the time that the rows took, because the
// other rows of the step wait too. A sequence whose mask comes later sits out: it loses a step.
constexpr int kGraceShare = 2;

// Returns why the sequence ends with its last token, or "" if it does not end.
const char* finish_reason(const Sequence& sequence, int32_t max_seq_len) {
  const Sampling& s = *sequence.sampling;
  if (ends_sequence(s, sequence.tokens.back())) return "stop";
  if (sequence.generated() >= s.max_tokens || sequence.size() >= max_seq_len) return "length";
  return "";
}

Clock::time_point deadline(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Error as_error(const std::exception& error) {
  if (auto* typed = dynamic_cast<const Error*>(&error)) return *typed;
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return Error("OutOfMemoryError", "[engine] a step needs memory and got none; lower max_num_tokens");
  }
  return Error("TensorwrightError", std::string("[engine] a step failed: ") + error.what());
}

EngineCore::EngineCore(std::unique_ptr<Executor> executor, const EngineOptions& options, MaskSource* masks,
                       std::unique_ptr<Proposer> proposer)
    : executor_(std::move(executor)),
      beams_(executor_->facts().max_seq_len),
      pace_(options.itl_goal_s, options.max_num_tokens),
      samplers_(static_cast<size_t>(executor_->threads())),
      timeline_(options.timeline),
      masks_(masks),
      debug_lose_block_(options.debug_lose_block) {
  validate_options(options);
  const ModelFacts& facts = executor_->facts();
  require_whole_chunks(facts, options);
  shapes_ = share_blocks(facts, options);
  std::vector<int32_t> blocks;
  for (const GroupShape& shape : shapes_) blocks.push_back(shape.blocks);
  blocks.resize(facts.block_bytes.size());  // the executor has none of those that only count positions
  StateShape states;
  if (facts.state_bytes > 0)
    states = {options.max_batch_size, options.prefix_cache ? options.state_snapshots : 0};
  if (proposer && facts.state_bytes > 0) {
    throw Error("InvalidOptionError",
                "[engine] nothing can be proposed to a model with recurrent layers or a kv_budget, because "
                "states and "
                "scores of blocks cannot be taken back behind a wrong proposal; leave speculative out");
  }
  // No step has more rows than tokens.
  const int32_t prompt_rows = prompt_rows_of(facts, options);
  int64_t rows = int64_t{options.max_batch_size} + prompt_rows;
  rows = std::min<int64_t>(rows + (proposer ? options.speculation.max_rows : 0), options.max_num_tokens);
  executor_->allocate(blocks, options.max_num_tokens, static_cast<int32_t>(rows), options.max_batch_size,
                      states.sequences + states.snapshots);
  kv_ = std::make_unique<KvBlocks>(shapes_, facts.block_size, options.prefix_cache,
                                   PrefixTree::Hash{secret_hash}, states);
  kv_->on_gone([this](int32_t group, int32_t slot) { return executor_->gone_blocks(group, slot); });
  kv_->on_copy_state([this](int32_t from, int32_t to) { executor_->copy_state(from, to); });
  if (!facts.block_bytes.empty())
    kv_->on_copy([this](int32_t group, int32_t from, int32_t to) { executor_->copy_block(group, from, to); });
  scheduler_ = std::make_unique<Scheduler>(
      *kv_, SchedulerLimits{options.max_batch_size, options.max_num_tokens, options.max_chunk,
                            options.debug_preempt_every, options.debug_seed, prompt_rows, options.ageing_s,
                            facts.chunk_multiple, facts.chunk_stop()});
  // What is imported for nobody who waits here leaves as many blocks of a group as a step can take: one that
  // each sequence's chunk begins in, and those of a full step.
  const int32_t reserve = options.max_batch_size + kv_->blocks_for(options.max_num_tokens) + 1;
  transfer_ = std::make_unique<PrefixTransfer>(*kv_, *executor_, reserve);
  scheduler_->on_lack([this] { return transfer_->give_way(); });
  pins_ = std::make_unique<PrefixPins>(*kv_, pinned_room(facts, options), facts.block_bytes);
  // The states of recurrent layers could not be taken back if a step behind forced tokens had to wait.
  if (options.jump_forward && masks && facts.state_bytes == 0) {
    forced_ = std::make_unique<ForcedTokens>(*masks, facts.vocab_size, facts.max_seq_len, prompt_rows);
  }
  if (options.cache_events > 0) make_log(options);
  if (options.tiers.enabled()) make_tiers(options.tiers);
  if (!proposer) return;
  drafter_ = std::make_unique<Drafter>(std::move(proposer), options.speculation, facts.max_seq_len);
  drafter_->begin();
  measure_steps(
      facts, static_cast<int32_t>(rows), [this](const Step& step) { executor_->run(step); },
      [this](int32_t tokens, double seconds) {
        drafter_->observe_step({.tokens = tokens, .seconds = seconds});
      });
}

std::vector<GroupShape> EngineCore::groups_for_requests() const {
  std::vector<GroupShape> groups = shapes_;
  for (GroupShape& group : groups) group.blocks -= pins_->stats().room;
  return groups;
}

void EngineCore::make_log(const EngineOptions& options) {
  if (!kv_->remembers() || executor_->facts().state_bytes > 0)
    throw Error(
        "InvalidOptionError",
        "[engine] events tell of the blocks of a prefix cache of a model without recurrent layers or a "
        "kv_budget; set enable_prefix_caching, or leave cache_events out");
  cache_log_ =
      std::make_unique<CacheLog>(static_cast<size_t>(options.cache_events), executor_->facts().block_size);
  block_names_.emplace(options.tiers.secret);
  kv_->archive(*block_names_, nullptr);
  kv_->log_to(*cache_log_);
}

CacheLog& EngineCore::cache_log() {
  if (cache_log_) return *cache_log_;
  throw Error("InvalidRequestError",
              "[engine] this engine tells no events of its prefix cache; start it with cache_events");
}

void EngineCore::make_tiers(const TierOptions& options) {
  const ModelFacts& model = executor_->facts();
  if (!kv_->remembers() || model.state_bytes > 0 || model.block_bytes.empty())
    throw Error("InvalidOptionError",
                "[engine] tiers keep the blocks of a prefix cache of a model without recurrent layers or a "
                "kv_budget; set "
                "enable_prefix_caching, or leave prefix_cache_memory and prefix_cache_disk out");
  tiers_ = std::make_unique<BlockTiers>(options, model.block_bytes, cache_log_.get());
  kv_->archive(tiers_->hash(), [this](const PrefixTree::Node& node, size_t group) {
    const auto number = static_cast<int32_t>(group);
    tiers_->put({node.archived, number}, node.priority, executor_->facts().block_bytes[group],
                [&](char* to) { executor_->read_block(number, node.blocks[group], to); });
  });
  fetches_ = std::make_unique<PrefixFetches>(*kv_, *tiers_, model.block_bytes);
  scheduler_->on_start([this](const Sequence& sequence) { return fetches_->ask(sequence); });
}

void EngineCore::start_fetching(PrefixFetches::Visit visit) {
  if (fetches_) fetches_->start(std::move(visit));
}

void EngineCore::stop_fetching() {
  if (fetches_) fetches_->stop();
}

void EngineCore::save_prefixes(Clock::time_point until) {
  pins_->end();
  if (!tiers_) return;
  bool goes_on = true;
  for (int32_t group = 0; goes_on && group < kv_->groups(); ++group) {
    const int64_t bytes = executor_->facts().block_bytes[static_cast<size_t>(group)];
    kv_->visit_idle(group, [&](const PrefixTree::Node& node) {
      const auto fill = [&](char* to) {
        executor_->read_block(group, node.blocks[static_cast<size_t>(group)], to);
      };
      try {
        return goes_on = tiers_->save({node.archived, group}, node.priority, bytes, fill, until);
      } catch (const std::bad_alloc&) {  // what lies in memory already is written still
        return goes_on = false;
      }
    });
  }
  tiers_->close(until);
}

void EngineCore::end_tiers() {
  if (tiers_) tiers_->end();
}

std::vector<std::string> EngineCore::take_notices() {
  return tiers_ ? tiers_->take_notices() : std::vector<std::string>();
}

void EngineCore::add(Request request, Clock::time_point arrived) {
  if (request.sampling.guided && !masks_)
    throw std::logic_error("[engine] a guided request needs a source of masks");
  auto sequence = std::make_unique<Sequence>();
  const int64_t id = sequence->id = request.id;
  sequence->tokens = std::move(request.prompt);
  const int32_t prompt_tokens = sequence->prompt_tokens = sequence->size();
  sequence->shareable = shareable_tokens(prompt_tokens, facts().sparse_prefill, kv_->block_size());
  request.sampling.cache_salt = prefix_salt(request.sampling);
  const Sampling& sampling =
      *(sequence->sampling = std::make_shared<const Sampling>(std::move(request.sampling)));
  sequence->seed = sampling.seed ? *sampling.seed : random_seed();
  sequence->forks = sampling.sequences() - 1;
  sequence->arrived = arrived;
  if (sampling.timeout_s >= 0) sequence->deadline = deadline(arrived, sampling.timeout_s);
  if (sampling.deadline_s >= 0) sequence->must_end = deadline(arrived, sampling.deadline_s);
  const auto open = open_.emplace(request.id, sampling.sequences()).first;
  try {
    scheduler_->add(std::move(sequence));
  } catch (...) {
    open_.erase(open);
    throw;
  }
  ++added_;
  if (!timeline_) return;
  const int64_t at = Timeline::nanoseconds(arrived);
  Span span{at, at, id, SpanKind::kArrived};
  span.a = prompt_tokens;
  timeline_->add(span);
}

void EngineCore::add_or_fail(Request request, Clock::time_point arrived, std::vector<Event>* events) {
  Event event;
  event.request_id = request.id;
  event.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  const int32_t completions = request.sampling.n;
  try {
    add(std::move(request), arrived);
  } catch (const std::bad_alloc& error) {
    const Error typed = as_error(error);
    event.finish = "error";
    event.error_type = typed.type();
    event.error = typed.what();
    for (; event.completion < completions; ++event.completion) events->push_back(event);
    ++added_;
    ++failed_;
  }
}

Event EngineCore::event_of(const Sequence& sequence) const {
  Event event;
  event.request_id = sequence.id;
  event.completion = sequence.completion;
  event.prompt_tokens = sequence.prompt_tokens;
  event.cached_tokens = std::max(sequence.cached_tokens, 0);
  event.draft_tokens = sequence.drafted;
  event.accepted_tokens = sequence.accepted;
  event.queue_s = sequence.queue_s;
  event.first_token_s = sequence.first_token_s;
  return event;
}

void EngineCore::end(int64_t id, const Error* error, std::vector<Event>* events) {
  close([&](const Sequence& sequence) { return sequence.id == id; }, error ? "error" : "abort", error,
        events);
}

void EngineCore::end_completion(int64_t id, int32_t completion, std::vector<Event>* events) {
  const Name name(id, completion);
  // The completions of a beam search come into being together, at its end.
  auto started = [&](const Sequence& s) {
    return Name(s.id, s.completion) == name && !s.sampling->beams() && (s.forks == 0 || s.generated() > 0);
  };
  close(started, "abort", nullptr, events);
}

// Ends all the sequences that `wanted` chooses. If there is no memory for their events, it ends none and
// throws. Forks that have not started yet end with the sequence that they would come from. Of a beam search
// only the n completions that were asked for have events.
void EngineCore::close(const std::function<bool(const Sequence&)>& wanted, const char* finish,
                       const Error* error, std::vector<Event>* events) {
  std::vector<Event> last;
  std::vector<bool> told;  // [last]
  scheduler_->for_each([&](const Sequence& sequence) {
    if (!wanted(sequence)) return;
    Event event = event_of(sequence);
    event.finish = finish;
    if (error) {
      event.error_type = error->type();
      event.error = error->what();
    }
    const auto add = [&] {
      last.push_back(event);
      told.push_back(event.completion < sequence.sampling->n);
    };
    add();
    for (int32_t completion = 1; completion <= sequence.forks; ++completion) {
      event.completion = completion;
      add();
    }
  });
  make_room(*events, last.size());
  // Nothing throws from here on.
  for (size_t i = 0; i < last.size(); ++i) {
    remove(last[i]);
    if (told[i]) events->push_back(std::move(last[i]));
  }
}

// Removes the completion from all books; `last` is its last event.
void EngineCore::remove(const Event& last) {
  if (timeline_) {
    const int64_t now = Timeline::now();
    timeline_->add({now, now, last.request_id, SpanKind::kEnded, last.completion});
  }
  const std::unique_ptr<Sequence> sequence = scheduler_->remove(last.request_id, last.completion);
  if (sequence) std::erase_if(pending_, [&](const Draw& draw) { return draw.sequence == sequence.get(); });
  if (sequence && drafter_) drafter_->forget(*sequence);
  if (sequence && sequence->sampling->beams()) beams_.forget(last.request_id);
  count(last.request_id, 1,
        last.finish == "error"     ? &failed_
        : last.finish == "abort"   ? &aborted_
        : last.finish == "timeout" ? &timed_out_
                                   : &finished_);
}

// A request is counted once: the end of its last completion decides in which counter.
void EngineCore::count(int64_t id, int32_t ended, int64_t* counter) {
  auto open = open_.find(id);
  if ((open->second -= ended) > 0) return;
  open_.erase(open);
  ++*counter;
}

std::vector<EngineCore::Share> EngineCore::alive(const std::function<bool(const Sequence&)>& wanted) const {
  std::vector<Share> shares;
  scheduler_->for_each([&](const Sequence& sequence) {
    if (wanted(sequence)) shares.push_back(share_of(sequence));
  });
  return shares;
}

void EngineCore::end_all(std::vector<Event>* events) {
  close([](const Sequence&) { return true; }, "abort", nullptr, events);
}

void EngineCore::expire(Clock::time_point now, std::vector<Event>* events) {
  close([&](const Sequence& sequence) { return sequence.deadline <= now; }, "timeout", nullptr, events);
  if (fetches_ && fetches_->stalled(now)) scheduler_->stop_fetching();
  std::vector<std::pair<int64_t, double>> late;  // requests, and the deadlines that they were given
  scheduler_->for_each([&](const Sequence& sequence) {
    if (is_late(sequence, now)) late.emplace_back(sequence.id, sequence.sampling->deadline_s);
  });
  for (const auto& [id, given] : late) {
    if (!open_.contains(id)) continue;  // another of its completions was late too
    const Error error(
        "DeadlineError",
        "[request] a request must end by its deadline, " + std::to_string(given) +
            " s after its arrival, and this one cannot any more; allow it more time, or ask for "
            "fewer tokens");
    end(id, &error, events);
    ++late_;
  }
}

// Returns whether a sequence cannot end by its deadline any more: even if all its steps were as fast as the
// fastest that there were, and the prefix cache had what it may have.
bool EngineCore::is_late(const Sequence& sequence, Clock::time_point now) const {
  if (sequence.must_end == Clock::time_point::max()) return false;
  const double left = std::chrono::duration<double>(sequence.must_end - now).count();
  if (left <= 0) return true;
  // Of a sequence that waits, all but the last token may be in the cache.
  const int32_t prompt = sequence.computed > 0 || !kv_->remembers() ? sequence.pending() : 1;
  const int32_t tokens = std::max(1, sequence.sampling->min_tokens);
  const int32_t drawn = drafter_ ? 0 : std::max(0, tokens - sequence.generated() - 1);
  return fastest_.least(prompt, drawn) > left;
}

Clock::time_point EngineCore::next_deadline() const {
  Clock::time_point first = fetches_ ? fetches_->stalls_at() : Clock::time_point::max();
  scheduler_->for_each(
      [&](const Sequence& sequence) { first = std::min({first, sequence.deadline, sequence.must_end}); });
  return first;
}

void EngineCore::step(std::vector<Event>* events) {
  if (!can_step()) return;
  take_step(events);
  if (++calls_ % kCheckEvery == 0 || calls_ == debug_lose_block_) check();
}

void EngineCore::check() {
  if (debug_lose_block_ > 0 && calls_ == debug_lose_block_) kv_->make_writable(debug_lost_, 0, 1);
  ++checks_;
  scheduler_->check([this](int32_t group) { return transfer_->held(group) + pins_->held(group); });
  int64_t sequences = 0, completions = 0;
  scheduler_->for_each([&](const Sequence& sequence) { sequences += sequence.places(); });
  for (const auto& [id, left] : open_) completions += left;
  check_equal("completions of open requests", completions, sequences);
  check_equal("requests that ended or are open",
              finished_ + aborted_ + timed_out_ + failed_ + static_cast<int64_t>(open_.size()), added_);
}

void EngineCore::take_step(std::vector<Event>* events) {
  StepPlan plan;
  std::vector<Share> shares;
  if (forced_) {
    forced_->await_masks(*scheduler_, events);
    if (idle()) return;  // what was alive has ended meanwhile
  }
  try {
    scheduler_->set_pace(pace_.pace());
    plan = scheduler_->plan();
    shares = shares_of(plan);
  } catch (const std::logic_error&) {  // an error of the engine itself
    throw;
  } catch (const std::exception&) {  // a block could not be copied, or there was no memory
    if (!plan.chunks.empty()) scheduler_->rollback(plan);
    forget_preempted();
    shares = alive([](const Sequence& sequence) { return sequence.computed > 0; });
    // If no sequence has started yet, the first one starts alone, or fails alone. So each call makes
    // progress.
    if (shares.empty())
      shares = alive(
          [first = true](const Sequence& s) mutable { return !s.parked && std::exchange(first, false); });
    run_each(shares, events);
    return;
  }
  forget_preempted();
  if (plan.chunks.empty()) {
    if (scheduler_->only_fetches()) return;
    if (pending_.empty()) throw std::logic_error("[engine] the scheduler has sequences but no step for them");
    if (draw_ready(events)) return;  // a mask may have come since the last look
    masks_->wait_for_masks(Clock::time_point::max(), events);
    draw_ready(events);
    return;
  }
  if (forced_ || drafter_) draft(plan);
  if (!run(plan, shares.size() == 1, events)) run_each(shares, events);
}

// Adds drafts to the decodes of the plan. Where that fails for want of memory, the step has fewer.
void EngineCore::draft(StepPlan& plan) {
  try {
    if (forced_) forced_->extend(plan, *scheduler_);
    if (drafter_) drafter_->extend(plan, *scheduler_);
  } catch (const std::bad_alloc&) {
  }
}

EngineCore::Share EngineCore::share_of(const Sequence& sequence) {
  return {{sequence.id, sequence.completion}, sequence.computed};
}

std::vector<EngineCore::Share> EngineCore::shares_of(const StepPlan& plan) {
  std::vector<Share> shares;
  for (const PlannedChunk& chunk : plan.chunks) shares.push_back(share_of(*chunk.sequence));
  return shares;
}

// Finds the sequences at fault after a step failed. It computes the share of each sequence alone, which gives
// the same result as in company. A sequence whose share fails again ends with the error. A sequence that
// finds no room waits for the next step. The first sequence always has room, so each call makes progress.
void EngineCore::run_each(const std::vector<Share>& shares, std::vector<Event>* events) {
  for (const Share& share : shares) {
    try {
      run_alone(share, events);
    } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) {
      Error typed = as_error(error);
      end(share.name.first, &typed, events);
    }
  }
}

// Computes a sequence's share of a step that failed. Where the failed step has spoilt the sequence's states,
// it first computes again what was computed before, or steps that always fail in company would keep the
// sequence from ever getting on.
void EngineCore::run_alone(const Share& share, std::vector<Event>* events) {
  for (bool gets_on = false; !gets_on;) {
    StepPlan plan = scheduler_->plan_only(share.name.first, share.name.second);
    if (plan.chunks.empty()) return;
    gets_on = plan.chunks[0].sequence->computed + plan.chunks[0].tokens > share.computed;
    if (!run(plan, true, events)) return;
  }
}

// Computes a planned step. Returns false if the executor threw or there was no memory; then the plan is
// rolled back, and with `at_fault` its first request ends with the error.
bool EngineCore::run(StepPlan& plan, bool at_fault, std::vector<Event>* events) {
  std::vector<WantedRows> wanted;
  LogitRows logits;
  const Clock::time_point start = Clock::now();
  bool ran = false;
  try {
    wanted = wanted_rows(plan);
    ran = true;
    logits = execute(plan, wanted);
    if (drafter_) drafter_->computed(plan);
  } catch (const FatalError&) {  // no step can be computed any more
    throw;
  } catch (const std::exception& error) {
    const int64_t first = plan.chunks[0].sequence->id;
    scheduler_->rollback(plan, ran);
    const Error typed = as_error(error);
    if (at_fault) end(first, &typed, events);
    return false;
  }
  const Clock::time_point computed = Clock::now();
  const Clock::duration computing = computed - start;
  const int64_t number = scheduler_->stats().steps;
  if (timeline_) keep_step(plan, number, logits.rows, start, computed);
  if (forced_) forced_->observe_step(computing);
  scheduler_->commit(plan);
  const bool waits =
      std::ranges::any_of(wanted, [](const WantedRows& w) { return w.sequence->sampling->guided; });
  StepTime time = StepTime::of(plan);
  PacedStep paced{plan.decodes, plan.prefill()};
  take_rows(wanted, logits, computing, events);
  if (timeline_) keep_draws(number, logits.rows, computed);
  // What every step takes besides its tokens is saved by each step that is saved. Waits for masks are not.
  const Clock::duration whole = waits ? computing : Clock::now() - start;
  paced.seconds = time.seconds = std::chrono::duration<double>(whole).count();
  observe(paced, waits, start);
  if (waits) time.decodes = 0;
  if (drafter_) drafter_->observe_step(time);
  if (fetches_ && time.decodes == 0) fetches_->observe(time.tokens, time.seconds);
  return true;
}

// Learns from a step that has ended. What clients see between two tokens is the time from the end of one step
// to the end of the next. waited: whether the step waited for masks, which is no matter of its size.
void EngineCore::observe(PacedStep step, bool waited, Clock::time_point start) {
  fastest_.observe(step.decodes + step.prefill, step.seconds);
  const Clock::time_point now = Clock::now();
  if (!waited && step_ended_ && *step_ended_ <= start)
    step.seconds = std::chrono::duration<double>(now - *step_ended_).count();
  pace_.observe(step);
  step_ended_.reset();
  if (!idle()) step_ended_ = now;
}

void EngineCore::keep_step(const StepPlan& plan, int64_t number, int32_t rows, Clock::time_point begin,
                           Clock::time_point end) noexcept {
  Span span{Timeline::nanoseconds(begin), Timeline::nanoseconds(end), number};
  for (const PlannedChunk& chunk : plan.chunks) {
    Span share = span;
    share.id = chunk.sequence->id;
    share.kind = SpanKind::kShare;
    share.track = chunk.sequence->completion;
    share.a = chunk.tokens + chunk.drafted;
    share.b = chunk.sequence->computed;
    timeline_->add(share);
    ++span.b;
  }
  span.a = plan.tokens;
  span.c = rows;
  span.d = scheduler_->waiting();
  timeline_->add(span);
}

void EngineCore::keep_draws(int64_t number, int32_t rows, Clock::time_point begin) noexcept {
  Span span{Timeline::nanoseconds(begin), Timeline::now(), number, SpanKind::kSample};
  span.a = rows;
  span.b = kv_->group(static_cast<int32_t>(widest_group())).free();
  span.c = scheduler_->running();
  timeline_->add(span);
}

// Returns the rows that the plan needs. It also makes room for the draws from them: after the step is
// committed, a lack of memory could not be undone.
std::vector<EngineCore::WantedRows> EngineCore::wanted_rows(const StepPlan& plan) {
  std::vector<WantedRows> wanted;
  size_t draws = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    if (sequence.queue_s < 0) sequence.queue_s = sequence.since_arrival();
    wanted.push_back({&sequence, chunk.prompt_rows, chunk.last() ? 1 + chunk.drafted : 0});
    if (chunk.last()) draws += static_cast<size_t>(sequence.places());
  }
  make_room(pending_, draws);
  ready_.reserve(pending_.capacity());
  return wanted;
}

LogitRows EngineCore::execute(const StepPlan& plan, const std::vector<WantedRows>& wanted) {
  int64_t rows = 0;
  for (const WantedRows& chunk : wanted) rows += chunk.prompt + chunk.drawn;
  build_step(plan, static_cast<int32_t>(facts().block_bytes.size()), kv_->block_size(), &step_,
             facts().sparse_prefill > 0);
  ask_for_tokens(wanted);
  LogitRows logits = executor_->run(step_);
  if (logits.rows == rows) return logits;
  throw Error("TensorwrightError", "[engine] an executor must return the " + std::to_string(rows) +
                                       " rows it was asked for, got " + std::to_string(logits.rows) +
                                       "; this is a bug of the executor");
}

// Leaves the draws to the executor that it can do. A row that several sequences or tokens of a draft are
// drawn from is none of them.
void EngineCore::ask_for_tokens(const std::vector<WantedRows>& wanted) {
  step_.draws.clear();
  if (!executor_->draws_tokens()) return;
  bool any = false;
  for (const auto& [sequence, prompt, drawn] : wanted) {
    step_.draws.resize(step_.draws.size() + static_cast<size_t>(prompt + drawn));
    if (drawn != 1 || sequence->forks > 0) continue;
    const History history{sequence->tokens, sequence->prompt_tokens};
    step_.draws.back() = row_draw(*sequence->sampling, sequence->seed, sequence->size(), history);
    any = any || step_.draws.back().wanted;
  }
  if (!any) step_.draws.clear();
}

std::span<const float> EngineCore::values(const LogitRows& logits, int32_t row) const {
  return {logits.data + row * logits.stride, static_cast<size_t>(facts().columns())};
}

// Returns the draw from the first of a sequence's rows.
EngineCore::Draw EngineCore::draw_of(Sequence& sequence, const LogitRows& logits, int32_t row,
                                     int32_t rows) const {
  Draw draw{&sequence, {}};
  draw.ahead = rows - 1;
  draw.stride = logits.stride;
  if (logits.tokens) draw.token = logits.tokens[row];
  if (draw.token < 0) draw.row = values(logits, row);
  return draw;
}

// Reports the logprobs of prompt positions and draws tokens from the other rows. `computing` is the time that
// the rows took.
void EngineCore::take_rows(const std::vector<WantedRows>& wanted, const LogitRows& logits,
                           Clock::duration computing, std::vector<Event>* events) {
  std::vector<Failure> failures;
  int32_t row = 0;
  for (const WantedRows& chunk : wanted) {
    auto [sequence, prompt, drawn] = chunk;
    const int64_t id = sequence->id;  // pool() may end the sequence
    try {
      if (sequence->sampling->pools()) {
        pool(chunk, logits, row, events);
        row += prompt + drawn;
        continue;
      }
      take_prompt_logprobs(*sequence, logits, row, prompt, events);
      if (drawn > 0) fork(*sequence, draw_of(*sequence, logits, row + prompt, drawn));
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
    row += prompt + drawn;
  }
  end_failed(failures, events);
  await_masks(Clock::now() + computing / kGraceShare, events);
  sit_out(events);
}

// Draws from the rows that need no mask or have one. It waits until `until` for the masks of this step's
// other rows. It does not wait for the mask of a sequence that sits out already, unless all sequences wait
// for a mask.
void EngineCore::await_masks(Clock::time_point until, std::vector<Event>* events) {
  while (true) {
    if (draw_ready(events)) continue;
    bool late = std::ranges::all_of(pending_, [](const Draw& draw) { return draw.kept != nullptr; });
    bool alone = !pending_.empty() && all_wait();
    if (late && !alone) return;
    if (masks_->wait_for_masks(alone ? Clock::time_point::max() : until, events)) continue;
    draw_ready(events);
    return;
  }
}

bool EngineCore::all_wait() const {
  return pending_.size() == static_cast<size_t>(scheduler_->running()) + scheduler_->waiting();
}

// Draws from the rows that need no mask or have one. Returns false if there are none.
bool EngineCore::draw_ready(std::vector<Event>* events) {
  take_ready();
  if (ready_.empty()) return false;
  take_tokens(events);
  return true;
}

// Copies the rows whose masks have not come, because the executor's rows are valid only until its next step.
// Their sequences have no token to compute, so the scheduler passes them over.
void EngineCore::sit_out(std::vector<Event>* events) {
  std::vector<Failure> failures;
  for (Draw& draw : pending_) {
    if (draw.kept) continue;
    try {
      draw.kept = std::make_shared<const std::vector<float>>(draw.row.begin(), draw.row.end());
      draw.row = *draw.kept;
      draw.ahead = 0;  // the rows behind it are not kept
      if (!draw.sequence->draft.empty()) scheduler_->settle(*draw.sequence);
      ++sat_out_;
    } catch (const std::bad_alloc& error) {
      failures.push_back({draw.sequence->id, as_error(error)});
    }
  }
  end_failed(failures, events);
}

// Drops the rows of sequences that were preempted. Such a sequence computes its row again.
void EngineCore::forget_preempted() {
  std::erase_if(pending_, [](const Draw& draw) { return draw.sequence->pending() > 0; });
}

// Adds the draws of `first` and of the sequences that fork from it. All of them draw from the same row.
void EngineCore::fork(Sequence& first, const Draw& draw) {
  if (first.sampling->beams()) return pending_.push_back(draw);  // they fork when their tokens are chosen
  std::vector<Sequence*> sequences = scheduler_->fork(first);
  for (Sequence* fork : sequences) fork->seed = completion_seed(fork->seed, fork->completion);
  pending_.push_back(draw);
  for (Sequence* sequence : sequences) pending_.push_back({sequence, draw.row});
}

// Moves the draws that need no mask or have one from pending_ to ready_. It needs no memory.
void EngineCore::take_ready() {
  ready_.clear();
  size_t left = 0;
  for (Draw& draw : pending_) {
    const Sequence& sequence = *draw.sequence;
    bool guided = sequence.sampling->guided;
    if (guided) draw.mask = masks_->take_mask(sequence.id, sequence.completion, sequence.generated());
    if (guided && !draw.mask) {
      if (&pending_[left] != &draw) pending_[left] = std::move(draw);
      ++left;
    } else {
      ready_.push_back(std::move(draw));
    }
  }
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(left), pending_.end());
}

// Draws from all rows of ready_ at once, on the executor's threads. A failure ends the whole request, but
// only after all rows are done, because other completions of the request may be among them.
void EngineCore::take_tokens(std::vector<Event>* events) {
  process_rows();
  executor_->run_tasks(static_cast<int>(ready_.size()), [this](int task, int thread) {
    Draw& mine = ready_[static_cast<size_t>(task)];
    if (mine.error) return;
    try {
      sample(mine, thread);
    } catch (...) {
      mine.error = std::current_exception();
    }
  });
  std::vector<Failure> failures;
  for (Draw& draw : ready_) {
    int64_t id = draw.sequence->id;  // take_token() may end the sequence
    try {
      if (draw.error) std::rethrow_exception(draw.error);
      if (draw.sequence->sampling->beams()) {
        beams_.take(*draw.sequence, std::move(draw.next), *scheduler_);
      } else {
        take_draw(draw, events);
      }
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
  }
  ready_.clear();
  end_failed(failures, events);
  advance_beams(events);
}

// Goes on with the searches all of whose beams have their rows.
void EngineCore::advance_beams(std::vector<Event>* events) {
  std::vector<Failure> failures;
  for (int64_t id : beams_.complete()) {
    try {
      if (beams_.advance(id, *scheduler_)) end_search(id, events);
    } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
  }
  end_failed(failures, events);
}

// Reports the best answers of a search that is over, and removes its sequences. If it throws, nothing has
// changed.
void EngineCore::end_search(int64_t id, std::vector<Event>* events) {
  const std::vector<BeamAnswer>& answers = beams_.answers(id);
  std::vector<Event> last;
  int32_t sequences = 0;
  size_t wanted = 0;
  double first_token_s = -1;
  scheduler_->for_each([&](const Sequence& sequence) {
    if (sequence.id != id) return;
    sequences = sequence.sampling->sequences();
    wanted = static_cast<size_t>(sequence.sampling->n);
    if (last.empty()) last.assign(std::min(wanted, answers.size()), event_of(sequence));
    first_token_s = sequence.since_arrival();
  });
  if (answers.size() < wanted) {
    throw Error("InvalidRequestError", "[request] a beam search must find n = " + std::to_string(wanted) +
                                           " answers, got " + std::to_string(answers.size()) +
                                           "; forbid fewer tokens, or lower n");
  }
  for (size_t i = 0; i < wanted; ++i) {
    last[i].completion = static_cast<int32_t>(i);
    last[i].tokens = answers[i].tokens;
    last[i].logprobs = answers[i].logprobs;
    last[i].finish = answers[i].finish;
    last[i].stop_token = answers[i].stop_token;
    last[i].cumulative_logprob = answers[i].cumulative_logprob;
    last[i].first_token_s = first_token_s;
  }
  make_room(*events, wanted);
  // Nothing throws from here on.
  Event ended;
  ended.request_id = id;
  ended.finish = "stop";
  for (; ended.completion < sequences; ++ended.completion) remove(ended);
  for (Event& event : last) {
    generated_ += static_cast<int64_t>(event.tokens.size());
    events->push_back(std::move(event));
  }
}

// Adds a drawn token to its sequence. If the sequence's draft has the same token there, the row behind that
// token is drawn from next; else the rest of the draft is wrong, and is taken back.
void EngineCore::take_draw(Draw& draw, std::vector<Event>* events) {
  Sequence& sequence = *draw.sequence;
  const int32_t token = draw.sample.token;
  bool right = false;
  if (draw.ahead > 0) {
    const auto place = static_cast<int32_t>(sequence.draft.size()) - draw.ahead;
    right = token == sequence.draft[static_cast<size_t>(place)];
    if (!sequence.forced) {
      drafter_->verified(sequence, place, right);
    } else if (right) {
      forced_->verified();
    }
  }
  if (!take_token(sequence, std::move(draw.sample), events)) return;
  if (right) {
    scheduler_->accept(sequence);
    // There is room: the draw of this sequence that was there before has gone to ready_.
    Draw next{&sequence, {draw.row.data() + draw.stride, draw.row.size()}};
    next.ahead = draw.ahead - 1;
    next.stride = draw.stride;
    pending_.push_back(std::move(next));
  } else if (!sequence.draft.empty()) {
    scheduler_->settle(sequence);
  }
}

void EngineCore::end_failed(const std::vector<Failure>& failures, std::vector<Event>* events) {
  for (const Failure& failure : failures) end(failure.id, &failure.error, events);
}

// Runs the requests' own processors on copies of their rows, all at once. An error is that of its draw.
void EngineCore::process_rows() {
  const auto processes = [](const Draw& draw) { return draw.sequence->sampling->processor != nullptr; };
  if (std::ranges::none_of(ready_, processes)) return;
  std::vector<ProcessedRow> rows;
  for (const Draw& draw : ready_) {
    if (!processes(draw)) continue;
    rows.push_back({draw.sequence->sampling->processor.get(), draw.sequence->tokens, nullptr});
    try {
      rows.back().row = std::make_shared<std::vector<float>>(draw.row.begin(), draw.row.end());
    } catch (const std::bad_alloc&) {
      rows.back().error = std::current_exception();
    }
  }
  rows[0].processor->process(rows);
  size_t next = 0;
  for (Draw& draw : ready_) {
    if (!processes(draw)) continue;
    draw.changed = std::move(rows[next].row);
    draw.error = rows[next++].error;
  }
}

// Draws a token from the row, or finds what may follow a beam.
void EngineCore::sample(Draw& draw, int thread) {
  if (draw.token >= 0) {
    draw.sample.token = draw.token;
    return;
  }
  const Sequence& sequence = *draw.sequence;
  Sampler& sampler = samplers_[static_cast<size_t>(thread)];
  const History history{sequence.tokens, sequence.prompt_tokens};
  if (sequence.sampling->beams()) {
    draw.next = sampler.likeliest(draw.row, *sequence.sampling, history);
    return;
  }
  std::span<const uint32_t> mask;
  if (draw.mask) mask = *draw.mask;
  std::span<const float> changed;
  if (draw.changed) changed = *draw.changed;
  draw.sample =
      sampler.sample(draw.row, *sequence.sampling, sequence.seed, sequence.size(), history, mask, changed);
}

// Reports the logprobs of the sequence's next `rows` prompt positions. Their logits begin at row `row`.
void EngineCore::take_prompt_logprobs(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows,
                                      std::vector<Event>* events) {
  if (rows == 0) return;
  Event event = event_of(sequence);
  for (int32_t i = 0; i < rows; ++i) {
    int32_t next = sequence.tokens[sequence.scored + i + 1];
    event.prompt_logprobs.push_back(
        samplers_[0].score(values(logits, row + i), next, sequence.sampling->prompt_logprobs));
  }
  events->push_back(std::move(event));
  sequence.scored += rows;
}

// Adds up the rows of a chunk of a request that pools, or, at the last position, reports the result and
// removes the sequence. The sum of each column is in float64 and in the order of the positions, one after the
// other, so that chunks, company and preemption change none of its bits. If it throws, nothing has changed.
void EngineCore::pool(const WantedRows& wanted, const LogitRows& logits, int32_t row,
                      std::vector<Event>* events) {
  Sequence& sequence = *wanted.sequence;
  const Sampling& sampling = *sequence.sampling;
  std::vector<double>& sums = sequence.pooled_sums;
  const auto columns = static_cast<size_t>(facts().columns());
  const bool mean = sampling.pooling == Pooling::mean, last = wanted.drawn > 0;
  if (mean) sums.resize(columns);
  Event event;
  if (last) {
    sequence.first_token_s = sequence.since_arrival();
    event = event_of(sequence);
    event.pooled.resize(sampling.pooled_columns.empty() ? columns : sampling.pooled_columns.size());
    make_room(*events, 1);
  }
  // Nothing throws from here on: the names of a finish are short.
  for (int32_t i = 0; i < wanted.prompt; ++i) {
    const std::span<const float> values = this->values(logits, row + i);
    for (size_t j = 0; j < columns; ++j) sums[j] += values[j];
  }
  sequence.scored += wanted.prompt;
  if (!last) return;
  const std::span<const float> values = this->values(logits, row + wanted.prompt);
  for (size_t i = 0; i < event.pooled.size(); ++i) {
    const size_t j = sampling.pooled_columns.empty() ? i : static_cast<size_t>(sampling.pooled_columns[i]);
    event.pooled[i] = mean ? static_cast<float>((sums[j] + values[j]) / sequence.prompt_tokens) : values[j];
  }
  event.finish = "stop";
  events->push_back(std::move(event));
  remove(events->back());
}

// Adds a drawn token to its sequence and reports it. Returns whether the sequence goes on. If it throws,
// nothing has changed.
bool EngineCore::take_token(Sequence& sequence, Sample sample, std::vector<Event>* events) {
  if (sequence.first_token_s < 0) sequence.first_token_s = sequence.since_arrival();
  Event event = event_of(sequence);
  event.tokens = {sample.token};
  if (sequence.sampling->logprobs >= 0) event.logprobs.push_back(std::move(sample.logprobs));
  make_room(*events, 1);
  make_room(sequence.tokens, 1);
  // Nothing throws from here on: the names of a finish are short.
  sequence.tokens.push_back(sample.token);
  ++generated_;
  event.finish = finish_reason(sequence, facts().max_seq_len);
  if (event.finish == "stop") event.stop_token = sample.token;
  events->push_back(std::move(event));
  if (events->back().finish.empty()) return true;
  remove(events->back());
  return false;
}

// Returns the group of layers that see most positions.
size_t EngineCore::widest_group() const noexcept {
  const auto width = [&](size_t j) { return shapes_[j].window == 0 ? INT32_MAX : shapes_[j].window; };
  size_t widest = 0;
  for (size_t i = 1; i < shapes_.size(); ++i) {
    if (width(i) > width(widest)) widest = i;
  }
  return widest;
}

EngineLoad EngineCore::load() const noexcept {
  const BlockAllocator& blocks = kv_->group(static_cast<int32_t>(widest_group()));
  return {scheduler_->running(), scheduler_->waiting(), blocks.used(), blocks.total()};
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const BlockAllocator& group = kv_->group(static_cast<int32_t>(i));
    stats.groups.push_back({shapes_[i].window, group.total(), group.free(), group.idle(), group.used(),
                            shapes_[i].chunked, shapes_[i].sink_tokens, shapes_[i].kept * kv_->block_size()});
  }
  const EngineStats::Blocks& blocks = stats.groups[widest_group()];
  stats.total_blocks = blocks.total;
  stats.free_blocks = blocks.free;
  stats.cached_blocks = blocks.cached;
  stats.used_blocks = blocks.used;
  stats.waste_slots = scheduler_->waste_slots();
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.evictions = kv_->evictions();
  stats.finished = finished_;
  stats.aborted = aborted_;
  stats.timed_out = timed_out_;
  stats.failed = failed_;
  stats.generated_tokens = generated_;
  stats.state_slots = kv_->state_slots();
  stats.used_state_slots = kv_->used_state_slots();
  stats.state_snapshots = kv_->snapshots();
  stats.snapshots = kv_->snapshot_stats();
  stats.sat_out = sat_out_;
  stats.late = late_;
  stats.steps_over_goal = pace_.over();
  stats.pace = pace_.pace();
  stats.invariant_checks = checks_;
  stats.steps = scheduler_->stats();
  if (drafter_) stats.speculation = drafter_->stats();
  if (forced_) stats.forced_tokens = forced_->saved();
  if (tiers_) stats.tiers = tiers_->stats();
  if (fetches_) stats.fetches = fetches_->stats();
  stats.pins = pins_->stats();
  return stats;
}

}  // namespace tensorwright
