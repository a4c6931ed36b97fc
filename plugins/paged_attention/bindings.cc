// The attention kernels in Python, for tests and benchmarks. Pages travel as uint8.
#include "plugins/paged_attention/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "plugins/paged_attention/kernels.h"
#include "plugins/paged_attention/layout.h"
#include "plugins/paged_attention/visible.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/bindings/timed.h"
#include "runtime/core/base/first_seen.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void require_block_table(const tw_attention_args& a, int64_t table_size, int64_t blocks) {
  require(a.block_size > 0 && a.block_size % TW_LANES == 0 && TW_ATTENTION_SPLIT % a.block_size == 0,
          "block_size must be a multiple of 16 that divides " + std::to_string(TW_ATTENTION_SPLIT));
  for (int32_t tile = 0; tile < TW_SPLIT_TILES; ++tile) {
    if (!tw_tile_exists(&a, tile)) continue;
    const int64_t block =
        (static_cast<int64_t>(a.split) * TW_ATTENTION_SPLIT + tile * TW_LANES) / a.block_size;
    require(block < table_size && a.block_table[block] >= 0 && a.block_table[block] < blocks,
            "block_table must name an existing block for every position seen");
  }
}

// q is [queries, group * head_dim], acc [queries, group, head_dim], max and sum [queries, group], slopes
// [group], gone [blocks], tile_max and tile_sum [32, queries, group]. values: false leaves V out.
void run_attention(size_t index, const Array& q, const Array& pages, const Array& block_table,
                   const Array& acc, const Array& max, const Array& sum, int kv_head, int block_size,
                   int first_position, int split, float scale, int window, float softcap,
                   std::optional<int> kv_dtype, const std::optional<Array>& slopes, bool chunked,
                   int sink_tokens, const std::vector<uint8_t>& gone, const std::optional<Array>& tile_max,
                   const std::optional<Array>& tile_sum, bool values) {
  require(q.ndim() == 2 && pages.ndim() == 2 && acc.ndim() == 3,
          "q and pages must be matrices, acc [Q, G, D]");
  tw_attention_args a = {};
  a.q_dtype = act_dtype(q, "q");
  a.queries = static_cast<int32_t>(acc.shape(0));
  a.group = static_cast<int32_t>(acc.shape(1));
  a.head_dim = a.v_dim = static_cast<int32_t>(acc.shape(2));
  const int64_t rows = static_cast<int64_t>(a.queries) * a.group;
  const int dtype = cache_dtype(kv_dtype, a.q_dtype, a.head_dim);
  const size_t head_bytes = tw_kv_head_bytes(dtype, a.head_dim, block_size);
  require(kv_head >= 0 && pages.shape(1) >= (static_cast<size_t>(kv_head) + 1) * head_bytes,
          "pages are too small");
  a.block_size = block_size;
  a.first_position = first_position;
  a.window = window;
  a.chunked = chunked;
  a.sink_tokens = sink_tokens;
  a.split = split;
  a.scale = scale;
  a.softcap = softcap;
  if (slopes) a.slopes = array_data<float>(*slopes, TW_F32, a.group, "slopes");
  a.q = array_data<void>(q, a.q_dtype, rows * a.head_dim, "q");
  a.q_stride = q.stride(0);
  a.pages = array_data<char>(pages, TW_I8, 0, "pages") + static_cast<size_t>(kv_head) * head_bytes;
  a.page_bytes = pages.stride(0);
  a.block_table = array_data<int32_t>(block_table, TW_I32, 0, "block_table");
  require(gone.empty() || gone.size() >= block_table.shape(0), "gone must have an entry for each block");
  if (!gone.empty()) a.gone = gone.data();
  require(tile_max.has_value() == tile_sum.has_value(), "tile_max and tile_sum go together");
  if (tile_max) a.tile_max = array_data<float>(*tile_max, TW_F32, rows * TW_SPLIT_TILES, "tile_max");
  if (tile_sum) a.tile_sum = array_data<float>(*tile_sum, TW_F32, rows * TW_SPLIT_TILES, "tile_sum");
  require_block_table(a, rows_of(block_table), rows_of(pages));
  a.acc = array_data<float>(acc, TW_F32, rows * a.head_dim, "acc");
  if (!values) a.v_dim = 0;
  a.max = array_data<float>(max, TW_F32, rows, "max");
  a.sum = array_data<float>(sum, TW_F32, rows, "sum");
  const tw_attention_fn run = kernel_at(attention_kernels(dtype), index);
  nb::gil_scoped_release release;
  run(&a);
}

