#include "runtime/c_interface/triton/model.h"

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/c_interface/triton/tensors.h"

namespace tw_triton {
namespace {

using Json = nlohmann::json;

// The seconds of one wait for events: how late a client is noticed that has gone, and an unloading while
// nobody asks anything.
constexpr double kBusyWait = 0.1, kIdleWait = 1.0;

// Parsing takes many times as much memory as the text. The engine takes longer ones, which no client needs.
constexpr size_t kMaxParamsBytes = size_t{1} << 20;

// A request whose completions are one response can have one completion.
void require_one_completion(const std::string& params) {
  if (params.size() > kMaxParamsBytes)
    refuse("params must have at most " + std::to_string(kMaxParamsBytes) + " bytes, got " +
           std::to_string(params.size()));
  const Json read = Json::parse(params, nullptr, false);
  if (read.is_object() && read.contains("n") && read["n"] != 1)
    refuse(
        "n must be 1, for this model answers a request with one response: set decoupled in its "
        "model_transaction_policy for several");
}

void delete_factory(TRITONBACKEND_ResponseFactory* factory) {
  TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryDelete(factory));
}

void append(tw::Event& all, const tw::Event& event) {
  tw::Event joined = event;
  joined.tokens = std::move(all.tokens);
  joined.tokens.insert(joined.tokens.end(), event.tokens.begin(), event.tokens.end());
  joined.logprobs = std::move(all.logprobs);
  joined.logprobs.insert(joined.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  all = std::move(joined);
}

}  // namespace

ModelSettings read_settings(const std::string& config) {
  const Json read = Json::parse(config);
  ModelSettings settings;
  if (read.value("max_batch_size", 0) != 0)
    refuse(
        "max_batch_size must be 0 in config.pbtxt: the engine batches requests itself, by its option "
        "max_batch_size");
  settings.decoupled = read.value("/model_transaction_policy/decoupled"_json_pointer, false);
  settings.engine = read.value("/parameters/engine/string_value"_json_pointer, "");
  settings.options = read.value("/parameters/options/string_value"_json_pointer, "{}");
  if (settings.engine.empty())
    refuse("config.pbtxt must name the engine's folder in the parameter \"engine\"");
  return settings;
}

Model::Model(const ModelSettings& settings)
    : decoupled_(settings.decoupled), engine_(settings.engine, settings.options) {
  thread_ = std::thread([this] { send_events(); });
}

Model::~Model() {
  closing_ = true;
  thread_.join();
  end_all("the model is unloaded");
}

// The server hands a request over whatever becomes of it, so it is answered and released in any case.
void Model::execute(TRITONBACKEND_Request* request) {
  TRITONSERVER_Error* failed = told([&] { submit(request); });
  if (failed) {
    TRITONSERVER_Error* unsent = told([&] { Response(request).send(true, failed); });
    TRITONSERVER_ErrorDelete(unsent);
  }
  TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

void Model::submit(TRITONBACKEND_Request* request) {
  Inputs inputs = read_inputs(request);
  if (!decoupled_) require_one_completion(inputs.params);
  TRITONBACKEND_ResponseFactory* made = nullptr;
  check(TRITONBACKEND_ResponseFactoryNew(&made, request));
  std::unique_ptr<TRITONBACKEND_ResponseFactory, void (*)(TRITONBACKEND_ResponseFactory*)> factory(
      made, &delete_factory);
  const std::lock_guard lock(mutex_);
  const int64_t number = engine_.submit(inputs.ids, inputs.params);
  requests_.emplace(number, InFlight{factory.get(), std::move(inputs.outputs)});
  factory.release();
}

void Model::send_events() {
  while (!closing_) {
    bool busy = false;
    {
      const std::lock_guard lock(mutex_);
      busy = !requests_.empty();
    }
    try {
      answer(engine_.wait(TW_ANY_REQUEST, busy ? kBusyWait : kIdleWait));
      cancel_abandoned();
    } catch (const tw::Error& error) {
      end_all(error.what());
      if (error.status() == TW_ENGINE_STOPPED) return;  // it tells of no request any more, and takes none
    } catch (const std::exception& error) {  // such as a lack of memory, by which events may be lost
      end_all(error.what());
    }
  }
}

void Model::answer(const std::vector<tw::Event>& events) {
  std::unordered_map<int64_t, size_t> last;  // of each request, the place of its last event here
  for (size_t i = 0; i < events.size(); ++i) last[events[i].request] = i;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < events.size(); ++i) {
    const tw::Event& event = events[i];
    const auto found = requests_.find(event.request);
    if (found == requests_.end()) continue;
    const bool is_last = event.open_completions == 0 && last[event.request] == i;
    const bool is_over = answer_one(found->second, event, is_last);
    if (is_over && !is_last) engine_.cancel(event.request);  // its other events are dropped above
    if (!is_over && !is_last) continue;
    delete_factory(found->second.factory);
    requests_.erase(found);
  }
}

// Returns whether the request has got its last response.
bool Model::answer_one(InFlight& request, const tw::Event& event, bool is_last) {
  TRITONSERVER_Error* failed = told([&] {
    if (event.finish == TW_FINISH_ERROR) throw tw::Error(event.error, event.error_type, event.error_message);
    if (request.cancelled && event.finish == TW_FINISH_ABORT)
      throw Failure(TRITONSERVER_ERROR_CANCELLED, "the request was cancelled");
    if (!decoupled_) append(request.all, event);
    if (!decoupled_ && !is_last) return;
    Response response(request.factory);
    write_outputs(response, request.outputs, decoupled_ ? event : request.all);
    response.send(is_last);
  });
  if (!failed) return is_last;
  TRITONSERVER_ErrorDelete(told([&] { Response(request.factory).send(true, failed); }));
  return true;
}

// Cancels the requests whose clients have gone.
void Model::cancel_abandoned() {
  const std::lock_guard lock(mutex_);
  for (auto& [number, request] : requests_) {
    bool gone = false;
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryIsCancelled(request.factory, &gone));
    if (!gone || request.cancelled) continue;
    request.cancelled = true;
    engine_.cancel(number);
  }
}

// Ends all requests with an error. What the engine still computes of them is dropped when it comes.
void Model::end_all(const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, request] : requests_) {
    TRITONSERVER_ErrorDelete(told([&, number = number] { engine_.cancel(number); }));
    TRITONSERVER_ErrorDelete(told([&, factory = request.factory] {
      Response(factory).send(true, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, why.c_str()));
    }));
    delete_factory(request.factory);
  }
  requests_.clear();
}

}  // namespace tw_triton
