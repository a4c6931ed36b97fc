// Knows the engines of this process that are open, each by a number that is never used again, and ends them
// when the process exits.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_ENGINES_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_ENGINES_H_

#include <cstdint>
#include <memory>

#include "runtime/c_interface/served_engine.h"

namespace tensorwright {

// Keeps an engine that was opened, and returns its number, which is not 0.
uintptr_t keep_open(std::unique_ptr<ServedEngine> engine);
// Returns an open engine; null for a number of none. It lives as long as somebody holds it.
std::shared_ptr<ServedEngine> find_open(uintptr_t number);
// Returns an open engine and forgets it; null for a number of none.
std::shared_ptr<ServedEngine> take_open(uintptr_t number);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_OPEN_ENGINES_H_
