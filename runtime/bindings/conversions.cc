#include "runtime/bindings/conversions.h"

#include <nanobind/ndarray.h>

#include <exception>
#include <new>

#include "runtime/core/base/error.h"
#include "runtime/core/cuda/driver.h"
#include "runtime/core/interface/ranks.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

void set_error(const char* type, const char* text) {
  PyErr_SetString(nb::module_::import_("tensorwright.errors").attr(type).ptr(), text);
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    set_error(error.type().c_str(), error.what());
  } catch (const RankError& error) {
    set_error("RankError", error.what());
  } catch (const DeviceError& error) {
    set_error("DeviceError", error.what());
  } catch (const std::bad_alloc&) {
    set_error("OutOfMemoryError",
              "the process can get no more memory; lower the limits the engine is loaded with");
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate); }

LogprobTuples to_tuples(const std::vector<TokenLogprob>& logprobs) {
  LogprobTuples tuples;
  for (const TokenLogprob& entry : logprobs) tuples.emplace_back(entry.token, entry.logprob, entry.rank);
  return tuples;
}

MaskWords to_mask(nb::handle bits, const char* name) {
  nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(bits, array, false)) return MaskWords(array.data(), array.data() + array.size());
  throw Error("InvalidRequestError", std::string("[request] ") + name +
                                         " must be a contiguous one-dimensional uint32 array, got " +
                                         nb::repr(bits.type()).c_str() + "; convert it");
}

}  // namespace tensorwright
