// Times loops on threads of their own, so that kernels are timed without the executor.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_TIMED_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_TIMED_H_

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace tensorwright {

// Returns the seconds of each of `repeats` rounds of body(thread, round) on `threads` threads, from the first
// start of a round to its last end.
std::vector<double> timed(int threads, int repeats, const std::function<void(int thread, int round)>& body);

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, FreeMemory>;

// Returns memory on whole huge pages, filled with 0x3c: 0x3c3c is a small bfloat16, 0x3c3c3c3c a small float.
// Throws Error{"OutOfMemoryError"}.
Buffer benchmark_buffer(size_t bytes);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_TIMED_H_
