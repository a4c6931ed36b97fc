// The Python module tensorwright.runtime._runtime.
#include <nanobind/nanobind.h>

#include <new>

#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;

namespace {

void set_error(const char* type, const char* text) {
  PyErr_SetString(nb::module_::import_("tensorwright.errors").attr(type).ptr(), text);
}

// A tensorwright::Error becomes the class of tensorwright.errors that it names.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const tensorwright::Error& error) {
    set_error(error.type().c_str(), error.what());
  } catch (const std::bad_alloc&) {
    set_error("OutOfMemoryError",
              "the process can get no more memory; lower the limits the engine is loaded with");
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
