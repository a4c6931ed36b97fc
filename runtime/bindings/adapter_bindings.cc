#include "runtime/bindings/adapters.h"
#include "runtime/bindings/bindings.h"

namespace nb = nanobind;

namespace tensorwright {

PyAdapter make_adapter(const AdapterProducts& maker, const std::string& key,
                       const std::vector<AdapterProductTuple>& products) {
  AdapterWeights weights{key, {}};
  for (const auto& [instruction, a, parts] : products) {
    AdapterWeights::Product product{
        instruction, static_cast<int32_t>(a.shape(0)), static_cast<int32_t>(a.shape(1)), a.data(), {}};
    for (const auto& [first, column, b] : parts) {
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