// max and sum are [tiles, rows], total is [rows]; sum becomes the shares.
void run_attention_shares(size_t index, const Array& max, const Array& sum, const Array& total) {
  require(max.ndim() == 2 && sum.ndim() == 2, "max and sum must be [tiles, rows]");
  const auto tiles = static_cast<int32_t>(max.shape(0)), rows = static_cast<int32_t>(max.shape(1));
  const int64_t all = int64_t{tiles} * rows;
  const tw_attention_shares_args a = {rows,
                                      tiles,
                                      rows,
                                      array_data<float>(max, TW_F32, all, "max"),
                                      array_data<float>(sum, TW_F32, all, "sum"),
                                      array_data<float>(total, TW_F32, rows, "total")};
  kernel_at(attention_shares_kernels(), index)(&a);
}

// acc [splits, rows, head_dim], max and sum [splits, rows]; row r of the result is written at
// y.flat[y_offsets[r]].
void run_attention_combine(size_t index, const Array& acc, const Array& max, const Array& sum, const Array& y,
                           const std::vector<int64_t>& y_offsets, const std::optional<Array>& sinks) {
  require(acc.ndim() == 3 && y.ndim() == 1, "acc must be [splits, rows, head_dim] and y flat");
  tw_attention_combine_args a = {};
  a.splits = static_cast<int32_t>(acc.shape(0));
  a.rows = static_cast<int32_t>(acc.shape(1));
  a.v_dim = static_cast<int32_t>(acc.shape(2));
  const int64_t all = static_cast<int64_t>(a.splits) * a.rows;
  a.y_dtype = act_dtype(y, "y");
  a.acc = array_data<float>(acc, TW_F32, all * a.v_dim, "acc");
  a.max = array_data<float>(max, TW_F32, all, "max");
  a.sum = array_data<float>(sum, TW_F32, all, "sum");
  a.y = array_data<void>(y, a.y_dtype, 0, "y");
  a.y_offsets = y_offsets.data();
  if (sinks) a.sinks = array_data<float>(*sinks, TW_F32, a.rows, "sinks");
  require(y_offsets.size() == static_cast<size_t>(a.rows), "y_offsets must have one entry per row");
  for (int64_t offset : y_offsets) {
    require(offset >= 0 && offset + a.v_dim <= static_cast<int64_t>(y.size()), "y_offsets must lie in y");
  }
  kernel_at(attention_combine_kernels(), index)(&a);
}

// panel is a tile of K as bytes; rows, [16 positions][words * 4 bytes], gets the first columns of each
// position.
void run_latent_values(size_t index, const Array& panel, const Array& rows) {
  require(panel.ndim() == 1 && rows.ndim() == 2 && rows.shape(0) == TW_LANES && rows.shape(1) % 4 == 0,
          "rows must be [16, bytes], and panel flat");
  const auto words = static_cast<int32_t>(rows.shape(1) / 4);
  require(panel.shape(0) >= rows.shape(0) * rows.shape(1), "panel is too small");
  const tw_latent_values_args a = {words, array_data<char>(panel, TW_I8, 0, "panel"),
                                   array_data<char>(rows, TW_I8, 0, "rows")};
  kernel_at(latent_values_kernels(), index)(&a);
}

struct Work {
  int dtype, context, queries, heads, kv_heads, head_dim, window, block_size, query_tile, layers;
  tw_attention_fn attention;
  tw_attention_combine_fn combine;

