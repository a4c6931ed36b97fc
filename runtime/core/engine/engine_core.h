// The engine without its thread: it takes requests, runs steps and reports events. One caller at a time may
// use it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/engine/beams.h"
#include "runtime/core/engine/cache_content.h"
#include "runtime/core/engine/engine_options.h"
#include "runtime/core/engine/fastest_steps.h"
#include "runtime/core/engine/forced_tokens.h"
#include "runtime/core/engine/mask_source.h"
#include "runtime/core/engine/prefix_fetches.h"
#include "runtime/core/engine/prefix_pins.h"
#include "runtime/core/engine/prefix_transfer.h"
#include "runtime/core/engine/started_step.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/sampling/sampler.h"
#include "runtime/core/scheduler/request.h"
#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/scheduler/step_builder.h"
#include "runtime/core/scheduler/step_pace.h"
#include "runtime/core/speculation/drafter.h"
#include "runtime/core/tiers/block_tiers.h"

namespace tensorwright {

struct EngineStats {
  // The blocks of one cache group; total = free + cached + used.
  struct Blocks {
    int32_t window, total, free, cached, used;
    bool chunked;         // the window begins at a multiple of its length
    int32_t sink_tokens;  // first positions that every position sees besides its window
    int32_t kv_budget;    // positions that a sequence keeps where blocks are forgotten; 0: all
  };
  std::vector<Blocks> groups;
  // The blocks of the group with the widest window; a group without a window is the widest.
  int32_t total_blocks = 0, free_blocks = 0, cached_blocks = 0, used_blocks = 0;
  int64_t waste_slots = 0;  // slots of used blocks that hold no token; below block_size per running sequence
  int32_t running = 0, waiting = 0;
  int64_t evictions = 0;
  int64_t finished = 0, aborted = 0, timed_out = 0, failed = 0;  // requests, by their last completion's end
  int64_t generated_tokens = 0;
  // The slots of the states of recurrent layers: of running sequences and of snapshots.
  int32_t state_slots = 0, used_state_slots = 0, state_snapshots = 0;
  SnapshotStats snapshots;
  int64_t steps_ahead = 0;    // steps that were started before the tokens of the last one were known
  int64_t forced_tokens = 0;  // tokens that a grammar forced and that cost no step of their own
  int64_t sat_out = 0;        // times that a sequence was put aside until its mask comes
  int64_t late = 0;           // completions that could not end by their deadline
  // With itl_goal_s: steps with decodes that took longer, and the pace as it is.
  int64_t steps_over_goal = 0;
  Pace pace;
  int64_t invariant_checks = 0, invariant_violations = 0;  // a violation stops the engine
  SchedulerStats steps;
  SpeculationStats speculation;
  TierStats tiers;
  FetchStats fetches;
  PinStats pins;
};

// What an engine holds at the moment. It takes less time to ask for it than for EngineStats.
struct EngineLoad {
  int32_t running = 0, waiting = 0;
  int32_t used_blocks = 0, total_blocks = 0;  // of the group with the widest window
};

// Returns the error that a request ends with. It keeps the type of an Error; other exceptions become an
// OutOfMemoryError or a TensorwrightError.
Error as_error(const std::exception& error);

class EngineCore {
 public:
  // masks: the source of the masks of guided requests; without it no request may be guided. proposer: makes
  // the drafts of decoding sequences; without it there are none. Throws Error: InvalidOptionError,
  // OutOfMemoryError, and what the executor throws.
  EngineCore(std::unique_ptr<Executor> executor, const EngineOptions& options, MaskSource* masks = nullptr,
             std::unique_ptr<Proposer> proposer = nullptr);

  const ModelFacts& facts() const { return executor_->facts(); }
  // The thread that will call step() calls this once.
  void begin_thread() { executor_->begin_thread(); }
  void end_thread() { executor_->end_thread(); }
  const std::vector<GroupShape>& groups() const { return shapes_; }
  // Returns the groups without the blocks that pinned prefixes may hold: what a request must fit.
  std::vector<GroupShape> groups_for_requests() const;

  // Returns whether requests may have this adapter. Any thread may call it.
  bool owns(const Adapter& adapter) const { return executor_->owns(adapter); }

