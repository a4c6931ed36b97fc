// The served engine: one thread steps an EngineCore, and any thread may call the members of Engine. The
// destructor may be called at any moment when no other call is under way.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/engine/engine_core.h"
#include "runtime/core/scheduler/token_masks.h"

namespace tensorwright {

class Engine : private MaskSource {
 public:
  // Throws Error: InvalidOptionError, OutOfMemoryError, and what the executor throws.
  // proposer: makes the drafts of decoding sequences; null: there are none.
  Engine(std::unique_ptr<Executor> executor, const EngineOptions& options,
         std::unique_ptr<Proposer> proposer = nullptr);
  ~Engine() override;  // aborts the requests that are alive and waits for the current step
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Error, and then starts nothing: InvalidRequestError (also for an id that is alive),
  // PromptTooLongError, QueueFullError, EngineStoppedError.
  void submit(Request request);
  // Returns false if no such request is alive. The request's blocks are free before the next step; its last
  // event says "abort", unless the request finished in the step under way. With `completion`, which must have
  // tokens, only that completion ends.
  bool abort(int64_t id, int32_t completion = kAll);
  static constexpr int32_t kAll = -1;
  // Sets the mask of token number `generated` (from 0) of a guided request's completion. The loop computes
  // that token's logits meanwhile. A completion whose mask comes later sits out the steps until then; the
  // others go on. Returns false if the completion is not alive. Throws Error{"InvalidRequestError"} for a
  // mask of a wrong length, a token that was sampled already, and a request that is not guided.
  bool set_mask(int64_t id, int32_t completion, int32_t generated, MaskWords words);
  // Returns all events so far, those of each completion in their order. Waits up to `timeout_s` for the first
  // one. Returns an empty list at once if the engine has stopped and all events were fetched. If it throws,
  // no event is lost.
  std::vector<Event> wait_events(double timeout_s);
  // Runs `work` on the loop's thread between two steps, and returns when it is done. It must take little time
  // and wait for nothing, because all requests wait for it. bytes: about what it copies; the loop begins the
  // next step once kVisitBytes were copied, however many visits wait. Throws what `work` throws, and, without
  // calling it: EngineStoppedError, QueueFullError if kMaxVisits wait, and TransferError if the loop has not
  // come to it within `timeout_s`.
  void between_steps(const std::function<void(EngineCore&)>& work, size_t bytes, double timeout_s);
  static constexpr size_t kVisitBytes = size_t{4} << 20;
  static constexpr size_t kMaxVisits = 64;
  // With cache_events; without, these throw Error{"InvalidRequestError"}. Any thread may use what they
  // return.
  CacheLog& cache_log() { return core_.cache_log(); }
  const ArchiveHash& block_names() {
    core_.cache_log();
    return core_.block_names();
  }
  // As read_content (cache_content.h). The page of the KV cache is read between two steps; throws what
  // between_steps throws.
  std::vector<CacheEvent> read_content(ContentPlace* place, size_t limit, double timeout_s);
  EngineStats stats() const;  // as of the last step
  // What the tiers of the prefix cache have to tell people since the last call.
  std::vector<std::string> take_notices() { return core_.take_notices(); }
  const ModelFacts& facts() const { return facts_; }
  const std::vector<GroupShape>& groups() const { return core_.groups(); }
  bool stopped() const;
  std::string cause() const;  // why the engine stopped; empty while it runs

  // Refuses new requests. The loop ends once all requests are done, or at once without `drain`. Does not
  // wait.
  void begin_shutdown(bool drain);
  // Refuses new requests and ends the loop: with `drain` once all requests are done or `timeout_s` is over
  // (negative: no limit), else at once. Requests that are still alive are aborted. Returns when the loop has
  // ended.
  void shutdown(bool drain, double timeout_s);

  // Runs one round of the loop, for an engine with debug_stepped. Returns false if there is nothing to do or
  // the loop has ended.
  bool turn();

 private:
  // Work that a thread waits for; it lies on that thread's stack.
  struct Visit {
    const std::function<void(EngineCore&)>* work;
    size_t bytes;
    enum { kWaits, kRuns, kDone, kStopped } state = kWaits;
    std::exception_ptr error = nullptr;
  };
  using Name = std::pair<int64_t, int32_t>;  // request, completion or kAll
  enum class State { kServing, kDraining, kAborting, kStopped };

  void take_in(Request request, Clock::time_point arrived);
  void loop();
  bool round();
  bool has_work() const;
  void wait_for_work();
  void save_prefixes();
  bool take_inbox(std::vector<Event>* events);
  State hand_over(std::vector<Event>* events);
  void take_visits();
  [[noreturn]] void throw_stopped(const char* who) const;
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override;
  bool wait_for_masks(Clock::time_point until, std::vector<Event>* events) override;
  bool forced_tokens(int64_t id, int32_t completion, int32_t generated, int32_t most,
                     std::vector<int32_t>* tokens) override;
  void carry_out(std::vector<Name> aborts, std::vector<Event>* events);
  void publish(std::vector<Event>* events);
  void tell(Event&& event);
  void tell_of_stop();
  void forget(Name name);
  void stop(const char* how, const char* why = "", int64_t violations = 0,
            const char* type = "EngineStoppedError") noexcept;

  EngineCore core_;  // only the loop uses it once the thread runs
  const ModelFacts facts_;
  const std::vector<GroupShape> groups_;  // what a request must fit
  const int32_t max_seqs_;
  TokenMasks masks_;        // the masks of guided requests that are alive
  const size_t max_alive_;  // the most requests that may run or wait together
  const bool stepped_;      // the engine has no thread
  // Only the loop uses these: the events that earlier rounds found no memory to publish, and the number of
  // such rounds in a row.
  std::vector<Event> untold_;
  int failed_publishes_ = 0;
  bool orderly_ = false;  // the loop has ended because somebody shut the engine down

  mutable std::mutex mutex_;      // guards what follows
  std::condition_variable wake_;  // wakes the loop: there is something to do
  std::condition_variable news_;  // wakes consumers: events_ or state_ changed
  State state_ = State::kServing;
  std::string cause_;                             // why the loop ended, for submit
  const char* stop_type_ = "EngineStoppedError";  // the class of the error that requests end with then
  std::vector<std::pair<Request, Clock::time_point>> inbox_;
  std::vector<Name> aborts_;
  std::deque<Visit*> visits_;        // those that wait
  std::condition_variable visited_;  // wakes threads whose visits are over
  // The submitted requests, each with the completions whose last event is not yet published, also after the
  // loop has ended.
  std::unordered_map<int64_t, std::set<int32_t>> alive_;
  std::vector<Event> events_;
  std::map<Name, size_t> unfetched_;  // the place in events_ of a completion's event
  EngineStats stats_;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_H_
