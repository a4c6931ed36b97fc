// A model of the Triton backend: one engine, the requests that it computes, and the thread that sends their
// responses.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_MODEL_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_MODEL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tensorwright.hpp>
#include <thread>
#include <vector>

#include "runtime/c_interface/triton/calls.h"

namespace tw_triton {

// What a model's config.pbtxt says.
struct ModelSettings {
  std::string engine;          // parameter "engine": the engine's folder
  std::string options = "{}";  // parameter "options": as that of tw_open()
  bool decoupled = false;      // whether each event is a response of its own
};

// config: the model's configuration as JSON. Throws Failure for one that names no engine, or batches
// requests.
ModelSettings read_settings(const std::string& config);

class Model {
 public:
  // Throws tw::Error if the engine cannot be opened.
  explicit Model(const ModelSettings& settings);
  ~Model();  // ends the requests that are alive
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Takes a request over: it is released, and gets its responses when they are there. Does not wait.
  void execute(TRITONBACKEND_Request* request);

 private:
  struct InFlight {
    TRITONBACKEND_ResponseFactory* factory;
    std::set<std::string> outputs;
    tw::Event all = {};  // what came so far, where all of it is one response
    bool cancelled = false;
  };
  using Requests = std::map<int64_t, InFlight>;

  void submit(TRITONBACKEND_Request* request);
  void send_events();
  void answer(const std::vector<tw::Event>& events);
  bool answer_one(InFlight& request, const tw::Event& event, bool is_last);
  void cancel_abandoned();
  void end_all(const std::string& why);

  const bool decoupled_;
  tw::Engine engine_;
  std::mutex mutex_;  // guards requests_, and is held from a request's submission until it stands there
  Requests requests_;
  std::atomic<bool> closing_ = false;
  std::thread thread_;
};

}  // namespace tw_triton

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_MODEL_H_