  int q_dtype() const { return tw_kv_is_quantized(dtype) ? TW_BF16 : dtype; }  // as in bf16 engines
  int group() const { return heads / kv_heads; }
  int blocks() const { return (context + block_size - 1) / block_size; }
  int splits() const { return (context + TW_ATTENTION_SPLIT - 1) / TW_ATTENTION_SPLIT; }
  int tiles() const { return (queries + query_tile - 1) / query_tile; }
  int64_t block_bytes() const {
    return static_cast<int64_t>(tw_kv_block_bytes(dtype, kv_heads, head_dim, block_size));
  }
};

struct Scratch {  // the scratch of one thread
  std::vector<float> acc, max, sum;
  std::vector<int64_t> offsets;
};

// Runs one KV head and tile of queries over all splits, and combines the splits.
void run_task(const Work& w, const char* q, const char* pages, const int32_t* table, char* y, int kv_head,
              int tile, Scratch& scratch) {
  const int begin = tile * w.query_tile, count = std::min(w.query_tile, w.queries - begin);
  const int first = w.context - w.queries + begin, group = w.group();
  const int64_t rows = static_cast<int64_t>(count) * group,
                bytes = static_cast<int64_t>(tw_dtype_bytes(w.q_dtype()));
  const int low = static_cast<int>(tw_first_seen(first, w.window, 0) / TW_ATTENTION_SPLIT);
  const int high = (first + count - 1) / TW_ATTENTION_SPLIT;
  const int64_t all = rows * (high - low + 1);
  scratch.acc.resize(static_cast<size_t>(all * w.head_dim));
  scratch.max.resize(static_cast<size_t>(all));
  scratch.sum.resize(static_cast<size_t>(all));
  scratch.offsets.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    scratch.offsets[static_cast<size_t>(r)] =
        ((begin + r / group) * w.heads + kv_head * group + r % group) * static_cast<int64_t>(w.head_dim);
  }
  tw_attention_args a = {};
  a.queries = count;
  a.group = group;
  a.head_dim = a.v_dim = w.head_dim;
  a.block_size = w.block_size;
  a.first_position = first;
  a.window = w.window;
  a.scale = 0.125f;
  a.q_dtype = w.q_dtype();
  a.q = q + (static_cast<int64_t>(begin) * w.heads + kv_head * group) * w.head_dim * bytes;
  a.q_stride = static_cast<int64_t>(w.heads) * w.head_dim;
  a.pages = pages + static_cast<size_t>(kv_head) * tw_kv_head_bytes(w.dtype, w.head_dim, w.block_size);
  a.page_bytes = w.block_bytes();
  a.block_table = table;
  for (int split = low; split <= high; ++split) {
    a.split = split;
    a.acc = scratch.acc.data() + (split - low) * rows * w.head_dim;
    a.max = scratch.max.data() + (split - low) * rows;
    a.sum = scratch.sum.data() + (split - low) * rows;
    w.attention(&a);
  }
  const tw_attention_combine_args c = {static_cast<int32_t>(rows),
                                       high - low + 1,
                                       w.head_dim,
                                       w.q_dtype(),
                                       scratch.acc.data(),
                                       scratch.max.data(),
                                       scratch.sum.data(),
                                       y,
                                       scratch.offsets.data(),
                                       nullptr};
  w.combine(&c);
}

