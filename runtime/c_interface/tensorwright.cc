// The functions of tensorwright.h: they check arguments, turn exceptions into errors, and leave the work to
// ServedEngine.
#include "runtime/c_interface/include/tensorwright.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/c_interface/json_values.h"
#include "runtime/c_interface/open_engines.h"
#include "runtime/c_interface/served_engine.h"
#include "runtime/core/base/error.h"
#include "runtime/core/interface/fatal_error.h"
#include "runtime/core/scheduler/request.h"

using tensorwright::Error;
using tensorwright::FatalError;
using tensorwright::MaskWords;
using tensorwright::News;
using tensorwright::ServedEngine;
using tensorwright::TokenLogprob;
namespace finishes = tensorwright::finishes;

struct tw_error {
  tw_status status;
  std::string type, message;
};

struct tw_events {
  std::vector<News> news;
  // Of all events, one behind the other, in the form of the interface.
  std::deque<std::vector<tw_logprob>> entries;
  struct Logprobs {
    std::vector<tw_logprobs> tokens, prompt;
  };
  std::vector<Logprobs> logprobs;  // [news]
};

namespace {

// What a call gets wrong that no class of errors in Python stands for.
struct CallFault {
  tw_status status;
  std::string message;
};

[[noreturn]] void refuse_argument(const char* function, const std::string& fault) {
  throw CallFault{TW_INVALID_ARGUMENT, std::string("[") + function + "] " + fault};
}

struct StatusOfType {
  const char* type;
  tw_status status;
};
constexpr StatusOfType kStatuses[] = {
    {"EngineError", TW_ENGINE_ERROR},
    {"InvalidOptionError", TW_INVALID_OPTION},
    {"InvalidRequestError", TW_INVALID_REQUEST},
    {"PromptTooLongError", TW_PROMPT_TOO_LONG},
    {"QueueFullError", TW_QUEUE_FULL},
    {"DeadlineError", TW_DEADLINE},
    {"EngineStoppedError", TW_ENGINE_STOPPED},
    {"OutOfMemoryError", TW_OUT_OF_MEMORY},
    {"TaskError", TW_TASK},
    {"IsaError", TW_ISA},
    {"NumericalError", TW_NUMERICAL},
    {"ForkedEngineError", TW_FORKED},
};

tw_status status_of(const std::string& type) {
  const auto* const found =
      std::ranges::find_if(kStatuses, [&](const StatusOfType& each) { return type == each.type; });
  return found == std::end(kStatuses) ? TW_OTHER : found->status;
}

// A tw_finish is the place of its name in the core's list.
constexpr bool is_finish(tw_finish finish, std::string_view name) {
  return static_cast<size_t>(finish) < std::size(finishes::kAll) && name == finishes::kAll[finish];
}
static_assert(is_finish(TW_FINISH_NONE, finishes::kNone) && is_finish(TW_FINISH_STOP, finishes::kStop) &&
              is_finish(TW_FINISH_LENGTH, finishes::kLength) &&
              is_finish(TW_FINISH_ABORT, finishes::kAbort) &&
              is_finish(TW_FINISH_TIMEOUT, finishes::kTimeout) &&
              is_finish(TW_FINISH_ERROR, finishes::kError) &&
              std::size(finishes::kAll) == TW_FINISH_ERROR + 1);

// Returns the value for a name; none for a name that is not in the list.
std::optional<tw_finish> find_finish(const std::string& name) {
  const auto* const found = std::ranges::find(finishes::kAll, name);
  if (found == std::end(finishes::kAll)) return std::nullopt;
  return static_cast<tw_finish>(found - std::begin(finishes::kAll));
}

// The error of a call for which there is no memory to make one. It is made when the library is loaded.
tw_error* const kNoMemory =
    new tw_error{TW_OUT_OF_MEMORY, "OutOfMemoryError", "the process can get no more memory"};

tw_status fail(tw_error** error, tw_status status, const char* type, const char* message) noexcept {
  if (error) {
    try {
      *error = new tw_error{status, type, tensorwright::valid_utf8(message)};
    } catch (const std::bad_alloc&) {
      *error = kNoMemory;
    }
  }
  return status;
}

// Runs the body of a function, and turns what it throws into a status and an error.
template <typename Body>
tw_status guarded(tw_error** error, const Body& body) noexcept {
  if (error) *error = nullptr;
  try {
    body();
    return TW_OK;
  } catch (const CallFault& fault) {
    return fail(error, fault.status, "", fault.message.c_str());
  } catch (const Error& thrown) {
    return fail(error, status_of(thrown.type()), thrown.type().c_str(), thrown.what());
  } catch (const FatalError& thrown) {
    return fail(error, status_of(thrown.type()), thrown.type(), thrown.what());
  } catch (const std::bad_alloc&) {
    return fail(error, TW_OUT_OF_MEMORY, "OutOfMemoryError", "the process can get no more memory");
  } catch (const std::exception& thrown) {
    return fail(error, TW_OTHER, "TensorwrightError", thrown.what());
  } catch (...) {
    return fail(error, TW_OTHER, "TensorwrightError", "an exception of an unknown kind");
  }
}

uintptr_t number_of(const tw_engine* engine) { return reinterpret_cast<uintptr_t>(engine); }

[[noreturn]] void refuse_closed(const char* function) {
  throw CallFault{TW_CLOSED, std::string("[") + function +
                                 "] the engine must be open, got the handle of one that was closed or of "
                                 "none; open it with tw_open()"};
}

// Returns the engine of a handle.
std::shared_ptr<ServedEngine> engine_of(const tw_engine* handle, const char* function) {
  std::shared_ptr<ServedEngine> engine = tensorwright::find_open(number_of(handle));
  if (!engine) refuse_closed(function);
  engine->check_process();
  return engine;
}

template <typename Pointer>
void require(const Pointer* pointer, const char* function, const char* name) {
  if (!pointer)
    refuse_argument(function, std::string(name) + " must not be NULL, got NULL; pass its address");
}

// The sizes of the structs of version 1, which no caller's struct is smaller than, and one that none exceeds.
constexpr size_t kRequestSize = offsetof(tw_request, first_mask_words) + sizeof(size_t);
constexpr size_t kEventSize = offsetof(tw_event, open_completions) + sizeof(int32_t);
constexpr size_t kMaxSize = 4096;

void require_size(size_t size, size_t least, const char* function, const char* name) {
  if (size >= least && size <= kMaxSize) return;
  refuse_argument(function, std::string(name) + ".size must be sizeof(" + name + "), at least " +
                                std::to_string(least) + ", got " + std::to_string(size) +
                                "; set it before the call");
}

// Returns the caller's struct in the form that this library knows. A caller with a newer header may not use
// members that the library does not know.
tw_request known_part(const tw_request* given) {
  const char* function = "tw_submit";
  require(given, function, "request");
  require_size(given->size, kRequestSize, function, "tw_request");
  tw_request known = {};
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t at = sizeof known; at < given->size; ++at)
    if (bytes[at] != 0)
      refuse_argument(function,
                      "members of tw_request must be known to the library, got one of a newer version of "
                      "tensorwright.h; leave it 0, or install that version");
  return known;
}

