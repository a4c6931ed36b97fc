#include "runtime/core/executor/cpu_executor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/executor/row_padding.h"

namespace tensorwright {
namespace {

constexpr size_t kMaxPlanBytes = size_t{1} << 30;

Plan read_plan(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxPlanBytes);
  return Plan::parse(bytes);
}

[[noreturn]] void refuse(const std::string& fault) { throw Error("InvalidRequestError", fault); }

BufferRef logits_of(const Plan& plan) {
  const int32_t at = plan.header.logits_buffer;
  return at < 0 ? BufferRef() : BufferRef(plan.buffers[static_cast<size_t>(at)]);
}

std::shared_ptr<ThreadTeam> make_team(const CpuExecutorOptions& options, const Topology* topology) {
  Placement placement;
  const int threads = options.threads > 0 ? options.threads : usable_processors();
  if (!options.processors.empty()) {
    placement = place_threads(Topology::of_machine(options.processors), threads);
  } else if (may_place(options.numa, options.load)) {
    placement = placement_for(options.numa, topology ? *topology : Topology::of_machine(), threads);
  }
  auto team = std::make_shared<ThreadTeam>(options.threads, std::move(placement));
  team->set_cut(options.cut);
  return team;
}

// plan.cc bounds both factors: at most 2^40 bytes per row, below 2^31 rows.
Arena activations(uint64_t bytes_per_row, int32_t rows) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(bytes_per_row, static_cast<size_t>(rows), &bytes)) bytes = SIZE_MAX;
  return Arena(bytes, "activations");
}

void check_allocation(const ModelFacts& facts, const std::vector<int32_t>& blocks, const StepLimits& limits) {
  if (blocks.size() != facts.block_bytes.size()) {
    refuse(concat("allocate: blocks must have ", facts.block_bytes.size(),
                  " entries, one per cache group, has ", blocks.size()));
  }
  for (int32_t count : blocks) {
    const int32_t most = std::numeric_limits<int32_t>::max() / facts.block_size;  // slots are 32 bits
    if (count < 0 || count > most) refuse(concat("allocate: blocks must be 0 to ", most, ", are ", count));
  }
  if (limits.tokens < 1 || limits.rows < 0 || limits.seqs < 1) {
    refuse(concat("allocate: max_tokens and max_seqs must be positive and max_rows not negative, are ",
                  limits.tokens, ", ", limits.seqs, " and ", limits.rows));
  }
  if (facts.state_bytes > 0 ? limits.state_slots < 1 : limits.state_slots != 0) {
    refuse(concat("allocate: state_slots must be ", facts.state_bytes > 0 ? "positive" : "0",
                  " for a model with ", facts.state_bytes, " bytes of states, are ", limits.state_slots));
  }
}

}  // namespace

CpuExecutor::CpuExecutor(const std::string& plan_path, const std::string& weights_path,
                         const CpuExecutorOptions& options, const Topology* topology)
    : plan_(read_plan(plan_path)),
      facts_(plan_.facts()),
      team_(options.team ? options.team : make_team(options, topology)),
      weights_(weights_path, plan_.header.weights_bytes, options.load, *team_,
               place_weights(plan_, team_->placement(), options.numa)),
      kv_(plan_),
      states_(plan_),
      kept_(plan_, states_),
      dispatch_(explain_dispatch()),
      adapters_(plan_, options.max_adapters, options.max_adapter_rank, selected_isa()),
      profile_(plan_),
      timeline_(options.timeline),
      logits_(logits_of(plan_)),
      logit_end_(plan_.logit_instructions()),
      populate_bytes_(options.populate) {
  if (plan_.meets_ranks() && !options.place.ranks) {
    throw Error("EngineError", concat(plan_path,
                                      ": is the plan of one rank of a parallel engine, which cannot run "
                                      "alone; open the engine's folder"));
  }
  const OpContext context{plan_, weights_.data(), kv_, states_, selected_isa(), options.place};
  operations_.reserve(plan_.instructions.size());
  for (const Instruction& instruction : plan_.instructions) {
    operations_.push_back(make_operation(instruction, context));
  }
  if (const Instruction* entry = plan_.heads()) {
    heads_ = std::make_unique<Heads>(Heads{plan_.model_instructions(), context.buffer(entry->in[0]),
                                           context.buffer(entry->ints[0]), context.buffer(entry->ints[1])});
  }
}

