#include "runtime/core/engine_core.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>

namespace tensorwright {

namespace {

void require_option(bool holds, const std::string& must, int64_t came, const std::string& remedy) {
  if (holds) return;
  throw Error("InvalidOptionError", "[engine] " + must + ", got " + std::to_string(came) + "; " + remedy);
}

void validate_options(const EngineOptions& o) {
  require_option(o.max_batch_size >= 1, "max_batch_size must be at least 1", o.max_batch_size, "raise it");
  require_option(o.max_num_tokens >= o.max_batch_size,
                 "max_num_tokens must be at least max_batch_size " + std::to_string(o.max_batch_size),
                 o.max_num_tokens, "every running sequence needs a token per step: raise it");
  require_option(o.max_queue >= 1, "max_queue_size must be at least 1", o.max_queue, "raise it");
  require_option(o.kv_cache_bytes >= 0, "kv_cache_memory must not be negative", o.kv_cache_bytes, "raise it");
  require_option(o.max_chunk >= 0, "max_prefill_chunk must be 0 (no cap) or positive", o.max_chunk,
                 "raise it");
  require_option(o.debug_preempt_every >= 0, "debug_preempt_every must be 0 (never) or positive",
                 o.debug_preempt_every, "raise it");
}

// Blocks per cache group. Slots are int32, which bounds a group's blocks too.
int32_t count_blocks(const ModelFacts& facts, int64_t bytes) {
  int64_t each = std::accumulate(facts.block_bytes.begin(), facts.block_bytes.end(), int64_t{0});
  if (facts.block_size < 1 || each < 1)
    throw std::logic_error("[engine] the executor's facts have no KV blocks");
  if (bytes < each) {
    throw Error("OutOfMemoryError", "[engine] kv_cache_memory must hold at least one block of " +
                                        std::to_string(each) + " bytes, got " + std::to_string(bytes) +
                                        "; raise it");
  }
  return static_cast<int32_t>(
      std::min<int64_t>(bytes / each, std::numeric_limits<int32_t>::max() / facts.block_size));
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

bool contains(const std::vector<int32_t>& ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

// Why the sequence is done after its last token, "" if it is not.
const char* finish_reason(const Sequence& sequence, int32_t max_seq_len) {
  const Sampling& s = sequence.sampling;
  int32_t token = sequence.tokens.back();
  if (contains(s.stop_token_ids, token) || (!s.ignore_eos && contains(s.eos_token_ids, token))) return "stop";
  if (sequence.generated() >= s.max_tokens || sequence.size() >= max_seq_len) return "length";
  return "";
}

// What a request is told: its type if it has one of ours.
Error as_error(const std::exception& error) {
  if (auto* typed = dynamic_cast<const Error*>(&error)) return *typed;
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return Error("OutOfMemoryError", "[engine] a step needs memory and got none; lower max_num_tokens");
  }
  return Error("TensorwrightError", std::string("[engine] a step failed: ") + error.what());
}

Clock::time_point deadline(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

EngineCore::EngineCore(std::unique_ptr<Executor> executor, const EngineOptions& options)
    : executor_(std::move(executor)) {
  validate_options(options);
  const ModelFacts& facts = executor_->facts();
  int32_t groups = static_cast<int32_t>(facts.block_bytes.size());
  int32_t blocks = count_blocks(facts, options.kv_cache_bytes);
  executor_->allocate(std::vector<int32_t>(groups, blocks), options.max_num_tokens, options.max_batch_size,
                      options.max_batch_size);
  kv_ = std::make_unique<KvBlocks>(groups, blocks, facts.block_size, options.prefix_cache);
  scheduler_ = std::make_unique<Scheduler>(
      *kv_, SchedulerLimits{options.max_batch_size, options.max_num_tokens, options.max_chunk,
                            options.debug_preempt_every, options.debug_seed});
}

void EngineCore::add(Request request, Clock::time_point arrived) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->size();
  sequence->sampling = std::move(request.sampling);
  sequence->seed = sequence->sampling.seed ? *sequence->sampling.seed : random_seed();
  sequence->arrived = arrived;
  if (sequence->sampling.timeout_s >= 0) sequence->deadline = deadline(arrived, sequence->sampling.timeout_s);
  scheduler_->add(std::move(sequence));
}

Event EngineCore::event_of(const Sequence& sequence) const {
  Event event;
  event.request_id = sequence.id;
  event.prompt_tokens = sequence.prompt_tokens;
  event.cached_tokens = std::max(sequence.cached_tokens, 0);
  event.queue_s = sequence.queue_s;
  event.first_token_s = sequence.first_token_s;
  return event;
}

void EngineCore::end(int64_t id, const Error* error, std::vector<Event>* events) {
  close(id, error ? "error" : "abort", error, events);
}

void EngineCore::close(int64_t id, const char* finish, const Error* error, std::vector<Event>* events) {
  std::unique_ptr<Sequence> sequence = scheduler_->remove(id);
  if (!sequence) return;
  Event event = event_of(*sequence);
  event.finish = finish;
  if (error) {
    event.error_type = error->type();
    event.error = error->what();
  }
  ++(error ? failed_ : event.finish == "abort" ? aborted_ : timed_out_);
  events->push_back(std::move(event));
}

void EngineCore::end_all(std::vector<Event>* events) {
  std::vector<int64_t> ids;
  scheduler_->for_each([&](const Sequence& sequence) { ids.push_back(sequence.id); });
  for (int64_t id : ids) end(id, nullptr, events);
}

void EngineCore::expire(Clock::time_point now, std::vector<Event>* events) {
  std::vector<int64_t> ids;
  scheduler_->for_each([&](const Sequence& sequence) {
    if (sequence.deadline <= now) ids.push_back(sequence.id);
  });
  for (int64_t id : ids) close(id, "timeout", nullptr, events);
}

void EngineCore::step(std::vector<Event>* events) {
  if (idle()) return;
  StepPlan plan = scheduler_->plan();
  if (plan.chunks.empty())
    throw std::logic_error("[engine] the scheduler has sequences but no step for them");
  std::vector<int64_t> ids;
  for (const PlannedChunk& chunk : plan.chunks) ids.push_back(chunk.sequence->id);
  if (run(plan, ids.size() == 1, events)) return;
  // Who was at fault? Each gets its share of the step alone, with the same result as in company; who throws
  // again dies. One that finds no room waits for the next step; the first always has room, so every retry
  // gets on.
  for (int64_t id : ids) {
    plan = scheduler_->plan_only(id);
    if (!plan.chunks.empty()) run(plan, true, events);
  }
}

// False if the executor threw: the plan is rolled back, and its first request ended if `at_fault`.
bool EngineCore::run(StepPlan& plan, bool at_fault, std::vector<Event>* events) {
  std::vector<Sequence*> rows;
  for (const PlannedChunk& chunk : plan.chunks) {
    if (chunk.sequence->queue_s < 0) chunk.sequence->queue_s = seconds_since(chunk.sequence->arrived);
    if (chunk.last()) rows.push_back(chunk.sequence);
  }
  LogitRows logits;
  try {
    logits = execute(plan, static_cast<int32_t>(rows.size()));
  } catch (const std::exception& error) {
    Error typed = as_error(error);
    int64_t first = plan.chunks[0].sequence->id;
    scheduler_->rollback(plan);
    if (at_fault) end(first, &typed, events);
    return false;
  }
  scheduler_->commit(plan);
  for (int32_t row = 0; row < logits.rows; ++row) take_token(*rows[row], logits, row, events);
  return true;
}

LogitRows EngineCore::execute(const StepPlan& plan, int32_t rows) {
  build_step(plan, kv_->groups(), kv_->block_size(), &step_);
  LogitRows logits = executor_->wait(executor_->enqueue(step_));
  if (logits.rows == rows) return logits;
  throw Error("TensorwrightError", "[engine] an executor must return the " + std::to_string(rows) +
                                       " rows it was asked for, got " + std::to_string(logits.rows) +
                                       "; this is a bug of the executor");
}

void EngineCore::take_token(Sequence& sequence, const LogitRows& logits, int32_t row,
                            std::vector<Event>* events) {
  std::span<const float> values(logits.data + row * logits.stride, static_cast<size_t>(facts().vocab_size));
  Sample sample;
  try {
    sample = sampler_.sample(values, sequence.sampling, sequence.seed, sequence.size(),
                             {sequence.tokens, sequence.prompt_tokens});
  } catch (const std::exception& error) {
    Error typed = as_error(error);
    end(sequence.id, &typed, events);
    return;
  }
  sequence.tokens.push_back(sample.token);
  ++generated_;
  if (sequence.first_token_s < 0) sequence.first_token_s = seconds_since(sequence.arrived);
  Event event = event_of(sequence);
  event.tokens = {sample.token};
  if (sequence.sampling.logprobs >= 0) event.logprobs.push_back(std::move(sample.logprobs));
  event.finish = finish_reason(sequence, facts().max_seq_len);
  if (event.finish == "stop") event.stop_token = sample.token;
  events->push_back(std::move(event));
  if (events->back().finish.empty()) return;
  ++finished_;
  scheduler_->remove(sequence.id);
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  stats.total_blocks = kv_->group(0).total();
  stats.free_blocks = kv_->group(0).free();
  stats.cached_blocks = kv_->group(0).idle();
  stats.used_blocks = kv_->group(0).used();
  stats.waste_slots = scheduler_->waste_slots();
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.evictions = kv_->evictions();
  stats.finished = finished_;
  stats.aborted = aborted_;
  stats.timed_out = timed_out_;
  stats.failed = failed_;
  stats.generated_tokens = generated_;
  stats.steps = scheduler_->stats();
  return stats;
}

}  // namespace tensorwright
