// Checks what must hold between any two steps, whatever the requests were. A violation is a bug of the
// engine, and the engine stops rather than go on with it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_INVARIANTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_INVARIANTS_H_

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tensorwright {

class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws InvariantError unless the counts are equal.
inline void check_equal(const char* what, int64_t counted, int64_t expected) {
  if (counted == expected) [[likely]]
    return;
  throw InvariantError("[engine] a broken invariant: " + std::string(what) + " must be " +
                       std::to_string(expected) + ", got " + std::to_string(counted) +
                       "; this is a bug of the engine, please report it");
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_INVARIANTS_H_
