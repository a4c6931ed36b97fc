// Turns errors of Triton into exceptions and back, and keeps responses until they are sent.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_CALLS_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_CALLS_H_

#include <stdexcept>
#include <string>
#include <tensorwright.hpp>
#include <utility>

#include "runtime/c_interface/triton/triton_api.h"

namespace tw_triton {

// What a request or a model ends with.
class Failure : public std::runtime_error {
 public:
  Failure(TRITONSERVER_Error_Code code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// Throws Failure for what a client or config.pbtxt says that cannot be.
[[noreturn]] inline void refuse(const std::string& message) {
  throw Failure(TRITONSERVER_ERROR_INVALID_ARG, message);
}

// Throws Failure if a call of the server failed.
inline void check(TRITONSERVER_Error* error) {
  if (!error) return;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw Failure(TRITONSERVER_ERROR_INTERNAL, message);
}

inline TRITONSERVER_Error_Code code_of(tw_status status) {
  switch (status) {
    case TW_INVALID_ARGUMENT:
    case TW_INVALID_OPTION:
    case TW_INVALID_REQUEST:
    case TW_PROMPT_TOO_LONG:
    case TW_ENGINE_ERROR:
      return TRITONSERVER_ERROR_INVALID_ARG;
    case TW_QUEUE_FULL:
    case TW_DEADLINE:
    case TW_ENGINE_STOPPED:
      return TRITONSERVER_ERROR_UNAVAILABLE;
    case TW_TASK:
    case TW_ISA:
      return TRITONSERVER_ERROR_UNSUPPORTED;
    case TW_OK:
    case TW_CLOSED:
    case TW_OUT_OF_MEMORY:
    case TW_NUMERICAL:
    case TW_FORKED:
    case TW_OTHER:
      break;
  }
  return TRITONSERVER_ERROR_INTERNAL;
}

// Runs `body`, and returns the error that the server is told of; null if it throws nothing.
template <typename Body>
TRITONSERVER_Error* told(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const tw::Error& error) {
    return TRITONSERVER_ErrorNew(code_of(error.status()), error.what());
  } catch (const Failure& error) {
    return TRITONSERVER_ErrorNew(error.code(), error.what());
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

// A response that is not sent yet.
class Response {
 public:
  explicit Response(TRITONBACKEND_ResponseFactory* factory) {
    check(TRITONBACKEND_ResponseNewFromFactory(&response_, factory));
  }
  explicit Response(TRITONBACKEND_Request* request) { check(TRITONBACKEND_ResponseNew(&response_, request)); }
  ~Response() {
    if (response_) TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseDelete(response_));
  }
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  // Adds a tensor of one dimension, and returns its memory, which has `bytes` bytes.
  void* add(const char* name, TRITONSERVER_DataType type, int64_t elements, uint64_t bytes) {
    TRITONBACKEND_Output* output = nullptr;
    check(TRITONBACKEND_ResponseOutput(response_, &output, name, type, &elements, 1));
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    void* buffer = nullptr;
    check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &device));
    if (memory != TRITONSERVER_MEMORY_CPU && memory != TRITONSERVER_MEMORY_CPU_PINNED)
      throw Failure(
          TRITONSERVER_ERROR_UNSUPPORTED,
          std::string("output ") + name + " must be in the memory of the host, got that of a device");
    return buffer;
  }
  // Sends the response. error: null, or what the request ends with, which is freed here.
  void send(bool is_last, TRITONSERVER_Error* error = nullptr) {
    TRITONBACKEND_Response* sent = std::exchange(response_, nullptr);
    TRITONSERVER_Error* failed =
        TRITONBACKEND_ResponseSend(sent, is_last ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, error);
    TRITONSERVER_ErrorDelete(error);
    check(failed);
  }

 private:
  TRITONBACKEND_Response* response_ = nullptr;
};

}  // namespace tw_triton

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_CALLS_H_