void CpuExecutor::allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                           int32_t max_seqs, int32_t state_slots) {
  const StepLimits limits{max_tokens, max_rows, max_seqs, state_slots};
  if (checker_) refuse("allocate: may be called once only");
  check_allocation(facts_, blocks, limits);
  size_t scratch = 0;
  for (const auto& operation : operations_)
    scratch = std::max(scratch, operation->reserve(limits, team_->threads()));
  scratch_ = Arena(scratch, "attention scratch");
  token_arena_ = activations(plan_.header.token_arena_bytes, max_tokens);
  row_arena_ = activations(plan_.header.row_arena_bytes, max_rows);
  adapters_.allocate(limits);
  kv_.allocate(blocks);
  states_.allocate(state_slots);
  populate();
  checker_ = std::make_unique<StepChecker>(facts_, limits, blocks);
  if (!heads_) return;
  const auto none = static_cast<int32_t>(blocks.size());  // heads without attention read no group
  const int32_t group = facts_.draft_group < 0 ? none : facts_.draft_group;
  draft_checker_ = std::make_unique<StepChecker>(facts_, limits, blocks, 0, group);
}

// Populates the first blocks of every layer and the first states, which the first request gets, then the
// memory that every step writes to, then the other blocks and states.
void CpuExecutor::populate() {
  std::vector<MemoryPiece> pieces = kv_.pieces();
  const Arena* arenas[] = {&scratch_, &row_arena_, &token_arena_};
  auto at = pieces.begin() + static_cast<std::ptrdiff_t>(std::min(pieces.size(), plan_.kv_layers.size()));
  for (const Arena* arena : arenas) at = pieces.insert(at, {arena->data(), arena->bytes()}) + 1;
  std::vector<MemoryPiece> states = states_.pieces();
  if (!states.empty()) {
    pieces.insert(pieces.begin(), states.front());
    pieces.insert(pieces.end(), states.begin() + 1, states.end());
  }
  populator_.start(pieces, populate_bytes_, *team_);
}

LogitRows CpuExecutor::run(const Step& step) {
  if (!checker_) refuse("run: allocate() must be called first");
  checker_->check(step);
  adapters_.begin(step);
  StepView view{
      step, {token_arena_.data(), row_arena_.data()}, {step.tokens(), step.rows()}, scratch_.data()};
  const WatchedPadding watched(plan_, view);
  kept_.begin(step);
  const bool features = features_wanted_ && heads_;
  const size_t end = features ? heads_->begin : logit_end_;
  if (profile_.enabled() || (timeline_ && !timeline_->full())) {
    run_watched(view, end);
  } else {
    run_operations(view, 0, end);
  }
  kept_.end(step);
  features_ = features ? FeatureRows{heads_->model.floats(view), heads_->model.stride} : FeatureRows{};
  if (plan_.header.logits_buffer < 0) return {nullptr, 0, step.rows()};
  return {logits_.floats(view), logits_.stride, step.rows()};
}

DraftRows CpuExecutor::run_draft(const Step& step, const float* features) {
  if (!heads_) refuse("run_draft: the plan has no heads");
  if (!draft_checker_) refuse("run_draft: allocate() must be called first");
  draft_checker_->check(step);
  StepView view{step,
                {token_arena_.data(), row_arena_.data()},
                {step.tokens(), step.rows()},
                scratch_.data(),
                features};
  const WatchedPadding watched(plan_, view);
  run_operations(view, heads_->begin, operations_.size());
  features_ = {};
  return {{heads_->logits.floats(view), heads_->logits.stride, step.rows()},
          {heads_->hidden.floats(view), heads_->hidden.stride}};
}

// Only instructions of the model have adapters, so heads have none.
void CpuExecutor::run_operation(StepView& view, size_t index) {
  if (!view.step.adapters.empty()) view.addends = adapters_.addends(index, view, *team_);
  operations_[index]->run(view, *team_);
}

void CpuExecutor::run_operations(StepView& view, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) run_operation(view, i);
}

// Watches a team while it lives.
class WatchedTeam {
 public:
  explicit WatchedTeam(ThreadTeam* team) : team_(team) {
    if (team_) team_->watch(true);
  }
  ~WatchedTeam() {
    if (!team_) return;
    team_->watch(false);
    team_->forget_spans();
  }
  WatchedTeam(const WatchedTeam&) = delete;
  WatchedTeam& operator=(const WatchedTeam&) = delete;

 private:
  ThreadTeam* team_;
};

