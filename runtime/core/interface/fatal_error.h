// The errors after which an executor can compute no further step.
#ifndef TENSORWRIGHT_RUNTIME_CORE_INTERFACE_FATAL_ERROR_H_
#define TENSORWRIGHT_RUNTIME_CORE_INTERFACE_FATAL_ERROR_H_

#include <stdexcept>
#include <string>

namespace tensorwright {

// It is no Error of one step, so the engine stops. `type` names a class of tensorwright.errors.
class FatalError : public std::logic_error {
 public:
  FatalError(const char* type, const std::string& message) : std::logic_error(message), type_(type) {}
  const char* type() const { return type_; }

 private:
  const char* type_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_INTERFACE_FATAL_ERROR_H_