MaskWords words_of(const uint32_t* words, size_t count, const char* function, const char* name) {
  if ((words == nullptr) != (count == 0))
    refuse_argument(function, std::string(name) +
                                  " must come with its number of words, got one without the "
                                  "other; pass both, or NULL and 0");
  return words ? MaskWords(words, words + count) : MaskWords();
}

char* copy_text(const std::string& text) {
  auto copy = std::make_unique<char[]>(text.size() + 1);
  std::memcpy(copy.get(), text.c_str(), text.size() + 1);
  return copy.release();
}

std::vector<tw_logprobs> convert(const std::vector<std::vector<TokenLogprob>>& positions, tw_events* into) {
  std::vector<tw_logprobs> converted;
  converted.reserve(positions.size());
  for (const std::vector<TokenLogprob>& position : positions) {
    std::vector<tw_logprob>& entries = into->entries.emplace_back();
    entries.reserve(position.size());
    for (const TokenLogprob& entry : position) entries.push_back({entry.token, entry.rank, entry.logprob});
    converted.push_back({entries.data(), entries.size()});
  }
  return converted;
}

// Takes the news away once there is nothing left that could fail.
std::unique_ptr<tw_events> convert(std::vector<News>& news) {
  auto made = std::make_unique<tw_events>();
  made->logprobs.reserve(news.size());
  for (const auto& [event, open] : news) {
    tw_events::Logprobs logprobs;
    logprobs.tokens = convert(event.logprobs, made.get());
    logprobs.prompt = convert(event.prompt_logprobs, made.get());
    made->logprobs.push_back(std::move(logprobs));
  }
  made->news = std::move(news);
  return made;
}

tw_event view(const tw_events& events, size_t index) {
  const auto& [event, open] = events.news[index];
  const tw_events::Logprobs& logprobs = events.logprobs[index];
  tw_event shown = {};
  shown.request = event.request_id;
  shown.completion = event.completion;
  const std::optional<tw_finish> finish = find_finish(event.finish);
  shown.finish = finish.value_or(TW_FINISH_ERROR);
  shown.tokens = event.tokens.data();
  shown.token_count = event.tokens.size();
  shown.logprobs = logprobs.tokens.data();
  shown.logprob_count = logprobs.tokens.size();
  shown.prompt_logprobs = logprobs.prompt.data();
  shown.prompt_logprob_count = logprobs.prompt.size();
  shown.stop_token = event.stop_token;
  shown.prompt_tokens = event.prompt_tokens;
  shown.cached_tokens = event.cached_tokens;
  shown.error = event.error_type.empty() ? TW_OK : status_of(event.error_type);
  shown.error_type = event.error_type.c_str();
  shown.error_message = event.error.c_str();
  if (!finish) {
    shown.error = TW_OTHER;
    shown.error_message = event.finish.c_str();
  }
  shown.cumulative_logprob = event.cumulative_logprob;
  shown.queue_seconds = event.queue_s;
  shown.first_token_seconds = event.first_token_s;
  shown.open_completions = open;
  return shown;
}

