#include "runtime/c_interface/triton/tensors.h"

#include <array>
#include <cstring>
#include <utility>

namespace tw_triton {
namespace {

struct Tensor {
  std::string name;
  TRITONSERVER_DataType type;
  std::string bytes;
};

Tensor read_tensor(TRITONBACKEND_Input* input) {
  const char* name = nullptr;
  const int64_t* shape = nullptr;
  uint32_t dims = 0, buffers = 0;
  uint64_t size = 0;
  Tensor tensor;
  check(TRITONBACKEND_InputProperties(input, &name, &tensor.type, &shape, &dims, &size, &buffers));
  tensor.name = name;
  for (uint32_t i = 0; i < buffers; ++i) {
    const void* buffer = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    check(TRITONBACKEND_InputBuffer(input, i, &buffer, &size, &memory, &device));
    if (memory != TRITONSERVER_MEMORY_CPU && memory != TRITONSERVER_MEMORY_CPU_PINNED)
      refuse("input " + tensor.name + " must be in the memory of the host, got that of a device");
    tensor.bytes.append(static_cast<const char*>(buffer), size);
  }
  return tensor;
}

std::vector<int32_t> read_ids(const Tensor& tensor) {
  if (tensor.type != TRITONSERVER_TYPE_INT32 || tensor.bytes.size() % sizeof(int32_t) != 0)
    refuse("input_ids must be INT32 [tokens], got another type");
  std::vector<int32_t> ids(tensor.bytes.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), tensor.bytes.data(), tensor.bytes.size());
  return ids;
}

// A text lies behind its length in 4 bytes.
std::string read_text(const Tensor& tensor) {
  uint32_t length = 0;
  if (tensor.type == TRITONSERVER_TYPE_BYTES && tensor.bytes.size() >= sizeof length) {
    std::memcpy(&length, tensor.bytes.data(), sizeof length);
    if (tensor.bytes.size() == sizeof length + length) return tensor.bytes.substr(sizeof length);
  }
  refuse("params must be BYTES [1], an object of JSON, got something else");
}

bool is_wanted(const std::set<std::string>& wanted, const char* name) {
  return wanted.empty() || wanted.count(name) > 0;
}

template <typename Value>
void write(Response& response, const std::set<std::string>& wanted, const char* name,
           TRITONSERVER_DataType type, const std::vector<Value>& values) {
  if (!is_wanted(wanted, name)) return;
  const size_t bytes = values.size() * sizeof(Value);
  void* to = response.add(name, type, static_cast<int64_t>(values.size()), bytes);
  if (bytes > 0) std::memcpy(to, values.data(), bytes);
}

void write_text(Response& response, const std::set<std::string>& wanted, const char* name,
                const std::string& text) {
  if (!is_wanted(wanted, name)) return;
  const auto length = static_cast<uint32_t>(text.size());
  char* to = static_cast<char*>(response.add(name, TRITONSERVER_TYPE_BYTES, 1, sizeof length + length));
  std::memcpy(to, &length, sizeof length);
  std::memcpy(to + sizeof length, text.data(), length);
}

const char* name_of(tw_finish finish) {
  switch (finish) {
    case TW_FINISH_NONE:
      return "";
    case TW_FINISH_STOP:
      return "stop";
    case TW_FINISH_LENGTH:
      return "length";
    case TW_FINISH_ABORT:
      return "abort";
    case TW_FINISH_TIMEOUT:
      return "timeout";
    case TW_FINISH_ERROR:
      break;
  }
  return "error";
}

}  // namespace

Inputs read_inputs(TRITONBACKEND_Request* request) {
  Inputs inputs;
  uint32_t count = 0;
  bool has_ids = false;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    check(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    const Tensor tensor = read_tensor(input);
    if (tensor.name == "input_ids") {
      inputs.ids = read_ids(tensor);
      has_ids = true;
    } else if (tensor.name == "params") {
      inputs.params = read_text(tensor);
    } else {
      refuse("inputs must be input_ids and params, got " + tensor.name);
    }
  }
  if (!has_ids) refuse("a request must have the input input_ids, got none");
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    inputs.outputs.insert(name);
  }
  return inputs;
}

void write_outputs(Response& response, const std::set<std::string>& wanted, const tw::Event& event) {
  std::vector<float> logprobs;
  for (const std::vector<tw::Logprob>& position : event.logprobs)
    logprobs.push_back(static_cast<float>(position.front().logprob));
  write(response, wanted, "output_ids", TRITONSERVER_TYPE_INT32, event.tokens);
  write(response, wanted, "logprobs", TRITONSERVER_TYPE_FP32, logprobs);
  const std::pair<const char*, int32_t> numbers[] = {{"completion", event.completion},
                                                     {"prompt_tokens", event.prompt_tokens},
                                                     {"cached_tokens", event.cached_tokens}};
  for (const auto& [name, number] : numbers)
    write(response, wanted, name, TRITONSERVER_TYPE_INT32, std::vector<int32_t>{number});
  write_text(response, wanted, "finish_reason", name_of(event.finish));
}

}  // namespace tw_triton