// Returns the seconds of each repeat over all layers. Every layer has its own pages, so that the caches hold
// none of them.
std::vector<double> time_all(const Work& w, int threads, int repeats) {
  const int64_t layer_bytes = w.blocks() * w.block_bytes();
  const int64_t q_bytes = static_cast<int64_t>(w.queries) * w.heads * w.head_dim * 4;
  const Buffer pages = benchmark_buffer(static_cast<size_t>(layer_bytes * w.layers));
  const Buffer q = benchmark_buffer(static_cast<size_t>(q_bytes)),
               y = benchmark_buffer(static_cast<size_t>(q_bytes));
  std::vector<int32_t> table;
  for (int b = 0; b < w.blocks(); ++b) table.push_back(b);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const int per_layer = w.kv_heads * w.tiles(), tasks = w.layers * per_layer;
    std::atomic<int> next{0};
    auto body = [&] {
      Scratch scratch;
      for (int i; (i = next.fetch_add(1)) < tasks;) {
        const int layer = i / per_layer, rest = i % per_layer;
        // In the order of instruction.cc.
        run_task(w, q.get(), pages.get() + layer * layer_bytes, table.data(), y.get(), rest / w.tiles(),
                 w.tiles() - 1 - rest % w.tiles(), scratch);
      }
    };
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (int t = 1; t < threads; ++t) team.emplace_back(body);
    body();
    for (auto& thread : team) thread.join();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

std::vector<double> time_attention(int dtype, size_t index, int context, int queries, int heads, int kv_heads,
                                   int head_dim, int query_tile, int layers, int window, int block_size,
                                   int threads, int repeats) {
  const tw_attention_fn kernel = kernel_at(attention_kernels(dtype), index);
  if (queries < 1 || queries > context || heads % kv_heads || query_tile < 1 || layers < 1 ||
      block_size % TW_LANES) {
    throw Error("InvalidOptionError",
                "time_attention: queries must be 1..context, heads a multiple of kv_heads");
  }
  const Work work = {
      dtype,      context,  queries, heads,
      kv_heads,   head_dim, window,  block_size,
      query_tile, layers,   kernel,  choose("attention_combine", attention_combine_kernels(), Isa::avx512)};
  nb::gil_scoped_release release;
  return time_all(work, threads, repeats);
}

void bind_paged_attention(nb::module_& m) {
  m.def("attention_table", [](int dtype) { return kernel_list(attention_kernels(dtype)); }, "dtype"_a);
  m.def("attention_combine_table", [] { return kernel_list(attention_combine_kernels()); });
  m.def("run_attention", &run_attention, "index"_a, "q"_a, "pages"_a, "block_table"_a, "acc"_a, "max"_a,
        "sum"_a, nb::kw_only(), "kv_head"_a, "block_size"_a, "first_position"_a, "split"_a, "scale"_a,
        "window"_a = 0, "softcap"_a = 0.0f, "kv_dtype"_a = nb::none(), "slopes"_a = nb::none(),
        "chunked"_a = false, "sink_tokens"_a = 0, "gone"_a = std::vector<uint8_t>(),
        "tile_max"_a = nb::none(), "tile_sum"_a = nb::none(), "values"_a = true);
  m.def("attention_shares_table", [] { return kernel_list(attention_shares_kernels()); });
  m.def("run_attention_shares", &run_attention_shares, "index"_a, "max"_a, "sum"_a, "total"_a);
  m.def("run_attention_combine", &run_attention_combine, "index"_a, "acc"_a, "max"_a, "sum"_a, "y"_a,
        "y_offsets"_a, "sinks"_a = nb::none());
  m.def("latent_values_table", [] { return kernel_list(latent_values_kernels()); });
  m.def("run_latent_values", &run_latent_values, "index"_a, "panel"_a, "rows"_a);
  m.def(
      "kv_block_bytes",
      [](int dtype, int kv_heads, int head_dim, int block_size) {
        return tw_kv_block_bytes(dtype, kv_heads, head_dim, block_size);
      },
      "dtype"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "Bytes of one block of one layer.");
  m.def("time_attention", &time_attention, "dtype"_a, "index"_a, nb::kw_only(), "context"_a, "queries"_a,
        "heads"_a, "kv_heads"_a, "head_dim"_a, "query_tile"_a = 16, "layers"_a = 1, "window"_a = 0,
        "block_size"_a = 32, "threads"_a = 1, "repeats"_a = 5,
        "Seconds of each repeat of the last `queries` of `context` positions, over all layers.");
}

const RegisteredBindings registered_paged_attention(&bind_paged_attention);

}  // namespace
}  // namespace tensorwright
