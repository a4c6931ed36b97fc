// The Python module tensorwright.runtime._runtime.
#include <nanobind/nanobind.h>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/conversions.h"

NB_MODULE(_runtime, m) {
  m.doc() = "The C++ runtime: executor and engine.";
  tensorwright::translate_errors();
  tensorwright::bind_dispatch(m);
  tensorwright::bind_ceilings(m);
  tensorwright::bind_build(m);
  tensorwright::bind_executor(m);
  tensorwright::bind_sampling(m);
  tensorwright::bind_engine(m);
}
