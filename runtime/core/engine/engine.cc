#include "runtime/core/engine/engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>

#include "runtime/core/base/error.h"
#include "runtime/core/base/invariants.h"
#include "runtime/core/base/make_room.h"
#include "runtime/core/base/start_thread.h"
#include "runtime/core/engine/merge_events.h"
#include "runtime/core/interface/fatal_error.h"

namespace tensorwright {

namespace {

// In seconds: longer than anybody waits, and far from overflowing a clock.
constexpr double kForever = 1e7;

// The number of rounds in a row that may find no memory to publish events while there is nothing else to do.
constexpr int kPublishTries = 2;

// The seconds in which the loop must come to a visit that brings a prefix back.
constexpr double kFetchWait = 60;

// The most seconds in which an engine that ends writes the prefix cache to disk.
constexpr double kSaveSeconds = 10;

auto duration(double seconds) {
  double bounded = seconds > 0 ? std::min(seconds, kForever) : 0.0;  // 0 for NaN too
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, const EngineOptions& options,
               std::unique_ptr<Proposer> proposer)
    : core_(std::move(executor), options, this, std::move(proposer)),
      facts_(core_.facts()),
      groups_(core_.groups_for_requests()),
      max_seqs_(options.max_batch_size),
      max_alive_(static_cast<size_t>(options.max_batch_size) + static_cast<size_t>(options.max_queue)),
      stepped_(options.debug_stepped),
      stats_(core_.stats()) {
  if (stepped_) return;
  core_.start_fetching([this](const std::function<void(EngineCore&)>& work, size_t bytes) {
    between_steps(work, bytes, kFetchWait);
  });
  thread_ = start_thread("the engine's loop", [this] { loop(); });
}

Engine::~Engine() { shutdown(false, 0); }

void Engine::submit(Request request) {
  check(request);
  if (const SharedAdapter& adapter = request.sampling.adapter; adapter && !core_.owns(*adapter)) {
    throw Error("InvalidRequestError",
                "[request] an adapter must be one that this engine has made, got another; load it here");
  }
  auto arrived = Clock::now();
  std::lock_guard lock(mutex_);
  if (state_ != State::kServing) throw_stopped("a request");
  if (alive_.contains(request.id)) {
    throw Error("InvalidRequestError", "[engine] a request id must be unique among those alive, got " +
                                           std::to_string(request.id) + " twice; use a counter");
  }
  if (alive_.size() >= max_alive_) {
    throw Error("QueueFullError",
                "[engine] at most " + std::to_string(max_alive_) +
                    " requests (max_batch_size + max_queue_size) may be alive, got one more; "
                    "try again later");
  }
  take_in(std::move(request), arrived);
  wake_.notify_one();
  masks_.wake();  // the wait must also end at the new request's deadline
}

// The caller must hold mutex_.
void Engine::throw_stopped(const char* who) const {
  throw Error("EngineStoppedError",
              std::string("[engine] ") + who + " needs a running engine, got one that " +
                  (cause_.empty() ? "is shutting down" : cause_) + "; create a new engine");
}

void Engine::between_steps(const std::function<void(EngineCore&)>& work, size_t bytes, double timeout_s) {
  Visit visit{&work, bytes};
  std::unique_lock lock(mutex_);
  if (state_ == State::kStopped) throw_stopped("a transfer");
  if (visits_.size() >= kMaxVisits)
    throw Error("QueueFullError", "[engine] at most " + std::to_string(kMaxVisits) +
                                      " transfers may wait for a step to end, got one more; try again later");
  visits_.push_back(&visit);
  wake_.notify_one();
  const auto ended = [&] { return visit.state == Visit::kDone || visit.state == Visit::kStopped; };
  visited_.wait_for(lock, duration(timeout_s), [&] { return visit.state != Visit::kWaits; });
  if (visit.state == Visit::kWaits) {
    std::erase(visits_, &visit);
    throw Error("TransferError", "[engine] a transfer must find the engine between two steps within " +
                                     std::to_string(timeout_s) + " s, and did not; compute the prefix");
  }
  visited_.wait(lock, ended);  // what runs cannot be taken back, and is short
  if (visit.state == Visit::kStopped) throw_stopped("a transfer");
  if (visit.error) std::rethrow_exception(visit.error);
}

std::vector<CacheEvent> Engine::read_content(ContentPlace* place, size_t limit, double timeout_s) {
  core_.cache_log();
  if (place->stage != ContentPlace::kCache) return core_.read_content(place, limit);
  std::vector<CacheEvent> page;
  const size_t bytes = limit * groups_.size() *
                       (sizeof(CacheEvent) + static_cast<size_t>(facts_.block_size) * sizeof(int32_t));
  between_steps([&](EngineCore& core) { page = core.read_content(place, limit); }, bytes, timeout_s);
  return page;
}

// The loop calls it between two steps.
void Engine::take_visits() {
  size_t copied = 0;
  std::unique_lock lock(mutex_);
  while (!visits_.empty() && copied < kVisitBytes) {
    Visit* visit = visits_.front();
    visits_.pop_front();
    visit->state = Visit::kRuns;
    copied += visit->bytes;
    lock.unlock();
    std::exception_ptr error;
    bool bug = false;
    try {
      (*visit->work)(core_);
    } catch (const std::logic_error&) {
      error = std::current_exception();
      bug = true;
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    visit->error = error;
    visit->state = Visit::kDone;
    visited_.notify_all();
    if (bug) std::rethrow_exception(error);  // an error of the engine itself ends it
  }
}

// Adds a request to the books. If there is no memory, the request is not added at all.
void Engine::take_in(Request request, Clock::time_point arrived) {
  const int64_t id = request.id;
  const int32_t n = request.sampling.n;
  try {
    std::set<int32_t>& completions = alive_[id];
    for (int32_t i = 0; i < n; ++i) completions.insert(i);
    if (request.sampling.guided) masks_.open(id, n, std::exchange(request.first_mask, {}));
    inbox_.emplace_back(std::move(request), arrived);
  } catch (...) {
    for (int32_t i = 0; i < n; ++i) masks_.close(id, i);
    alive_.erase(id);
    throw;
  }
}

bool Engine::abort(int64_t id, int32_t completion) {
  std::lock_guard lock(mutex_);
  auto alive = alive_.find(id);
  if (state_ == State::kStopped || alive == alive_.end()) return false;
  if (completion != kAll && !alive->second.contains(completion)) return false;
  aborts_.emplace_back(id, completion);
  wake_.notify_one();
  masks_.wake();
  return true;
}

bool Engine::set_mask(int64_t id, int32_t completion, int32_t generated, MaskWords words) {
  validate_mask(words, facts_);
  if (masks_.put(id, completion, generated, std::move(words))) return true;
  std::lock_guard lock(mutex_);
  auto alive = alive_.find(id);
  if (state_ == State::kStopped || alive == alive_.end() || !alive->second.contains(completion)) return false;
  throw Error("InvalidRequestError", "[engine] a mask must be of a guided request, got one of request " +
                                         std::to_string(id) + ", which is not; set sampling.guided");
}

std::vector<Event> Engine::wait_events(double timeout_s) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, duration(timeout_s), [&] { return !events_.empty() || state_ == State::kStopped; });
  if (state_ == State::kStopped) tell_of_stop();
  unfetched_.clear();
  return std::exchange(events_, {});
}

EngineStats Engine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += static_cast<int32_t>(inbox_.size());
  return stats;
}

