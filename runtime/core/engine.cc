#include "runtime/core/engine.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <tuple>

#include "runtime/core/error.h"
#include "runtime/core/invariants.h"
#include "runtime/core/start_thread.h"

namespace tensorwright {

namespace {

// Longer than anybody waits, and far from overflowing a clock.
constexpr double kForever = 1e7;

// A later event of the same request joins the one that nobody fetched yet.
void merge(Event&& later, Event* event) {
  later.tokens.insert(later.tokens.begin(), event->tokens.begin(), event->tokens.end());
  later.logprobs.insert(later.logprobs.begin(), std::make_move_iterator(event->logprobs.begin()),
                        std::make_move_iterator(event->logprobs.end()));
  later.prompt_logprobs.insert(later.prompt_logprobs.begin(),
                               std::make_move_iterator(event->prompt_logprobs.begin()),
                               std::make_move_iterator(event->prompt_logprobs.end()));
  *event = std::move(later);
}

auto duration(double seconds) {
  double bounded = seconds > 0 ? std::min(seconds, kForever) : 0.0;  // 0 for NaN too
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, const EngineOptions& options)
    : core_(std::move(executor), options, this),
      facts_(core_.facts()),
      groups_(core_.groups()),
      max_seqs_(options.max_batch_size),
      max_alive_(static_cast<size_t>(options.max_batch_size) + static_cast<size_t>(options.max_queue)),
      stepped_(options.debug_stepped),
      stats_(core_.stats()) {
  if (!stepped_) thread_ = start_thread("the engine's loop", [this] { loop(); });
}

Engine::~Engine() { shutdown(false, 0); }

void Engine::submit(Request request) {
  validate_request(request, facts_, groups_, max_seqs_);
  auto arrived = Clock::now();
  std::lock_guard lock(mutex_);
  if (state_ != State::kServing) {
    throw Error("EngineStoppedError", "[engine] a request needs a running engine, got one that " +
                                          (cause_.empty() ? "is shutting down" : cause_) +
                                          "; create a new engine");
  }
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
  masks_.wake();  // its deadline counts from now on
}

// Where memory ends halfway, there is no such request.
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
  if (alive == alive_.end() || (completion != kAll && !alive->second.contains(completion))) return false;
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
  if (alive == alive_.end() || !alive->second.contains(completion)) return false;
  throw Error("InvalidRequestError", "[engine] a mask must be of a guided request, got one of request " +
                                         std::to_string(id) + ", which is not; set sampling.guided");
}

std::vector<Event> Engine::wait_events(double timeout_s) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, duration(timeout_s), [&] { return !events_.empty() || state_ == State::kStopped; });
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
  if (drain && thread_.joinable()) {
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
  while (round()) {
  }
}

bool Engine::turn() {
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kStopped || !has_work()) return false;
  }
  return round();
}

// False once the loop has ended.
bool Engine::round() {
  try {
    std::vector<Event> events;
    if (take_inbox(&events)) {
      core_.step(&events);
      publish(&events);
      return true;
    }
    publish(&events);
    stop("was shut down");
  } catch (const InvariantError& error) {
    stop(std::string("died of: ") + error.what(), 1);
  } catch (const std::exception& error) {
    stop(std::string("died of: ") + error.what());
  } catch (...) {
    stop("died of an unknown exception");
  }
  return false;
}

// Under mutex_, in the loop.
bool Engine::has_work() const {
  return state_ != State::kServing || !inbox_.empty() || !aborts_.empty() || !core_.idle();
}

// Waits for something to do and hands it to the core; false when the loop is to end.
bool Engine::take_inbox(std::vector<Event>* events) {
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return has_work(); });
  }
  State state = hand_over(events);
  return state == State::kServing || (state == State::kDraining && !core_.idle());
}

// To the core: what was submitted and aborted, what time it is, and whether all is to end.
Engine::State Engine::hand_over(std::vector<Event>* events) {
  std::vector<std::pair<Request, Clock::time_point>> inbox;
  std::vector<Name> aborts;
  State state;
  {
    std::lock_guard lock(mutex_);
    inbox.swap(inbox_);
    aborts.swap(aborts_);
    state = state_;
    // For stats() until the next publish counts them.
    stats_.waiting += static_cast<int32_t>(inbox.size());
  }
  for (auto& [request, arrived] : inbox) core_.add(std::move(request), arrived);
  for (auto [id, completion] : aborts) {
    if (completion == kAll) {
      core_.end(id, nullptr, events);
    } else {
      core_.end_completion(id, completion, events);
    }
  }
  core_.expire(Clock::now(), events);
  if (state == State::kAborting) core_.end_all(events);
  return state;
}

SharedMask Engine::take_mask(int64_t id, int32_t completion, int32_t generated) {
  return masks_.take(id, completion, generated);
}

// The others' news are told before the wait; submissions, aborts, deadlines and shutdowns end it.
bool Engine::wait_for_masks(Clock::time_point until, std::vector<Event>* events) {
  if (!events->empty()) publish(events);
  if (!stepped_) masks_.wait(std::min(until, core_.next_deadline()));  // else only other rounds bring masks
  hand_over(events);
  return !stepped_ && Clock::now() < until;
}

void Engine::publish(std::vector<Event>* events) {
  std::lock_guard lock(mutex_);
  stats_ = core_.stats();
  for (Event& event : *events) {
    Name name(event.request_id, event.completion);
    if (!event.finish.empty()) forget(name);
    auto [known, is_new] = unfetched_.try_emplace(name, events_.size());
    if (is_new) {
      events_.push_back(std::move(event));
    } else {
      merge(std::move(event), &events_[known->second]);
    }
    if (!events_[unfetched_.at(name)].finish.empty()) unfetched_.erase(name);
  }
  if (!events->empty()) news_.notify_all();
  events->clear();
  check_equal("requests alive", static_cast<int64_t>(alive_.size()),
              static_cast<int64_t>(core_.open() + inbox_.size()));
}

// It has ended: an abort comes too late, and the id may be used again.
void Engine::forget(Name name) {
  auto alive = alive_.find(name.first);
  alive->second.erase(name.second);
  std::erase(aborts_, name);
  masks_.close(name.first, name.second);
  if (!alive->second.empty()) return;
  alive_.erase(alive);
  std::erase(aborts_, Name(name.first, kAll));
}

// The loop's last act. Whoever is alive still, hears of it.
void Engine::stop(const std::string& cause, int64_t violations) {
  std::lock_guard lock(mutex_);
  state_ = State::kStopped;
  cause_ = cause;
  Event event;
  event.finish = "error";
  event.error_type = "EngineStoppedError";
  event.error = "[engine] a request needs a running engine, got one that " + cause + "; create a new engine";
  for (const auto& [id, completions] : alive_) {
    for (int32_t completion : completions) {
      std::tie(event.request_id, event.completion) = std::tie(id, completion);
      auto known = unfetched_.find({id, completion});
      if (known == unfetched_.end()) {
        events_.push_back(event);
      } else {
        merge(Event(event), &events_[known->second]);
      }
    }
  }
  alive_.clear();
  masks_.close_all();
  stats_.running = stats_.waiting = 0;
  stats_.invariant_violations = violations;
  inbox_.clear();
  news_.notify_all();
}

}  // namespace tensorwright
