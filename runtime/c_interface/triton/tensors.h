// Reads the tensors of a request of Triton, and writes those of a response.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_TENSORS_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_TENSORS_H_

#include <cstdint>
#include <set>
#include <string>
#include <tensorwright.hpp>
#include <vector>

#include "runtime/c_interface/triton/calls.h"

namespace tw_triton {

struct Inputs {
  std::vector<int32_t> ids;       // input_ids: INT32 [tokens]
  std::string params = "{}";      // params: BYTES [1], an object of JSON
  std::set<std::string> outputs;  // the names of the outputs that are wanted; empty: all
};

// Throws Failure for an unknown, missing or wrong tensor.
Inputs read_inputs(TRITONBACKEND_Request* request);

// Adds the wanted outputs of an event: output_ids and logprobs [tokens], completion, prompt_tokens and
// cached_tokens [1] and finish_reason BYTES [1].
void write_outputs(Response& response, const std::set<std::string>& wanted, const tw::Event& event);

}  // namespace tw_triton

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_TRITON_TENSORS_H_
