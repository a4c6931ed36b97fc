// Timed loops for benchmarks/: one matmul split over pinned threads, and the ceilings of the machine. Threads
// here are the benchmark's own, so that kernels are timed without the executor.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "plugins/common/ceilings.h"
#include "plugins/common/dispatch.h"
#include "plugins/matmul/pack.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

void bind_benchmarks(nb::module_& m);

namespace {

using Clock = std::chrono::steady_clock;

// Seconds of each of `repeats` rounds of body(thread, round) on `threads` threads, from first start to last
// end.
std::vector<double> timed(int threads, int repeats, const std::function<void(int, int)>& body) {
  std::vector<std::vector<Clock::time_point>> marks(static_cast<size_t>(threads));
  std::barrier gate(threads);
  auto run = [&](int thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(thread), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set,
                           &set);  // best effort: an unpinned thread still measures
    auto& mine = marks[static_cast<size_t>(thread)];
    for (int i = 0; i < repeats; ++i) {
      gate.arrive_and_wait();
      mine.push_back(Clock::now());
      body(thread, i);
      mine.push_back(Clock::now());
    }
  };
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) team.emplace_back(run, t);
  for (auto& t : team) t.join();
  std::vector<double> seconds;
  for (size_t i = 0; i < static_cast<size_t>(repeats); ++i) {
    auto begin = marks[0][2 * i], end = marks[0][2 * i + 1];
    for (const auto& mine : marks) {
      begin = std::min(begin, mine[2 * i]);
      end = std::max(end, mine[2 * i + 1]);
    }
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
  }
  return seconds;
}

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer buffer(size_t bytes) {
  const size_t rounded = (bytes + (2u << 20) - 1) >> 21 << 21;
  Buffer out(static_cast<char*>(std::aligned_alloc(2u << 20, rounded ? rounded : 2u << 20)));
  if (!out) throw Error("OutOfMemoryError", "benchmark: no memory for " + std::to_string(bytes) + " bytes");
  std::memset(out.get(), 0x3c, rounded);  // 0x3c3c is a small bf16, 0x3c3c3c3c a small float
  return out;
}

// What a thread takes of a matmul: all rows of a share of the panels, or (by_rows) all panels of a share of
// the rows.
void take_share(tw_matmul_args* a, int rows, int panels, int pair, int thread, int threads, bool by_rows) {
  const int parts = by_rows ? rows : panels / pair;
  const int grain = by_rows ? TW_MATMUL_ROW_BLOCK : TW_MATMUL_PANEL_BLOCK / pair;
  auto cut = [&](int t) { return t == threads ? parts : parts * t / threads / grain * grain; };
  const int begin = cut(thread), end = cut(thread + 1);
  a->rows = by_rows ? end - begin : rows;
  a->panel_begin = by_rows ? 0 : begin * pair;
  a->panel_end = by_rows ? panels : end * pair;
}

// The first row of a thread's share.
int first_row(int rows, int thread, int threads, bool by_rows) {
  return by_rows ? rows * thread / threads / TW_MATMUL_ROW_BLOCK * TW_MATMUL_ROW_BLOCK : 0;
}