  // Adds a request that has been validated. If it throws, nothing has changed.
  void add(Request request, Clock::time_point arrived);
  // Adds a request as add() does. If there is no memory, all completions of the request end with "error".
  void add_or_fail(Request request, Clock::time_point arrived, std::vector<Event>* events);
  // If one of the next four throws, nothing has changed.
  // Ends all completions of a request with finish "abort", or "error" if error is given. A request that is
  // not alive is left alone.
  void end(int64_t id, const Error* error, std::vector<Event>* events);
  // Aborts one completion. A completion that has not started is left alone.
  void end_completion(int64_t id, int32_t completion, std::vector<Event>* events);
  void end_all(std::vector<Event>* events);
  // Ends the completions whose time is up, with finish "timeout", those that cannot end by their deadline any
  // more, with DeadlineError, and the wait for prefixes if the disk that they are on does not answer.
  void expire(Clock::time_point now, std::vector<Event>* events);
  // Runs one step, if any request is alive. If the executor throws or memory runs out, only the requests at
  // fault end. Throws std::bad_alloc if there is no memory for their events either; the engine cannot go on
  // after that.
  void step(std::vector<Event>* events);

  // The first time at which expire() would do something.
  Clock::time_point next_deadline() const;

  // The number of requests that have a completion which has not ended.
  size_t open() const { return open_.size(); }
  // Throws InvariantError unless blocks, sequences and open requests agree. step() calls it every few steps.
  void check();

  bool idle() const { return scheduler_->idle(); }
  // Returns whether step() has something to do: not if nobody can go on before a prefix has come.
  bool can_step() const { return underway_ || (!idle() && !scheduler_->only_fetches()); }
  EngineStats stats() const;
  EngineLoad load() const noexcept;
  // Gives prefixes to other engines and takes theirs, between two calls of step().
  PrefixTransfer& transfer() { return *transfer_; }
  PrefixPins& pins() { return *pins_; }
  // With cache_events: what tells of the blocks that the prefix cache stores and removes, and what names
  // them. Any thread may use both. Throws Error{"InvalidRequestError"} without.
  CacheLog& cache_log();
  const ArchiveHash& block_names() const { return *block_names_; }
  // As read_content.
  std::vector<CacheEvent> read_content(ContentPlace* place, size_t limit) const {
    return tensorwright::read_content(*kv_, tiers_.get(), place, limit);
  }

  // If there are tiers: begins to bring prefixes back from them. visit: runs work between two steps.
  void start_fetching(PrefixFetches::Visit visit);
  void stop_fetching();
  // The prefix that a sequence waited for is in the cache, or does not come.
  void prefix_came(int64_t id, int32_t completion) { scheduler_->came(id, completion); }
  bool waits_for_prefix(int64_t id, int32_t completion) const { return scheduler_->fetches(id, completion); }
  // If there is a tier on disk: writes what the cache remembers to it, what was used last first, until
  // `until`. No request may be alive.
  void save_prefixes(Clock::time_point until);
  // Lets another engine have the directory of the tier on disk. No step may follow.
  void end_tiers();
  // Any thread may call it.
  std::vector<std::string> take_notices();

 private:
  struct Failure {
    int64_t id;
    Error error;
  };
  // A row that a sequence's next token is drawn from, and what the sampler returned or threw.
  struct Draw {
    Sequence* sequence;
    std::span<const float> row;  // [columns()] of the executor's logits, or of `kept`
    int32_t token = -1;          // what the executor drew from the row, which is then empty; -1: nothing
    // The tokens of the sequence's draft that are not verified yet. The rows behind them follow `row`, each
    // `stride` floats behind the one before.
    int32_t ahead = 0;
    int64_t stride = 0;
    SharedMask mask = nullptr;  // null: all tokens are allowed
    Sample sample = {};
    std::vector<NextToken> next = {};  // of a beam, in place of a sample
    std::exception_ptr error = nullptr;
    // What the request's own processor made of the row, which the token is drawn from; null: the row itself.
    std::shared_ptr<const std::vector<float>> changed = nullptr;
    std::shared_ptr<const std::vector<float>> kept =
        nullptr;  // the copy of the row of a sequence that sits out
  };
  using Name = std::pair<int64_t, int32_t>;  // request, completion
  // A sequence of a step, and how many of its tokens were computed before.
  struct Share {
    Name name;
    int32_t computed;
  };