bool Engine::stopped() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kStopped;
}

std::string Engine::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

void Engine::begin_shutdown(bool drain) {
  std::lock_guard lock(mutex_);
  state_ = std::max(state_, drain ? State::kDraining : State::kAborting);
  wake_.notify_one();
  masks_.wake();
}

void Engine::shutdown(bool drain, double timeout_s) {
  begin_shutdown(drain);
  bool has_thread;  // another thread may be here, and join it
  {
    std::lock_guard lock(join_mutex_);
    has_thread = thread_.joinable();
  }
  if (drain && has_thread) {
    bool ended;
    {
      std::unique_lock lock(mutex_);
      ended = news_.wait_for(lock, duration(timeout_s < 0 ? kForever : timeout_s),
                             [&] { return state_ == State::kStopped; });
    }
    if (!ended) begin_shutdown(false);
  }
  std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  while (turn()) {
  }
}

void Engine::loop() {
  core_.begin_thread();
  while (round()) {
  }
  save_prefixes();
  core_.end_thread();
}

// After the loop has ended: the blocks of the prefix cache go to the disk, if there is a tier on one. An
// engine that died may have spoilt them.
void Engine::save_prefixes() {
  core_.stop_fetching();
  if (orderly_) core_.save_prefixes(Clock::now() + duration(kSaveSeconds));
  core_.end_tiers();
}

