// The options with which an engine is opened, read from JSON with the names and defaults of the keywords of
// LLM.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_OPTIONS_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/c_interface/declarations.h"
#include "runtime/c_interface/json_values.h"

namespace tensorwright {

// Who proposes tokens, and one member for each number of declarations.h.
struct ReadSpeculation {
  std::string method;
#define MEMBER(name, standard, low, high, methods) int32_t name = standard;
  TENSORWRIGHT_SPECULATION(MEMBER)
#undef MEMBER
};

// One member for each option of declarations.h. None leaves the choice to the engine.
struct OpenOptions {
  std::optional<ReadSpeculation> speculative;
#define MEMBER(name, kind, form, standard, choices) kind name = standard;
  TENSORWRIGHT_OPTIONS(MEMBER)
#undef MEMBER
};

// Throws Error{"InvalidOptionError"} for a text that is no object of JSON, an unknown option, one that this
// interface does not have, and a value of a wrong type. The engine checks ranges.
OpenOptions read_options(std::string_view text);

// Returns the options as an object of JSON, null where the choice is left open.
Json options_json(const OpenOptions& options);
// Returns every option of LLM that is refused, with the reason.
Json refused_options();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_OPTIONS_H_
