// Converts between Python and C++, for all modules of this folder.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_CONVERSIONS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_CONVERSIONS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// Registers the translation of exceptions: from then on a C++ Error raises the class of tensorwright.errors
// that it names, and std::bad_alloc raises OutOfMemoryError. Each module calls it once, because each has its
// own copy of these types.
void translate_errors();

// (token, logprob, rank) of each entry.
using LogprobTuples = std::vector<std::tuple<int32_t, double, int32_t>>;
LogprobTuples to_tuples(const std::vector<TokenLogprob>& logprobs);

// Returns the words of a contiguous one-dimensional uint32 array. Throws Error{"InvalidRequestError"} for
// anything else; `name` is what the message calls the array.
MaskWords to_mask(nanobind::handle bits, const char* name);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_CONVERSIONS_H_
