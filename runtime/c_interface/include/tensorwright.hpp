// The C++17 form of tensorwright.h: engines that close themselves, errors as exceptions, and events to
// iterate over. It is a header alone; programs link libtensorwright.so.
//
//   tw::Engine engine("out/pico", R"({"threads": 4})");
//   for (const tw::Event& event : engine.generate(tokens, R"({"max_tokens": 32})"))
//     for (int32_t token : event.tokens) ...
#ifndef TENSORWRIGHT_HPP_
#define TENSORWRIGHT_HPP_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tensorwright.h"

namespace tw {

// What every failed call throws.
class Error : public std::runtime_error {
 public:
  Error(tw_status status, std::string type, const std::string& message)
      : std::runtime_error(message), status_(status), type_(std::move(type)) {}
  tw_status status() const { return status_; }
  const std::string& type() const { return type_; }  // the class in Python, such as "EngineError"

 private:
  tw_status status_;
  std::string type_;
};

using Logprob = tw_logprob;

// What is new of one completion; tensorwright.h says what the members mean.
struct Event {
  int64_t request = 0;
  int32_t completion = 0;
  tw_finish finish = TW_FINISH_NONE;
  std::vector<int32_t> tokens;
  std::vector<std::vector<Logprob>> logprobs;         // [tokens], or empty
  std::vector<std::vector<Logprob>> prompt_logprobs;  // of the next tokens of the prompt
  int32_t stop_token = -1;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  tw_status error = TW_OK;
  std::string error_type, error_message;
  double cumulative_logprob = 0;
  double queue_seconds = -1;
  double first_token_seconds = -1;
  int32_t open_completions = 0;

  bool finished() const { return finish != TW_FINISH_NONE; }
};

namespace detail {

// The error of one call.
class CallError {
 public:
  CallError() = default;
  ~CallError() { tw_error_free(error_); }
  CallError(const CallError&) = delete;
  CallError& operator=(const CallError&) = delete;

  tw_error** out() { return &error_; }
  void check(tw_status status) const {
    if (status != TW_OK) throw Error(status, tw_error_type(error_), tw_error_message(error_));
  }