std::string_view text_or_empty(const char* text) { return text ? text : "{}"; }

}  // namespace

extern "C" {

uint32_t tw_abi_version(void) { return TW_ABI_VERSION; }

const char* tw_version(void) { return TENSORWRIGHT_VERSION; }

tw_status tw_error_status(const tw_error* error) { return error ? error->status : TW_OK; }

const char* tw_error_type(const tw_error* error) { return error ? error->type.c_str() : ""; }

const char* tw_error_message(const tw_error* error) { return error ? error->message.c_str() : ""; }

void tw_error_free(tw_error* error) {
  if (error != kNoMemory) delete error;
}

tw_status tw_open(const char* path, const char* options, tw_engine** engine, tw_error** error) {
  if (engine) *engine = nullptr;
  return guarded(error, [&] {
    require(path, "tw_open", "path");
    require(engine, "tw_open", "engine");
    auto opened = std::make_unique<ServedEngine>(path, text_or_empty(options));
    *engine = reinterpret_cast<tw_engine*>(tensorwright::keep_open(std::move(opened)));
  });
}

tw_status tw_close(tw_engine* engine, double drain_seconds, tw_error** error) {
  return guarded(error, [&] {
    if (!engine) return;
    // While it drains, events are fetched, requests cancelled and masks set by its handle as before.
    engine_of(engine, "tw_close")->shutdown(drain_seconds);
    if (!tensorwright::take_open(number_of(engine))) refuse_closed("tw_close");
  });
}

tw_status tw_drain(tw_engine* engine, double seconds, tw_error** error) {
  return guarded(error, [&] { engine_of(engine, "tw_drain")->shutdown(seconds); });
}

tw_status tw_facts(tw_engine* engine, char** json, tw_error** error) {
  if (json) *json = nullptr;
  return guarded(error, [&] {
    require(json, "tw_facts", "json");
    *json = copy_text(engine_of(engine, "tw_facts")->facts());
  });
}

tw_status tw_stats(tw_engine* engine, char** json, tw_error** error) {
  if (json) *json = nullptr;
  return guarded(error, [&] {
    require(json, "tw_stats", "json");
    *json = copy_text(engine_of(engine, "tw_stats")->stats());
  });
}

void tw_string_free(char* text) { delete[] text; }

tw_status tw_submit(tw_engine* engine, const tw_request* request, int64_t* number, tw_error** error) {
  if (number) *number = 0;
  return guarded(error, [&] {
    require(number, "tw_submit", "number");
    const tw_request known = known_part(request);
    if (known.token_count > 0) require(known.tokens, "tw_submit", "tw_request.tokens");
    const std::span<const int32_t> tokens(known.tokens, known.token_count);
    MaskWords mask = words_of(known.first_mask, known.first_mask_words, "tw_submit", "first_mask");
    *number = engine_of(engine, "tw_submit")
                  ->submit({tokens.begin(), tokens.end()}, text_or_empty(known.params), std::move(mask));
  });
}

tw_status tw_wait(tw_engine* engine, int64_t request, double seconds, tw_events** events, tw_error** error) {
  if (events) *events = nullptr;
  return guarded(error, [&] {
    require(events, "tw_wait", "events");
    engine_of(engine, "tw_wait")->wait(request, seconds, [&](std::vector<News>& news) {
      *events = convert(news).release();
    });
  });
}

size_t tw_events_count(const tw_events* events) { return events ? events->news.size() : 0; }

tw_status tw_events_get(const tw_events* events, size_t index, tw_event* event, tw_error** error) {
  return guarded(error, [&] {
    const char* function = "tw_events_get";
    require(events, function, "events");
    require(event, function, "event");
    require_size(event->size, kEventSize, function, "tw_event");
    if (index >= events->news.size())
      refuse_argument(function, "index must be below the number of events, " +
                                    std::to_string(events->news.size()) + ", got " + std::to_string(index) +
                                    "; ask tw_events_count()");
    const size_t size = event->size;
    const tw_event shown = view(*events, index);
    std::memset(event, 0, size);
    std::memcpy(event, &shown, std::min(size, sizeof shown));
    event->size = size;
  });
}

void tw_events_free(tw_events* events) { delete events; }

tw_status tw_cancel(tw_engine* engine, int64_t request, int32_t completion, int* alive, tw_error** error) {
  if (alive) *alive = 0;
  return guarded(error, [&] {
    const bool ended = engine_of(engine, "tw_cancel")->cancel(request, completion);
    if (alive) *alive = ended;
  });
}

tw_status tw_set_mask(tw_engine* engine, int64_t request, int32_t completion, int32_t generated,
                      const uint32_t* words, size_t word_count, int* alive, tw_error** error) {
  if (alive) *alive = 0;
  return guarded(error, [&] {
    require(words, "tw_set_mask", "words");
    MaskWords mask = words_of(words, word_count, "tw_set_mask", "words");
    const bool taken =
        engine_of(engine, "tw_set_mask")->set_mask(request, completion, generated, std::move(mask));
    if (alive) *alive = taken;
  });
}

}  // extern "C"