// One matmul as a plan would run it. by_rows: threads split rows, else panels. Weight copies rotate so that
// caches do not hold them.
std::vector<double> time_matmul(int dtype, size_t index, int rows, int n, int k, int epilogue, int threads,
                                int repeats, int copies, bool by_rows) {
  const auto table = matmul_kernels(dtype);
  if (index >= table.size()) throw Error("InvalidOptionError", "kernel index out of range");
  const std::string reason = refusal(table[index].isa, table[index].extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(table[index].name) + ": " + reason);
  const int pair = tw_epilogue_panels(epilogue);
  const int panels = static_cast<int>(panels_of(n)) * pair;
  const size_t bytes = static_cast<size_t>(panels) * tw_panel_bytes(dtype, static_cast<size_t>(k));
  const Buffer w = buffer(bytes * static_cast<size_t>(copies));
  const Buffer x = buffer(static_cast<size_t>(rows) * static_cast<size_t>(k) * tw_dtype_bytes(dtype));
  const int y_dtype = pair == 2 ? dtype : TW_F32;
  const Buffer y = buffer(static_cast<size_t>(rows) * static_cast<size_t>(n) * sizeof(float));
  return timed(threads, repeats, [&](int thread, int round) {
    tw_matmul_args a = {};
    const int64_t first = first_row(rows, thread, threads, by_rows);
    take_share(&a, rows, panels, pair, thread, threads, by_rows);
    a.k = k;
    a.n = n;
    a.epilogue = epilogue;
    a.y_dtype = y_dtype;
    a.x = x.get() + first * k * static_cast<int64_t>(tw_dtype_bytes(dtype));
    a.x_stride = k;
    a.w = w.get() + bytes * static_cast<size_t>(round % copies);
    a.y = y.get() + first * n * static_cast<int64_t>(tw_dtype_bytes(y_dtype));
    a.y_stride = n;
    table[index].fn(&a);
  });
}

// The same of a quantized matmul; quantizing x is not counted. Every byte is 0x3c, as weight and as scale.
std::vector<double> time_quantized_matmul(int dtype, int group, size_t index, int rows, int n, int k,
                                          int epilogue, int threads, int repeats, int copies, bool by_rows) {
  const auto table = quantized_matmul_kernels(dtype);
  if (index >= table.size()) throw Error("InvalidOptionError", "kernel index out of range");
  const std::string reason = refusal(table[index].isa, table[index].extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(table[index].name) + ": " + reason);
  const int pair = tw_epilogue_panels(epilogue);
  const int panels = static_cast<int>(panels_of(n)) * pair;
  const auto bytes = static_cast<size_t>(panels * tw_quantized_panel_bytes(dtype, k, group));
  const int64_t row = tw_quantized_row(k, group), groups = tw_quantized_groups(k, group);
  const auto count = static_cast<size_t>(rows);
  const Buffer w = buffer(bytes * static_cast<size_t>(copies));
  const Buffer x = buffer(count * static_cast<size_t>(row));
  const Buffer scales = buffer(count * static_cast<size_t>(groups) * sizeof(float));
  const Buffer y = buffer(count * static_cast<size_t>(n) * sizeof(float));
  const std::vector<int32_t> sums(count * static_cast<size_t>(groups),
                                  0x3c * static_cast<int32_t>(row / groups));
  return timed(threads, repeats, [&](int thread, int round) {
    tw_quantized_matmul_args a = {};
    const int64_t first = first_row(rows, thread, threads, by_rows);
    take_share(&a.matmul, rows, panels, pair, thread, threads, by_rows);
    a.matmul.k = k;
    a.matmul.n = n;
    a.matmul.epilogue = epilogue;
    a.matmul.y_dtype = TW_F32;
    a.matmul.x = x.get() + first * row;
    a.matmul.x_stride = row;
    a.matmul.w = w.get() + bytes * static_cast<size_t>(round % copies);
    a.matmul.y = reinterpret_cast<float*>(y.get()) + first * n;
    a.matmul.y_stride = n;
    a.group = group;
    a.x_scale = reinterpret_cast<const float*>(scales.get()) + first;
    a.x_sum = sums.data() + first;
    a.group_stride = rows;
    table[index].fn(&a);
  });
}

constexpr size_t kReadBytes = size_t{256} << 20;  // more than the caches hold between two visits
constexpr size_t kReadPart = size_t{32} << 20;    // per round, some milliseconds: a quiet moment is enough
constexpr int64_t kIterations = 250000;           // likewise

