// The Python module tensorwright.runtime._runtime.
#include <nanobind/nanobind.h>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/cache_feed.h"
#include "runtime/bindings/conversions.h"
#include "runtime/bindings/prefix_transfers.h"

NB_MODULE(_runtime, m) {
  m.doc() = "The C++ runtime: executor and engine.";
  tensorwright::translate_errors();
  tensorwright::bind_dispatch(m);
  tensorwright::bind_ceilings(m);
  tensorwright::bind_build(m);
  tensorwright::bind_executor(m);
  tensorwright::bind_cuda(m);
  tensorwright::bind_plan(m);
  tensorwright::bind_adapter(m);
  tensorwright::bind_sampling(m);
  tensorwright::bind_ranks(m);
  tensorwright::bind_prefix_transfers(m);
  tensorwright::bind_cache_feed(m);
  tensorwright::bind_engine(m);
  tensorwright::bind_simulation(m);
}
