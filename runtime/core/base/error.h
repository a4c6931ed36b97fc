// The one exception type of the C++ core. `type` names a class of tensorwright.errors; the bindings raise
// that class.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ERROR_H_
#define TENSORWRIGHT_RUNTIME_CORE_ERROR_H_

#include <stdexcept>
#include <string>

namespace tensorwright {

class Error : public std::runtime_error {
 public:
  Error(std::string type, const std::string& message) : std::runtime_error(message), type_(std::move(type)) {}
  const std::string& type() const { return type_; }

 private:
  std::string type_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ERROR_H_
