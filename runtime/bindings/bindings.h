// One function per file of this folder; module.cc calls them all.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace tensorwright {

void bind_kernels(nanobind::module_& m);   // single kernels, for their tests and benchmarks
void bind_executor(nanobind::module_& m);  // one step at a time, for build-time accuracy and tests
void bind_engine(nanobind::module_& m);    // the served engine

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
