#include "runtime/bindings/adapters.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;

namespace tensorwright {

namespace {

// Returns the dtype of a matrix. Throws Error{"InvalidOptionError"} unless it is `like`; < 0 means any that
// adapters may have.
int matrix_dtype(const AdapterMatrix& matrix, int like = -1) {
  const int dtype = matrix.dtype() == nb::dtype<float>()      ? TW_F32
                    : matrix.dtype() == nb::dtype<uint16_t>() ? TW_BF16
                                                              : -1;
  if (dtype < 0 || (like >= 0 && dtype != like)) {
    throw Error("InvalidOptionError",
                "adapter: the matrices of a product must all be float32, or all uint16 (bfloat16)");
  }
  return dtype;
}

}  // namespace

PyAdapter make_adapter(const AdapterProducts& maker, const std::string& key,
                       const std::vector<AdapterProductTuple>& products) {
  AdapterWeights weights{key, {}};
  for (const auto& [instruction, a, parts, scales] : products) {
    AdapterWeights::Product product{
        instruction, static_cast<int32_t>(a.shape(0)), static_cast<int32_t>(a.shape(1)), a.data(), {}};
    product.dtype = matrix_dtype(a);
    if (scales) {
      if (scales->shape(0) != a.shape(0))
        throw Error("InvalidOptionError",
                    "adapter: a product must have a factor for each row of its first matrix");
      product.scales = scales->data();
    }
    for (const auto& [first, column, b] : parts) {
      matrix_dtype(b, product.dtype);
      product.parts.push_back(
          {first, static_cast<int32_t>(b.shape(1)), column, static_cast<int32_t>(b.shape(0)), b.data()});
    }
    weights.products.push_back(std::move(product));
  }
  const nb::gil_scoped_release release;
  return {maker.make(weights)};
}

void bind_adapter(nb::module_& m) {
  nb::class_<PyAdapter>(m, "Adapter", "The weights of an adapter in the form of the engine that made it.")
      .def_prop_ro(
          "key", [](const PyAdapter& self) { return self.adapter->key(); },
          "A text that is equal for adapters of equal content only.");
}

}  // namespace tensorwright
