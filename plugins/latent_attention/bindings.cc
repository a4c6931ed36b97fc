// The latent_kv_write kernels in Python, for tests. Pages travel as uint8.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/latent_attention/kernels.h"
#include "plugins/paged_attention/layout.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void run_latent_kv_write(size_t index, const Array& q_latent, const Array& q, const Array& kv,
                         const std::optional<Array>& table, const Array& slots, const Array& y,
                         const Array& pages, int heads, int rope, int block_size) {
  require(q_latent.ndim() == 2 && q.ndim() == 2 && kv.ndim() == 2 && y.ndim() == 2 && pages.ndim() == 2,
          "all but slots are matrices");
  const int64_t tokens = rows_of(slots);
  tw_latent_kv_write_args a = {};
  a.tokens = static_cast<int32_t>(tokens);
  a.heads = heads;
  a.rope = rope;
  a.latent = static_cast<int32_t>(kv.shape(1)) - rope;
  a.q_head = static_cast<int32_t>(q.shape(1)) / heads;
  a.block_size = block_size;
  a.y_dtype = a.kv_dtype = act_dtype(y, "y");
  require(a.latent > 0 && a.latent % 2 == 0 && rope % 2 == 0 && a.q_head >= rope, "the columns must be even");
  a.q_latent = array_data<float>(q_latent, TW_F32, tokens * heads * a.latent, "q_latent");
  a.q_latent_stride = q_latent.stride(0);
  a.q = array_data<float>(q, TW_F32, tokens * heads * a.q_head, "q");
  a.q_stride = q.stride(0);
  a.kv = array_data<float>(kv, TW_F32, tokens * (a.latent + rope), "kv");
  a.kv_stride = kv.stride(0);
  if (table) {
    a.table = array_data<float>(*table, TW_F32, tokens * rope, "table");
    a.table_stride = table->stride(0);
  }
  a.slots = array_data<int32_t>(slots, TW_I32, tokens, "slots");
  a.y = array_data<void>(y, a.y_dtype, tokens * heads * (a.latent + rope), "y");
  a.y_stride = y.stride(0);
  a.pages = array_data<char>(pages, TW_I8, 0, "pages");
  a.page_bytes = pages.stride(0);
  require(block_size > 0 && block_size % TW_LANES == 0, "block_size must be a multiple of 16");
  require(pages.shape(1) >= tw_kv_k_bytes(a.kv_dtype, a.latent + rope, block_size), "pages are too small");
  for (int64_t t = 0; t < tokens; ++t) {
    require(a.slots[t] >= 0 && a.slots[t] < rows_of(pages) * block_size, "slots must lie in the pages");
  }
  kernel_at(latent_kv_write_kernels(), index)(&a);
}

void bind_latent_attention(nb::module_& m) {
  m.def("latent_kv_write_table", [] { return kernel_list(latent_kv_write_kernels()); });
  m.def("run_latent_kv_write", &run_latent_kv_write, "index"_a, "q_latent"_a, "q"_a, "kv"_a, "table"_a.none(),
        "slots"_a, "y"_a, "pages"_a, nb::kw_only(), "heads"_a, "rope"_a, "block_size"_a);
}

const RegisteredBindings registered_latent_attention(&bind_latent_attention);

}  // namespace
}  // namespace tensorwright