bool Engine::turn() {
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kStopped || !has_work()) return false;
  }
  return round();
}

// Runs one round of the loop. Returns false once the loop has ended.
bool Engine::round() {
  try {
    std::vector<Event> events = std::exchange(untold_, {});
    if (take_inbox(&events)) {
      take_visits();
      core_.step(&events);
      publish(&events);
      untold_ = std::move(events);
      return true;
    }
    do {
      publish(&events);
    } while (failed_publishes_ > 0);
    stop("was shut down");
    orderly_ = true;
  } catch (const InvariantError& error) {
    stop("died of: ", error.what(), 1);
  } catch (const FatalError& error) {
    stop("died of: ", error.what(), 0, error.type());
  } catch (const std::exception& error) {
    stop("died of: ", error.what());
  } catch (...) {
    stop("died of an unknown exception");
  }
  return false;
}

// The loop calls it, and must hold mutex_.
bool Engine::has_work() const {
  // An engine that drains and waits for prefixes has nothing else to do.
  const bool ends = state_ > State::kDraining || (state_ == State::kDraining && core_.idle());
  return ends || failed_publishes_ > 0 || !inbox_.empty() || !aborts_.empty() || !visits_.empty() ||
         core_.can_step();
}

// Waits until there is something to do, or the time of a request that waits for its prefix is up.
void Engine::wait_for_work() {
  std::unique_lock lock(mutex_);
  while (!has_work()) {
    if (core_.idle()) {
      wake_.wait(lock);
      continue;
    }
    const Clock::time_point until = std::min(core_.next_deadline(), Clock::now() + duration(kFetchWait));
    if (wake_.wait_until(lock, until) == std::cv_status::timeout) return;
  }
}

// Waits until there is something to do and hands it to the core. Returns false when the loop must end.
bool Engine::take_inbox(std::vector<Event>* events) {
  wait_for_work();
  State state = hand_over(events);
  return state == State::kServing || (state == State::kDraining && !core_.idle());
}

// Hands submitted and aborted requests to the core, ends those whose time is up, and all of them if the state
// says so.
Engine::State Engine::hand_over(std::vector<Event>* events) {
  std::vector<std::pair<Request, Clock::time_point>> inbox;
  std::vector<Name> aborts;
  State state;
  {
    std::lock_guard lock(mutex_);
    inbox.swap(inbox_);
    aborts.swap(aborts_);
    state = state_;
    // stats() shows these requests as waiting until the next publish() counts them.
    stats_.waiting += static_cast<int32_t>(inbox.size());
  }
  for (auto& [request, arrived] : inbox) core_.add_or_fail(std::move(request), arrived, events);
  try {
    carry_out(std::move(aborts), events);
    core_.expire(Clock::now(), events);
  } catch (const std::bad_alloc&) {
    // Nothing has changed: the next round finds the requests whose time is up, and the aborts that were put
    // back.
    masks_.wake();
  }
  if (state == State::kAborting) core_.end_all(events);
  return state;
}

// Carries out the aborts. If there is no memory for the events of one, it puts that abort and those behind it
// back, and throws.
void Engine::carry_out(std::vector<Name> aborts, std::vector<Event>* events) {
  size_t next = 0;
  try {
    for (; next < aborts.size(); ++next) {
      auto [id, completion] = aborts[next];
      if (completion == kAll) {
        core_.end(id, nullptr, events);
      } else {
        core_.end_completion(id, completion, events);
      }
    }
  } catch (const std::bad_alloc&) {
    aborts.erase(aborts.begin(), aborts.begin() + static_cast<std::ptrdiff_t>(next));
    std::lock_guard lock(mutex_);
    aborts.insert(aborts.end(), aborts_.begin(), aborts_.end());
    aborts_.swap(aborts);
    throw;
  }
}

