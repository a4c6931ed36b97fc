// concat(a, b, ...) writes its arguments into one string, for error messages.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CONCAT_H_
#define TENSORWRIGHT_RUNTIME_CORE_CONCAT_H_

#include <sstream>
#include <string>

namespace tensorwright {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CONCAT_H_
