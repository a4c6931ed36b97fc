// The Python module tensorwright.runtime._testing: kernels, sampler and plan checks one by one, for tests and
// benchmarks. Wheels do not hold it. Each plugin adds its kernels in plugins/<op>/bindings.cc.
#include <nanobind/nanobind.h>

#include "runtime/bindings/conversions.h"
#include "runtime/bindings/kernel_bindings.h"

NB_MODULE(_testing, m) {
  m.doc() = "Parts of the C++ runtime one by one, for tests and benchmarks.";
  nanobind::module_::import_(
      "tensorwright.runtime._runtime");  // that module defines Sampling, which functions of this one take
  tensorwright::translate_errors();
  for (const auto bind : tensorwright::RegisteredBindings::all()) bind(m);
}