// Steps of heads are not measured.
void CpuExecutor::run_watched(StepView& view, size_t end) {
  const bool profiled = profile_.enabled();
  std::vector<Measured> measured(end);
  const int64_t first = Timeline::now();
  int64_t begin = first;
  const WatchedTeam watched(timeline_ ? team_.get() : nullptr);
  for (size_t i = 0; i < end; ++i) {
    run_operation(view, i);
    const int64_t now = Timeline::now();
    measured[i].nanoseconds = now - begin;
    if (timeline_) keep_spans(i, view.step.tokens(), begin, now);
    begin = timeline_ ? Timeline::now() : now;
  }
  if (!profiled) return;
  for (size_t i = 0; i < end; ++i) {
    measured[i].cost = operations_[i]->cost(view);
    measured[i].experts = operations_[i]->expert_use();
  }
  profile_.add(view.step, measured, begin - first);
}

void CpuExecutor::keep_spans(size_t instruction, int32_t tokens, int64_t begin, int64_t end) {
  Span span{begin, end, static_cast<int64_t>(instruction), SpanKind::kOp};
  span.a = tokens;
  timeline_->add(span);
  for (const ThreadTeam::ThreadSpan& own : team_->spans()) {
    Span tasks{own.begin, own.end, static_cast<int64_t>(instruction), SpanKind::kTasks, own.thread};
    tasks.a = own.tasks;
    timeline_->add(tasks);
  }
  team_->forget_spans();
}

WeightReads CpuExecutor::weight_reads() const { return tensorwright::weight_reads(plan_, operations_); }

void CpuExecutor::check_blocks(const char* call, int32_t group, std::initializer_list<int32_t> blocks) const {
  const std::vector<int32_t>& counts = kv_.blocks();
  if (group < 0 || static_cast<size_t>(group) >= counts.size()) {
    refuse(concat(call, ": group must be 0 to ", static_cast<int64_t>(counts.size()) - 1, ", is ", group));
  }
  const int32_t count = counts[static_cast<size_t>(group)];
  for (int32_t block : blocks) {
    if (block < 0 || block >= count) refuse(concat(call, ": block must be 0 to ", count - 1, ", is ", block));
  }
}

void CpuExecutor::check_slots(const char* call, std::initializer_list<int32_t> slots) const {
  for (int32_t slot : slots) {
    if (slot < 0 || slot >= states_.slots())
      refuse(concat(call, ": slot must be 0 to ", states_.slots() - 1, ", is ", slot));
  }
}

void CpuExecutor::copy_block(int32_t group, int32_t from, int32_t to) {
  check_blocks("copy_block", group, {from, to});
  kv_.copy_block(group, from, to);
}

void CpuExecutor::copy_state(int32_t from, int32_t to) {
  check_slots("copy_state", {from, to});
  states_.copy(from, to, *team_);
}

std::span<const uint8_t> CpuExecutor::gone_blocks(int32_t group, int32_t slot) const {
  check_slots("gone_blocks", {slot});
  return kept_.gone(group, slot);
}

void CpuExecutor::read_block(int32_t group, int32_t block, char* to) const {
  check_blocks("read_block", group, {block});
  kv_.read_block(group, block, to);
}

void CpuExecutor::write_block(int32_t group, int32_t block, const char* from) {
  check_blocks("write_block", group, {block});
  kv_.write_block(group, block, from);
}

// The states of a slot lie one behind the other (state_storage.h).
void CpuExecutor::read_state(int32_t slot, char* to) const {
  check_slots("read_state", {slot});
  if (states_.slot_bytes() > 0) std::memcpy(to, states_.at(0, slot), states_.slot_bytes());
}

void CpuExecutor::write_state(int32_t slot, const char* from) {
  check_slots("write_state", {slot});
  if (states_.slot_bytes() > 0) std::memcpy(states_.at(0, slot), from, states_.slot_bytes());
}

// The tasks compute with denormals, as threads outside of the team do: a result must not depend on the
// thread.
void CpuExecutor::run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) {
  team_->run(tasks, [&](int task, int thread) {
    const DenormalGuard guard(false);
    fn(task, thread);
  });
}

std::unique_ptr<Executor> make_cpu_executor(const std::string& plan_path, const std::string& weights_path,
                                            const CpuExecutorOptions& options) {
  return std::make_unique<CpuExecutor>(plan_path, weights_path, options);
}

}  // namespace tensorwright
