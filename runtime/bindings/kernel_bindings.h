// Helpers for the plugins' bindings.cc files, which make up the module that tests and benchmarks use.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_KERNEL_BINDINGS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_KERNEL_BINDINGS_H_

#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/common/kernel_types.h"
#include "runtime/bindings/arrays.h"

namespace tensorwright {

// Adds functions to the module for tests. A plugin's bindings.cc defines one object of this class at
// namespace scope.
class RegisteredBindings {
 public:
  using Bind = void (*)(nanobind::module_& m);
  explicit RegisteredBindings(Bind bind) { all().push_back(bind); }

  static std::vector<Bind>& all() {
    static std::vector<Bind> functions;  // made on first use, because objects of other files fill it
    return functions;
  }
};

// A table in Python: (name, instruction-set level, whether this processor can run it) of each kernel.
using KernelList = std::vector<std::tuple<std::string, std::string, bool>>;

template <typename Fn>
KernelList kernel_list(std::span<const KernelEntry<Fn>> table) {
  KernelList kernels;
  for (const auto& entry : table) {
    kernels.emplace_back(entry.name, isa_name(entry.isa), refusal(entry.isa, entry.extra, kEveryIsa).empty());
  }
  return kernels;
}

// Throws Error{"InvalidOptionError"} for an index outside the table, {"IsaError"} if the processor lacks what
// the kernel needs.
template <typename Fn>
Fn kernel_at(std::span<const KernelEntry<Fn>> table, size_t index) {
  require(index < table.size(), "kernel index out of range");
  const auto& entry = table[index];
  const std::string reason = refusal(entry.isa, entry.extra, kEveryIsa);
  if (!reason.empty()) throw Error("IsaError", std::string(entry.name) + ": " + reason);
  return entry.fn;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_KERNEL_BINDINGS_H_
