// Reads the sampling parameters of a request from JSON, with the names, meanings and defaults of the Python
// class SamplingParams.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_SAMPLING_JSON_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_SAMPLING_JSON_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "runtime/c_interface/json_values.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

struct ReadParams {
  Sampling sampling;                       // without end-of-sequence tokens and max_tokens
  std::optional<int32_t> max_tokens;       // none: as many as there is room for
  std::optional<int32_t> truncate_prompt;  // only the last so many tokens of the prompt count
};

// Throws Error{"InvalidRequestError"} for a text that is no object of JSON, an unknown parameter, one that
// this interface does not have, and a value of a wrong type. Ranges are checked with the whole request
// (runtime/core/scheduler/request.h).
ReadParams read_params(std::string_view text);

// Returns every parameter that read_params() takes with its default.
Json default_params();
// Returns every parameter of SamplingParams that is refused, with the reason.
Json refused_params();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_SAMPLING_JSON_H_