 private:
  tw_error* error_ = nullptr;
};

struct FreeEvents {
  void operator()(tw_events* events) const { tw_events_free(events); }
};
struct FreeString {
  void operator()(char* text) const { tw_string_free(text); }
};

inline std::vector<std::vector<Logprob>> copy(const tw_logprobs* positions, size_t count) {
  std::vector<std::vector<Logprob>> copied;
  copied.reserve(count);
  for (size_t i = 0; i < count; ++i)
    copied.emplace_back(positions[i].entries, positions[i].entries + positions[i].count);
  return copied;
}

inline Event copy(const tw_event& event) {
  Event copied;
  copied.request = event.request;
  copied.completion = event.completion;
  copied.finish = event.finish;
  copied.tokens.assign(event.tokens, event.tokens + event.token_count);
  copied.logprobs = copy(event.logprobs, event.logprob_count);
  copied.prompt_logprobs = copy(event.prompt_logprobs, event.prompt_logprob_count);
  copied.stop_token = event.stop_token;
  copied.prompt_tokens = event.prompt_tokens;
  copied.cached_tokens = event.cached_tokens;
  copied.error = event.error;
  copied.error_type = event.error_type;
  copied.error_message = event.error_message;
  copied.cumulative_logprob = event.cumulative_logprob;
  copied.queue_seconds = event.queue_seconds;
  copied.first_token_seconds = event.first_token_seconds;
  copied.open_completions = event.open_completions;
  return copied;
}

}  // namespace detail

class Generation;

// An engine that is open; it closes when it is destroyed. Any thread may call its members, but only one may
// move, close or destroy it, when no other uses the object any more.
class Engine {
 public:
  // Throws Error, also if the library is of another version of the interface than this header.
  explicit Engine(const std::string& path, const std::string& options = "{}") {
    if (tw_abi_version() != TW_ABI_VERSION)
      throw Error(TW_OTHER, "",
                  "tensorwright.hpp is of version " + std::to_string(TW_ABI_VERSION) +
                      " of the interface, and the library of version " + std::to_string(tw_abi_version()) +
                      ": install both from one release");
    detail::CallError error;
    error.check(tw_open(path.c_str(), options.c_str(), &handle_, error.out()));
  }
  ~Engine() { tw_close(handle_, 0, nullptr); }
  Engine(Engine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Engine& operator=(Engine&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  // Submits a request, and returns its number.
  int64_t submit(const std::vector<int32_t>& tokens, const std::string& params = "{}",
                 const std::vector<uint32_t>& first_mask = {}) {
    tw_request request = {};
    request.size = sizeof request;
    request.tokens = tokens.data();
    request.token_count = tokens.size();
    request.params = params.c_str();
    request.first_mask = first_mask.empty() ? nullptr : first_mask.data();
    request.first_mask_words = first_mask.size();
    int64_t number = 0;
    detail::CallError error;
    error.check(tw_submit(handle_, &request, &number, error.out()));
    return number;
  }

  // Waits for events of a request, or of all, for at most `seconds`; negative: without limit.
  std::vector<Event> wait(int64_t request = TW_ANY_REQUEST, double seconds = -1) {
    tw_events* fetched = nullptr;
    detail::CallError error;
    error.check(tw_wait(handle_, request, seconds, &fetched, error.out()));
    const std::unique_ptr<tw_events, detail::FreeEvents> events(fetched);
    std::vector<Event> copied;
    copied.reserve(tw_events_count(fetched));
    for (size_t i = 0; i < tw_events_count(fetched); ++i) {
      tw_event event = {};
      event.size = sizeof event;
      error.check(tw_events_get(fetched, i, &event, error.out()));
      copied.push_back(detail::copy(event));
    }
    return copied;
  }

  // Submits a request, whose events the range that it returns gives one by one.
  Generation generate(const std::vector<int32_t>& tokens, const std::string& params = "{}");

  // Return whether the request was alive.
  bool cancel(int64_t request, int32_t completion = TW_ALL_COMPLETIONS) {
    int alive = 0;
    detail::CallError error;
    error.check(tw_cancel(handle_, request, completion, &alive, error.out()));
    return alive != 0;
  }
  bool set_mask(int64_t request, int32_t completion, int32_t generated, const std::vector<uint32_t>& words) {
    int alive = 0;
    detail::CallError error;
    error.check(tw_set_mask(handle_, request, completion, generated, words.data(), words.size(), &alive,
                            error.out()));
    return alive != 0;
  }

  std::string facts() const { return json(tw_facts); }  // objects of JSON
  std::string stats() const { return json(tw_stats); }

  // Takes no more requests, lets those under way finish for at most `seconds` (negative: without limit), and
  // ends the others. What came of them can be waited for still.
  void drain(double seconds) {
    detail::CallError error;
    error.check(tw_drain(handle_, seconds, error.out()));
  }
  // Ends all requests after at most `drain_seconds`; negative: without limit. Events that nobody waited for
  // are lost.
  void close(double drain_seconds = 0) {
    detail::CallError error;
    error.check(tw_close(std::exchange(handle_, nullptr), drain_seconds, error.out()));
  }
  tw_engine* handle() const { return handle_; }

 private:
  std::string json(tw_status (*function)(tw_engine*, char**, tw_error**)) const {
    char* text = nullptr;
    detail::CallError error;
    error.check(function(handle_, &text, error.out()));
    const std::unique_ptr<char, detail::FreeString> owner(text);
    return text;
  }

  tw_engine* handle_ = nullptr;
};

// The events of one request, in a range-for loop that ends with the last event of its last completion. A
// completion that ends with an error throws it. A range that is left early cancels its request. The engine
// must outlive it, and stay where it is.
class Generation {
 public:
  Generation(Engine& engine, int64_t request) : engine_(&engine), request_(request) {}
  ~Generation() { give_up(); }
  Generation(Generation&& other) noexcept
      : engine_(other.engine_),
        request_(other.request_),
        open_(std::exchange(other.open_, false)),
        events_(std::move(other.events_)),
        at_(other.at_) {}
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  int64_t request() const { return request_; }
  bool cancel() { return engine_->cancel(request_); }

  class End {};
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Event;
    using difference_type = std::ptrdiff_t;
    using pointer = const Event*;
    using reference = const Event&;

    explicit Iterator(Generation* generation) : generation_(generation) {}
    reference operator*() const { return generation_->events_[generation_->at_]; }
    pointer operator->() const { return &**this; }
    Iterator& operator++() {
      if (!generation_->next()) generation_ = nullptr;
      return *this;
    }
    bool operator!=(End) const { return generation_ != nullptr; }
    bool operator==(End) const { return generation_ == nullptr; }

   private:
    Generation* generation_;  // null behind the last event
  };

  // Waits for the first event. It can be called once.
  Iterator begin() { return Iterator(next() ? this : nullptr); }
  End end() const { return {}; }

 private:
  // Goes to the next event. Returns false if there is none.
  bool next() {
    if (++at_ >= events_.size()) {
      if (!open_) return false;
      fetch();
      at_ = 0;
    }
    const Event& event = events_[at_];
    if (event.finish == TW_FINISH_ERROR) throw Error(event.error, event.error_type, event.error_message);
    return true;
  }
  // Ends the request, and takes its last events, which the library keeps until then.
  void give_up() noexcept {
    try {
      if (open_) cancel();
      while (open_) fetch();
    } catch (const std::exception&) {
      open_ = false;  // the engine was closed, and its requests with it, or there is no memory to go on
    }
  }
  void fetch() {
    do {
      events_ = engine_->wait(request_);
    } while (events_.empty());
    open_ = events_.back().open_completions > 0;
  }

  Engine* engine_;
  int64_t request_;
  bool open_ = true;  // a completion has not ended
  std::vector<Event> events_;
  size_t at_ = static_cast<size_t>(-1);
};

inline Generation Engine::generate(const std::vector<int32_t>& tokens, const std::string& params) {
  return Generation(*this, submit(tokens, params));
}

}  // namespace tw

#endif  // TENSORWRIGHT_HPP_
