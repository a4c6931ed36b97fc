// Timed loops over the attention kernels for benchmarks/attention.py: the tasks an executor would make, on
// plain threads.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/paged_attention/layout.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

void bind_attention_benchmarks(nb::module_& m);

namespace {

struct Work {
  int dtype, context, queries, heads, kv_heads, head_dim, window, block_size, query_tile, layers;
  tw_attention_fn attention;
  tw_attention_combine_fn combine;

  int q_dtype() const { return dtype == TW_I8 ? TW_BF16 : dtype; }  // as bf16 engines do it
  int group() const { return heads / kv_heads; }
  int blocks() const { return (context + block_size - 1) / block_size; }
  int splits() const { return (context + TW_ATTENTION_SPLIT - 1) / TW_ATTENTION_SPLIT; }
  int tiles() const { return (queries + query_tile - 1) / query_tile; }
  int64_t block_bytes() const {
    return static_cast<int64_t>(tw_kv_block_bytes(dtype, kv_heads, head_dim, block_size));
  }
};

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer buffer(int64_t bytes) {
  const size_t page = size_t{2} << 20, rounded = (static_cast<size_t>(bytes) + page - 1) / page * page;
  Buffer out(static_cast<char*>(std::aligned_alloc(page, rounded)));
  if (!out) throw Error("OutOfMemoryError", "benchmark: no memory for " + std::to_string(bytes) + " bytes");
  std::memset(out.get(), 0x3c, rounded);  // 0x3c3c is a small bf16, 0x3c3c3c3c a small float
  return out;
}

struct Scratch {  // of one thread
  std::vector<float> acc, max, sum;
  std::vector<int64_t> offsets;
};

// One KV head and tile of queries over all its splits, and their combination.
void run_task(const Work& w, const char* q, const char* pages, const int32_t* table, char* y, int kv_head,
              int tile, Scratch& scratch) {
  const int begin = tile * w.query_tile, count = std::min(w.query_tile, w.queries - begin);
  const int first = w.context - w.queries + begin, group = w.group();
  const int64_t rows = static_cast<int64_t>(count) * group,
                bytes = static_cast<int64_t>(tw_dtype_bytes(w.q_dtype()));
  const int low = w.window > 0 ? std::max(0, first - w.window + 1) / TW_ATTENTION_SPLIT : 0;
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
  a.head_dim = w.head_dim;
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

// Seconds of each repeat over all layers. Every layer has its own pages, so that caches hold none of them.
std::vector<double> time_all(const Work& w, int threads, int repeats) {
  const int64_t layer_bytes = w.blocks() * w.block_bytes();
  const int64_t q_bytes = static_cast<int64_t>(w.queries) * w.heads * w.head_dim * 4;
  const Buffer pages = buffer(layer_bytes * w.layers), q = buffer(q_bytes), y = buffer(q_bytes);
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
        // The last queries see most: they go first, so that no thread waits for a long task at the end.
        run_task(w, q.get(), pages.get() + layer * layer_bytes, table.data(), y.get(), rest % w.kv_heads,
                 w.tiles() - 1 - rest / w.kv_heads, scratch);
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
  const auto table = attention_kernels(dtype);
  if (index >= table.size()) throw Error("InvalidOptionError", "kernel index out of range");
  const std::string reason = refusal(table[index].isa, table[index].extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(table[index].name) + ": " + reason);
  if (queries < 1 || queries > context || heads % kv_heads || query_tile < 1 || layers < 1 ||
      block_size % TW_LANES) {
    throw Error("InvalidOptionError",
                "time_attention: queries must be 1..context, heads a multiple of kv_heads");
  }
  const Work work = {
      dtype,  context,         queries,
      heads,  kv_heads,        head_dim,
      window, block_size,      query_tile,
      layers, table[index].fn, choose("attention_combine", attention_combine_kernels(), Isa::avx512)};
  nb::gil_scoped_release release;
  return time_all(work, threads, repeats);
}

}  // namespace

void bind_attention_benchmarks(nb::module_& m) {
  m.def("time_attention", &time_attention, "dtype"_a, "index"_a, "context"_a, "queries"_a, "heads"_a,
        "kv_heads"_a, "head_dim"_a, "query_tile"_a = 16, "layers"_a = 1, "window"_a = 0, "block_size"_a = 32,
        "threads"_a = 1, "repeats"_a = 5,
        "Seconds of each repeat of the last `queries` of `context` positions, over all layers.");
}

}  // namespace tensorwright
