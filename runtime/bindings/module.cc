// The Python module tensorwright.runtime._runtime.
#include <nanobind/nanobind.h>

#include "runtime/bindings/bindings.h"
#include "runtime/core/error.h"

namespace nb = nanobind;

namespace {

// A tensorwright::Error becomes the class of tensorwright.errors that it names.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const tensorwright::Error& error) {
    nb::object type = nb::module_::import_("tensorwright.errors").attr(error.type().c_str());
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

NB_MODULE(_runtime, m) {
  m.doc() = "The C++ runtime: kernels, executor and engine.";
  nb::register_exception_translator(translate);
  tensorwright::bind_kernels(m);
  tensorwright::bind_executor(m);
  tensorwright::bind_sampling(m);
  tensorwright::bind_engine(m);
}