std::vector<double> time_reads(int threads, int repeats) {
  static std::atomic<float> sink;
  const size_t share = kReadPart / static_cast<size_t>(threads) / 256 * 256;
  const Buffer data = buffer(kReadBytes);
  return timed(threads, repeats, [&](int thread, int round) {
    const size_t part = static_cast<size_t>(round) % (kReadBytes / kReadPart);
    const char* from = data.get() + part * kReadPart + share * static_cast<size_t>(thread);
    sink = cpu_features().avx512 ? tw_ceiling_read_avx512(from, share) : tw_ceiling_read_avx2(from, share);
  });
}

std::vector<double> time_operations(float (*run)(int64_t), int threads, int repeats) {
  static std::atomic<float> sink;
  return timed(threads, repeats, [&](int, int) { sink = run(kIterations); });
}

// One rate that the vector units can reach: what runs, and how many operations an iteration of it is.
struct Peak {
  const char* name;
  bool runs;
  float (*run)(int64_t);
  double operations;
};

// By name, best first: the first that runs here is the ceiling of that name.
std::vector<Peak> peaks() {
  const CpuFeatures& has = cpu_features();
  return {{"float32", has.avx512, tw_ceiling_fma_avx512, 16 * 32},
          {"float32", true, tw_ceiling_fma_avx2, 12 * 16},
          {"float32 avx2", true, tw_ceiling_fma_avx2, 12 * 16},
          {"bfloat16", has.avx512_bf16, tw_ceiling_bf16_avx512bf16, 16 * 64},
          {"int8", has.avx512_vnni, tw_ceiling_int8_avx512vnni, 16 * 128},
          {"int8", true, tw_ceiling_int8_avx2, 8 * 64},
          {"int8 avx2", true, tw_ceiling_int8_avx2, 8 * 64}};
}

// Best of `repeats` rounds: bytes per second of reads, or operations per second.
double ceiling(const std::string& what, int threads, int repeats) {
  const CpuFeatures& has = cpu_features();
  if (!has.avx2 || !has.fma) throw Error("IsaError", "ceilings: needs AVX2, which this processor lacks");
  if (threads < 1 || repeats < 1) throw Error("InvalidOptionError", "threads and repeats must be positive");
  const auto best = [](const std::vector<double>& seconds) {
    return *std::min_element(seconds.begin(), seconds.end());
  };
  if (what == "read") return kReadPart / best(time_reads(threads, repeats));
  for (const Peak& peak : peaks()) {
    if (what != peak.name || !peak.runs) continue;
    return peak.operations * kIterations * threads / best(time_operations(peak.run, threads, repeats));
  }
  throw Error(
      "InvalidOptionError",
      "ceiling must be read, float32, float32 avx2, int8, int8 avx2 or (with AVX512-BF16) bfloat16, not " +
          what);
}

}  // namespace

void bind_benchmarks(nb::module_& m) {
  m.def("time_matmul", &time_matmul, "dtype"_a, "index"_a, "rows"_a, "n"_a, "k"_a, "epilogue"_a = 0,
        "threads"_a = 1, "repeats"_a = 10, "copies"_a = 1, "by_rows"_a = false,
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds of each repeat of one matmul kernel, split over threads by panels or by rows.");
  m.def("time_quantized_matmul", &time_quantized_matmul, "dtype"_a, "group"_a, "index"_a, "rows"_a, "n"_a,
        "k"_a, "epilogue"_a = 0, "threads"_a = 1, "repeats"_a = 10, "copies"_a = 1, "by_rows"_a = false,
        nb::call_guard<nb::gil_scoped_release>(),
        "The same of a quantized matmul kernel; dtype: 3 int8, 4 int4; group: 0 for whole rows.");
  m.def("ceiling", &ceiling, "what"_a, "threads"_a = 1, "repeats"_a = 3,
        nb::call_guard<nb::gil_scoped_release>(),
        "Best measured rate per second: \"read\" (bytes), \"float32\", \"float32 avx2\", \"bfloat16\", "
        "\"int8\" or "
        "\"int8 avx2\" (operations).");
}

}  // namespace tensorwright