SharedMask Engine::take_mask(int64_t id, int32_t completion, int32_t generated) {
  return masks_.take(id, completion, generated);
}

bool Engine::forced_tokens(int64_t id, int32_t completion, int32_t generated, int32_t most,
                           std::vector<int32_t>* tokens) {
  return masks_.forced(id, completion, generated, most, tokens);
}

// Publishes the events of the other completions before it waits. Submissions, aborts, deadlines and shutdowns
// end the wait.
bool Engine::wait_for_masks(Clock::time_point until, std::vector<Event>* events) {
  if (!events->empty()) publish(events);
  // Without a thread, masks come only between rounds.
  if (!stepped_) masks_.wait(std::min(until, core_.next_deadline()));
  hand_over(events);
  return !stepped_ && Clock::now() < until;
}

// Publishes events and statistics. Events for which there is no memory stay in `events` for the next round.
// If that happens again and again while the core is idle, so that no step can free memory, it throws, and the
// loop ends.
void Engine::publish(std::vector<Event>* events) {
  std::lock_guard lock(mutex_);
  size_t published = 0;
  try {
    stats_ = core_.stats();
    for (; published < events->size(); ++published) tell(std::move((*events)[published]));
    failed_publishes_ = 0;
  } catch (const std::bad_alloc&) {
    if (++failed_publishes_ > kPublishTries && core_.idle()) throw;
  }
  if (published > 0) news_.notify_all();
  events->erase(events->begin(), events->begin() + static_cast<std::ptrdiff_t>(published));
  if (failed_publishes_ == 0) {
    check_equal("requests alive", static_cast<int64_t>(alive_.size()),
                static_cast<int64_t>(core_.open() + inbox_.size()));
  }
}

// Publishes one event. The caller must hold mutex_. If it throws, nothing has changed.
void Engine::tell(Event&& event) {
  const Name name(event.request_id, event.completion);
  const bool last = !event.finish.empty();
  if (auto known = unfetched_.find(name); known != unfetched_.end()) {
    merge_event(std::move(event), &events_[known->second]);
    if (last) unfetched_.erase(known);
  } else {
    make_room(events_, 1);
    if (!last) unfetched_.emplace(name, events_.size());
    events_.push_back(std::move(event));
  }
  if (last) forget(name);
}

// Removes a completion that has ended: an abort comes too late for it, and after the last one the request's
// id may be used again.
void Engine::forget(Name name) {
  auto alive = alive_.find(name.first);
  alive->second.erase(name.second);
  std::erase(aborts_, name);
  masks_.close(name.first, name.second);
  if (!alive->second.empty()) return;
  alive_.erase(alive);
  std::erase(aborts_, Name(name.first, kAll));
}

// Ends the engine; the loop calls it last. It must work without memory: the requests that are still alive get
// their last event when events are fetched.
void Engine::stop(const char* how, const char* why, int64_t violations, const char* type) noexcept {
  std::lock_guard lock(mutex_);
  stop_type_ = type;
  state_ = State::kStopped;
  try {
    cause_ = std::string(how) + why;
  } catch (const std::bad_alloc&) {
    cause_ = "lacks memory";  // so short that it fits
  }
  masks_.close_all();
  for (Visit* visit : visits_) visit->state = Visit::kStopped;
  visits_.clear();
  visited_.notify_all();
  stats_.running = stats_.waiting = 0;
  stats_.invariant_violations = violations;
  inbox_.clear();
  news_.notify_all();
}

// Publishes the last events of the requests that are still alive. The loop must have ended, and the caller
// must hold mutex_. If it throws, it can be called again.
void Engine::tell_of_stop() {
  while (!alive_.empty()) {
    Event event;
    event.request_id = alive_.begin()->first;
    event.completion = *alive_.begin()->second.begin();
    event.finish = finishes::kError;
    event.error_type = stop_type_;
    event.error =
        "[engine] a request needs a running engine, got one that " + cause_ + "; create a new engine";
    tell(std::move(event));
  }
}

}  // namespace tensorwright
