#include "runtime/bindings/python_rows.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/base/error.h"

namespace nb = nanobind;

namespace tensorwright {

namespace {

using Tokens = nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>>;
using Row = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

thread_local bool inside = false;

struct Dropped {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};

// It is never destroyed: requests may end after the destructors of statics have begun.
Dropped& dropped() {
  static Dropped* all = new Dropped();
  return *all;
}

// Returns an array of numpy over the values of a vector, which it keeps alive.
template <typename Array, typename T>
Array array_over(std::shared_ptr<std::vector<T>> values) {
  auto* kept = new std::shared_ptr<std::vector<T>>(values);
  const nb::capsule owner(
      kept, [](void* pointer) noexcept { delete static_cast<std::shared_ptr<std::vector<T>>*>(pointer); });
  return Array(values->data(), {values->size()}, owner);
}

}  // namespace

PythonRows::PythonRows(nb::object chain) : chain_(std::move(chain)) { release_dropped(); }

PythonRows::~PythonRows() {
  PyObject* object = chain_.release().ptr();
  if (!object) return;
  Dropped& all = dropped();
  const std::lock_guard lock(all.mutex);
  try {
    all.objects.push_back(object);
  } catch (const std::bad_alloc&) {  // the object stays, which harms nobody else
  }
}

bool PythonRows::calls_here() { return inside; }

void PythonRows::release_dropped() {
  std::vector<PyObject*> objects;
  {
    Dropped& all = dropped();
    const std::lock_guard lock(all.mutex);
    objects.swap(all.objects);
  }
  for (PyObject* object : objects) Py_DECREF(object);  // may run any code of Python
}

void PythonRows::process(std::span<ProcessedRow> rows) const {
  const nb::gil_scoped_acquire gil;
  inside = true;
  for (ProcessedRow& row : rows) {
    if (!row.error) static_cast<const PythonRows*>(row.processor)->process_one(row);
  }
  inside = false;
  release_dropped();
}

void PythonRows::process_one(ProcessedRow& row) const {
  try {
    auto tokens = std::make_shared<std::vector<int32_t>>(row.tokens.begin(), row.tokens.end());
    chain_(nb::cast(array_over<Tokens>(std::move(tokens))), nb::cast(array_over<Row>(row.row)));
  } catch (const nb::python_error& raised) {
    row.error = std::make_exception_ptr(
        Error("LogitsProcessorError", std::string(nb::str(nb::handle(raised.value())).c_str())));
  } catch (...) {
    row.error = std::current_exception();
  }
}

}  // namespace tensorwright