  bool run(StepPlan& plan, bool at_fault, bool may_lead, std::vector<Event>* events);
  void observe(PacedStep step, bool waited, Clock::time_point start);
  bool is_late(const Sequence& sequence, Clock::time_point now) const;
  std::vector<Span> spans_of(const StepPlan& plan, int64_t number, int32_t rows) const;
  void keep_step(const StartedStep& step, Clock::time_point begin) noexcept;
  void keep_draws(const StartedStep& step) noexcept;
  size_t widest_group() const noexcept;
  void make_log(const EngineOptions& options);
  void make_tiers(const TierOptions& options);
  void take_step(std::vector<Event>* events);
  void draft(StepPlan& plan);
  void run_each(const std::vector<Share>& shares, std::vector<Event>* events);
  void run_alone(const Share& share, std::vector<Event>* events);
  static Share share_of(const Sequence& sequence);
  static std::vector<Share> shares_of(const StepPlan& plan);
  std::vector<Share> alive(const std::function<bool(const Sequence&)>& wanted) const;
  StartedStep begun(const StepPlan& plan, bool may_lead);
  static void check_rows(const StartedStep& step, const LogitRows& logits);
  void go_on(std::vector<Event>* events);
  void start_next();
  void commit(StartedStep& step);
  void put_tokens(const StartedStep& step, const LogitRows& logits);
  void leave_steps(const Sequence& sequence) noexcept;
  bool leads() const;
  void land(StartedStep& step, const LogitRows& logits, std::vector<Event>* events);
  std::vector<WantedRows> wanted_rows(const StepPlan& plan);
  void ask_for_tokens(const std::vector<WantedRows>& wanted);
  void take_rows(const std::vector<WantedRows>& wanted, const LogitRows& logits, Clock::duration computing,
                 std::vector<Event>* events);
  Draw draw_of(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows) const;
  void fork(Sequence& first, const Draw& draw);
  void take_draw(Draw& draw, std::vector<Event>* events);
  void advance_beams(std::vector<Event>* events);
  void end_search(int64_t id, std::vector<Event>* events);
  bool draw_ready(std::vector<Event>* events);
  bool all_wait() const;
  void await_masks(Clock::time_point until, std::vector<Event>* events);
  void sit_out(std::vector<Event>* events);
  void forget_preempted();
  void take_ready();
  void take_tokens(std::vector<Event>* events);
  void process_rows();
  void sample(Draw& draw, int thread);
  std::span<const float> values(const LogitRows& logits, int32_t row) const;
  void take_prompt_logprobs(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows,
                            std::vector<Event>* events);
  void pool(const WantedRows& wanted, const LogitRows& logits, int32_t row, std::vector<Event>* events);
  void end_failed(const std::vector<Failure>& failures, std::vector<Event>* events);
  bool take_token(Sequence& sequence, Sample sample, std::vector<Event>* events);
  void close(const std::function<bool(const Sequence&)>& wanted, const char* finish, const Error* error,
             std::vector<Event>* events);
  void remove(const Event& last);
  void count(int64_t id, int32_t ended, int64_t* counter);
  Event event_of(const Sequence& sequence) const;

  std::unique_ptr<Executor> executor_;
  std::vector<GroupShape> shapes_;
  std::unique_ptr<CacheLog> cache_log_;     // null: nobody can know what the prefix cache has
  std::optional<ArchiveHash> block_names_;  // with cache_log_
  std::unique_ptr<BlockTiers> tiers_;       // null: forgotten blocks are gone
  std::unique_ptr<KvBlocks> kv_;
  std::unique_ptr<Scheduler>
      scheduler_;  // destroyed before kv_, because sequences give their blocks back to it
  std::unique_ptr<PrefixTransfer> transfer_;  // destroyed before kv_, for the same reason
  std::unique_ptr<PrefixPins> pins_;          // likewise
  std::unique_ptr<PrefixFetches> fetches_;    // null without tiers
  Beams beams_;
  std::unique_ptr<Drafter> drafter_;      // null if nothing is proposed
  std::unique_ptr<ForcedTokens> forced_;  // null if nothing is computed because a grammar forces it
  StepPace pace_;
  FastestSteps fastest_;
  // The end of the last step, if the next one follows at once.
  std::optional<Clock::time_point> step_ended_;
  std::vector<Sampler> samplers_;             // one per thread of the executor
  const std::shared_ptr<Timeline> timeline_;  // null: nothing is kept
  Step step_;
  // The step whose rows the executor has not given yet, and the one that was started behind it.
  std::optional<StartedStep> underway_, next_;
  Clock::time_point computed_ = Clock::time_point::min();  // when the rows of the last step came
  MaskSource* masks_;
  // pending_ holds the draws whose masks have not come, ready_ those that are drawn from now. Neither holds a
  // draw of a sequence that has ended. Both have room for all rows of a step before it is computed.
  std::vector<Draw> pending_, ready_;
  std::unordered_map<int64_t, int32_t> open_;  // request -> completions that have not ended
  int64_t finished_ = 0, aborted_ = 0, timed_out_ = 0, failed_ = 0, generated_ = 0, sat_out_ = 0, ahead_ = 0;
  int64_t added_ = 0, calls_ = 0, checks_ = 0, late_ = 0;
  const int32_t debug_lose_block_;
  SequenceBlocks debug_lost_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_
