// The rotary kernels in Python, for tests. Pages travel as uint8.
#include "plugins/paged_attention/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/paged_attention/layout.h"
#include "plugins/rotary/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void run_rotary_table(size_t index, const Array& positions, const Array& inv_freq, const Array& table,
                      float scale) {
  const int64_t tokens = rows_of(positions), half = rows_of(inv_freq);
  require(table.ndim() == 2, "table must be [tokens, 2 * half]");
  tw_rotary_table_args a = {};
  a.tokens = static_cast<int32_t>(tokens);
  a.half = static_cast<int32_t>(half);
  a.positions = array_data<int32_t>(positions, TW_I32, tokens, "positions");
  a.inv_freq = array_data<float>(inv_freq, TW_F32, half, "inv_freq");
  a.scale = scale;
  a.table = array_data<float>(table, TW_F32, tokens * 2 * half, "table");
  a.table_stride = table.stride(0);
  kernel_at(rotary_table_kernels(), index)(&a);
}

void run_rotary_kv_write(size_t index, const Array& qkv, const Array& table, const Array& slots,
                         const Array& q, const Array& pages, int heads, int kv_heads, int head_dim,
                         int block_size, std::optional<int> kv_dtype) {
  require(qkv.ndim() == 2 && table.ndim() == 2 && q.ndim() == 2 && pages.ndim() == 2,
          "all but slots are matrices");
  const int64_t tokens = rows_of(slots);
  tw_rotary_kv_write_args a = {};
  a.tokens = static_cast<int32_t>(tokens);
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.rotary_dim = static_cast<int32_t>(table.shape(1));
  a.block_size = block_size;
  a.q_dtype = act_dtype(q, "q");
  const bool wide_q = a.q_dtype == TW_F32 && kv_dtype == TW_BF16;
  a.kv_dtype = wide_q ? TW_BF16 : cache_dtype(kv_dtype, a.q_dtype, head_dim);
  a.qkv = array_data<float>(qkv, TW_F32, tokens * (heads + 2 * kv_heads) * head_dim, "qkv");
  a.qkv_stride = qkv.stride(0);
  a.table = array_data<float>(table, TW_F32, tokens * a.rotary_dim, "table");
  a.table_stride = table.stride(0);
  a.slots = array_data<int32_t>(slots, TW_I32, tokens, "slots");
  a.q = array_data<void>(q, a.q_dtype, tokens * heads * head_dim, "q");
  a.q_stride = q.stride(0);
  a.pages = array_data<char>(pages, TW_I8, 0, "pages");
  a.page_bytes = pages.stride(0);
  require(block_size > 0 && block_size % TW_LANES == 0, "block_size must be a multiple of 16");
  require(pages.shape(1) >= tw_kv_block_bytes(a.kv_dtype, kv_heads, head_dim, block_size),
          "pages are too small");
  for (int64_t t = 0; t < tokens; ++t) {
    require(a.slots[t] >= 0 && a.slots[t] < rows_of(pages) * block_size, "slots must lie in the pages");
  }
  kernel_at(rotary_kv_write_kernels(), index)(&a);
}

void bind_rotary(nb::module_& m) {
  m.def("rotary_table_table", [] { return kernel_list(rotary_table_kernels()); });
  m.def("rotary_kv_write_table", [] { return kernel_list(rotary_kv_write_kernels()); });
  m.def("run_rotary_table", &run_rotary_table, "index"_a, "positions"_a, "inv_freq"_a, "table"_a,
        "scale"_a = 1.0f);
  m.def("run_rotary_kv_write", &run_rotary_kv_write, "index"_a, "qkv"_a, "table"_a, "slots"_a, "q"_a,
        "pages"_a, nb::kw_only(), "heads"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a,
        "kv_dtype"_a = nb::none());
}

const RegisteredBindings registered_rotary(&bind_rotary);

}  // namespace
}  // namespace tensorwright
