// Checks arrays that Python passes to kernels. Arrays of bfloat16 travel as uint16.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_ARRAYS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "plugins/common/kernel_types.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

// An array of any dtype and shape in the processor's memory.
using Array = nanobind::ndarray<nanobind::device::cpu>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw Error("InvalidOptionError", message);
}

// The checks below throw Error{"InvalidOptionError"}. `name` is what the message calls the array.

// Returns TW_F32 or TW_BF16.
template <typename AnyArray>
int float_dtype(const AnyArray& array, const char* name) {
  if (array.dtype() == nanobind::dtype<float>()) return TW_F32;
  require(array.dtype() == nanobind::dtype<uint16_t>(),
          std::string(name) + " must be float32 or uint16 (bfloat16)");
  return TW_BF16;
}

// Requires a matrix in which the elements of each row are adjacent.
template <typename Matrix>
void require_contiguous_rows(const Matrix& array, const char* name) {
  require(array.stride(1) == 1 || array.shape(1) <= 1 || array.size() == 0,
          std::string(name) + " must have contiguous rows");
}

// Returns TW_F32, TW_BF16 or TW_I32.
inline int array_dtype(const Array& array, const char* name) {
  if (array.dtype() == nanobind::dtype<float>()) return TW_F32;
  if (array.dtype() == nanobind::dtype<uint16_t>()) return TW_BF16;
  require(array.dtype() == nanobind::dtype<int32_t>(),
          std::string(name) + " must be float32, uint16 (bfloat16) or int32");
  return TW_I32;
}

// Requires a matrix of that dtype. The elements of a row must be adjacent; the rows may lie apart.
inline void require_rows(const Array& array, int dtype, const char* name) {
  require(array_dtype(array, name) == dtype, std::string(name) + " has the wrong dtype");
  require(array.ndim() == 2 && (array.stride(1) == 1 || array.shape(1) <= 1 || array.size() == 0),
          std::string(name) + " must be two-dimensional with contiguous rows");
}

// Requires the panels of packed weights: a uint8 vector with room for `panels` panels of k columns.
inline void require_packed(const Array& packed, int dtype, int64_t panels, int64_t k) {
  require(packed.dtype() == nanobind::dtype<uint8_t>() && packed.ndim() == 1,
          "packed weights must be a uint8 vector");
  const size_t bytes = static_cast<size_t>(panels) * tw_panel_bytes(dtype, static_cast<size_t>(k));
  require(packed.size() >= bytes, "packed weights must have " + std::to_string(bytes) + " bytes, not " +
                                      std::to_string(packed.size()));
}

// Returns whether the array has the type in which a tw_dtype travels: int8 travels as uint8.
inline bool is_dtype(const Array& array, int dtype) {
  switch (dtype) {
    case TW_F32:
      return array.dtype() == nanobind::dtype<float>();
    case TW_BF16:
      return array.dtype() == nanobind::dtype<uint16_t>();
    case TW_I32:
      return array.dtype() == nanobind::dtype<int32_t>();
    case TW_I8:
      return array.dtype() == nanobind::dtype<uint8_t>();
  }
  return false;
}

// Returns the data of an array of at least `size` elements whose last dimension is contiguous.
template <typename T>
T* array_data(const Array& array, int dtype, int64_t size, const char* name) {
  const size_t rank = array.ndim();
  require(is_dtype(array, dtype), std::string(name) + " has the wrong dtype");
  require(rank > 0 && (array.stride(rank - 1) == 1 || array.shape(rank - 1) <= 1 || array.size() == 0),
          std::string(name) + " must be contiguous along its last dimension");
  require(static_cast<int64_t>(array.size()) >= size,
          std::string(name) + " must have at least " + std::to_string(size) + " elements");
  return static_cast<T*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

// Returns the dtype of activations: TW_F32 or TW_BF16.
inline int act_dtype(const Array& array, const char* name) {
  require(is_dtype(array, TW_F32) || is_dtype(array, TW_BF16),
          std::string(name) + " must be float32 or uint16");
  return is_dtype(array, TW_F32) ? TW_F32 : TW_BF16;
}

inline int64_t rows_of(const Array& array) { return static_cast<int64_t>(array.shape(0)); }

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_ARRAYS_H_
