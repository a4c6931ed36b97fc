// Reads texts and values of JSON that callers and engine files bring, and refuses what is not as it must be.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_JSON_VALUES_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_JSON_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "runtime/c_interface/declarations.h"

namespace tensorwright {

using Json = nlohmann::json;

// Where a value comes from, for errors. type: the class of tensorwright.errors. scope: in brackets before the
// message.
struct JsonPlace {
  const char* type;
  std::string scope;
};

// The most bytes of a text of parameters: all biases that a request may have fit.
inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;
// The most lists and objects inside each other.
inline constexpr int kMaxJsonDepth = 32;

// Throws Error{place.type}: "[scope] what must ..., got ...; remedy".
[[noreturn]] void refuse(const JsonPlace& place, const std::string& must, const std::string& came,
                         const std::string& remedy);

// Parses an object. Refuses a text that is longer than kMaxJsonBytes or nested deeper than kMaxJsonDepth, a
// key that an object has twice, and bytes that are not UTF-8. what: names the text in errors.
Json parse_object(std::string_view text, const JsonPlace& place, const std::string& what);

// Returns a text with U+FFFD in place of bytes that are not UTF-8.
std::string valid_utf8(const std::string& text);

// Returns the entry of a table by its name; null without one.
const Named* find_named(std::span<const Named> table, std::string_view name);

// Returns a value as an error shows it: a short one whole, of a long one its beginning or its size.
std::string shown(const Json& value);

// Return a value of JSON. name: names it in errors, which say what it must be.
int64_t read_integer(const Json& value, const JsonPlace& place, const std::string& name,
                     int64_t low = std::numeric_limits<int32_t>::min(),
                     int64_t high = std::numeric_limits<int32_t>::max());
double read_number(const Json& value, const JsonPlace& place, const std::string& name);
bool read_flag(const Json& value, const JsonPlace& place, const std::string& name);
const std::string& read_text(const Json& value, const JsonPlace& place, const std::string& name);
// Returns a number above 0 that is written as a number, or as a text such as "512MiB" with one of `units`.
// example: such a text.
double read_quantity(const Json& value, const JsonPlace& place, const std::string& name,
                     std::span<const Unit> units, bool small_letters, const char* example);
// Returns an array of at most `most` elements, unread.
const Json& read_list(const Json& value, const JsonPlace& place, const std::string& name, size_t most,
                      const char* elements);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_JSON_VALUES_H_
