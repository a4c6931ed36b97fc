// The functions by which Triton Inference Server loads the backend and its models, and hands requests over.
// They use tensorwright.h alone.
#include <cstddef>
#include <memory>
#include <string>

#include "runtime/c_interface/triton/calls.h"
#include "runtime/c_interface/triton/model.h"
#include "runtime/c_interface/triton/triton_api.h"

namespace {

using tw_triton::check;
using tw_triton::Failure;
using tw_triton::Model;
using tw_triton::told;

std::string config_of(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* text = nullptr;
  size_t size = 0;
  TRITONSERVER_Error* failed = TRITONSERVER_MessageSerializeToJson(message, &text, &size);
  const std::string config = failed ? "" : std::string(text, size);
  TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(message));
  check(failed);
  return config;
}

Model* state_of(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  check(TRITONBACKEND_ModelState(model, &state));
  return static_cast<Model*>(state);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* /*backend*/) {
  return told([] {
    uint32_t major = 0, minor = 0;
    check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR)
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                    "this backend is of version " + std::to_string(TRITONBACKEND_API_VERSION_MAJOR) +
                        " of the backend API, and the server of version " + std::to_string(major));
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return told([&] {
    auto made = std::make_unique<Model>(tw_triton::read_settings(config_of(model)));
    check(TRITONBACKEND_ModelSetState(model, made.get()));
    made.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return told([&] { delete state_of(model); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* /*instance*/) {
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* /*instance*/) {
  return nullptr;
}

// Requests are handed to the engine, which batches them itself, so all instances of a model share it.
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, uint32_t count) {
  return told([&] {
    TRITONBACKEND_Model* model = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    Model* state = state_of(model);
    for (uint32_t i = 0; i < count; ++i) state->execute(requests[i]);
  });
}

}  // extern "C"
