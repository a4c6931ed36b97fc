// Steps and logits in Python, for the executors that run a step at a time.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_STEPS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_STEPS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

namespace nb = nanobind;

using Ints = std::vector<int32_t>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// Converts an int32 array at once, or a sequence of ints one by one. Anything else raises TypeError.
inline Ints to_ints(nb::handle object) {
  nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(object, array, false)) return Ints(array.data(), array.data() + array.size());
  const nb::object list = nb::hasattr(object, "tolist") ? object.attr("tolist")() : nb::borrow(object);
  Ints ints;
  if (!nb::try_cast(list, ints)) throw nb::type_error("step: every array must hold 32-bit ints");
  return ints;
}

using Groups = std::vector<std::tuple<Table, nb::object>>;

inline Step to_step(nb::handle token_ids, nb::handle positions, nb::handle seq_starts,
                    nb::handle context_lens, nb::handle logit_rows, const Groups& groups,
                    nb::handle state_slots, nb::handle prompt_lens = nb::tuple()) {
  Step step{to_ints(token_ids),    to_ints(positions),  to_ints(seq_starts),
            to_ints(context_lens), to_ints(logit_rows), {},
            to_ints(state_slots)};
  step.prompt_lens = to_ints(prompt_lens);
  for (const auto& [table, slots] : groups) {
    if (table.shape(0) != step.context_lens.size()) {
      throw Error("InvalidRequestError", concat("step: block_tables must have ", step.context_lens.size(),
                                                " rows, has ", table.shape(0)));
    }
    const int32_t* data = table.data();
    step.groups.push_back(
        {static_cast<int32_t>(table.shape(1)), Ints(data, data + table.size()), to_ints(slots)});
  }
  return step;
}

// Copies rows out of an executor, which writes over them in its next step.
inline std::unique_ptr<float[]> rows_of(const float* data, int64_t stride, int32_t rows, int32_t cols) {
  const auto width = static_cast<size_t>(cols);
  auto copy = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows) * width);
  for (int32_t row = 0; row < rows; ++row)
    std::memcpy(copy.get() + static_cast<size_t>(row) * width, data + row * stride, width * sizeof(float));
  return copy;
}
inline Logits owned(std::unique_ptr<float[]> copy, int32_t rows, int32_t cols) {
  float* data = copy.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Logits(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, owner);
}
inline Logits copied(const float* data, int64_t stride, int32_t rows, int32_t cols) {
  return owned(rows_of(data, stride, rows, cols), rows, cols);
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_STEPS_H_
