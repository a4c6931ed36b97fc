// The ceilings of the machine in Python: the rates that `tensorwright run --profile` and the benchmarks
// compare with.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "plugins/common/ceilings.h"
#include "plugins/common/dispatch.h"
#include "runtime/bindings/bindings.h"
#include "runtime/bindings/timed.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

constexpr size_t kReadBytes = size_t{256} << 20;  // more than the caches hold between two visits
constexpr size_t kReadPart = size_t{32} << 20;    // per round, so that a quiet moment of the machine is
                                                  // enough
constexpr int64_t kIterations = 250000;           // per round: some milliseconds too

// Returns the loop that reads on this processor.
auto read_loop() -> float (*)(const void*, size_t) {
#if defined(__x86_64__)
  return cpu_features().avx512 ? tw_ceiling_read_avx512 : tw_ceiling_read_avx2;
#else
  return tw_ceiling_read_neon;
#endif
}

std::vector<double> time_reads(int threads, int repeats) {
  static std::atomic<float> sink;
  const size_t share = kReadPart / static_cast<size_t>(threads) / 256 * 256;
  const Buffer data = benchmark_buffer(kReadBytes);
  return timed(threads, repeats, [&](int thread, int round) {
    const size_t part = static_cast<size_t>(round) % (kReadBytes / kReadPart);
    const char* from = data.get() + part * kReadPart + share * static_cast<size_t>(thread);
    sink = read_loop()(from, share);
  });
}

std::vector<double> time_operations(float (*run)(int64_t), int threads, int repeats) {
  static std::atomic<float> sink;
  return timed(threads, repeats, [&](int, int) { sink = run(kIterations); });
}

// One rate that the vector units can reach: the loop to run, and the number of operations in one iteration.
struct Peak {
  const char* name;
  bool runs;
  float (*run)(int64_t);
  double operations;
};

// Returns the peaks, of each name the best first: the first that this processor can run is the ceiling of
// that name.
std::vector<Peak> peaks() {
  const CpuFeatures& has = cpu_features();
  return {TW_ON_X86(
      {"float32", has.avx512, tw_ceiling_fma_avx512, 16 * 32},
      {"float32", true, tw_ceiling_fma_avx2, 12 * 16}, {"float32 avx2", true, tw_ceiling_fma_avx2, 12 * 16},
      {"bfloat16", has.amx_bf16, tw_ceiling_bf16_amx, 4 * 16384},
      {"bfloat16", has.avx512_bf16, tw_ceiling_bf16_avx512bf16, 16 * 64},
      {"bfloat16 avx512", has.avx512_bf16, tw_ceiling_bf16_avx512bf16, 16 * 64},
      {"int8", has.amx_int8, tw_ceiling_int8_amx, 4 * 32768},
      {"int8", has.avx512_vnni, tw_ceiling_int8_avx512vnni, 16 * 128},
      {"int8 avx512", has.avx512_vnni, tw_ceiling_int8_avx512vnni, 16 * 128},
      {"int8", true, tw_ceiling_int8_avx2, 8 * 64}, {"int8 avx2", true, tw_ceiling_int8_avx2, 8 * 64})  //
          TW_ON_ARM({"float32", true, tw_ceiling_fma_neon, 16 * 8},
                    {"bfloat16", has.neon_bf16, tw_ceiling_bf16_neonbf16, 16 * 16},
                    {"int8", has.neon_i8mm, tw_ceiling_int8_neoni8mm, 16 * 64},
                    {"int8", has.neon_dotprod, tw_ceiling_int8_neondot, 16 * 32},
                    {"int8", true, tw_ceiling_int8_neon, 8 * 32})};
}

// Returns the best of `repeats` rounds: bytes per second for reads, else operations per second.
double ceiling(const std::string& what, int threads, int repeats) {
  const CpuFeatures& has = cpu_features();
  if (!has.neon && !(has.avx2 && has.fma))
    throw Error("IsaError", "ceilings: needs AVX2 or NEON, which this processor lacks");
  if (threads < 1 || repeats < 1) throw Error("InvalidOptionError", "threads and repeats must be positive");
  const auto best = [](const std::vector<double>& seconds) {
    return *std::min_element(seconds.begin(), seconds.end());
  };
  if (what == "read") return kReadPart / best(time_reads(threads, repeats));
  for (const Peak& peak : peaks()) {
    if (what != peak.name || !peak.runs) continue;
    return peak.operations * kIterations * threads / best(time_operations(peak.run, threads, repeats));
  }
  std::string names = "read";
  for (const Peak& peak : peaks()) {
    const std::string name = std::string(", ") + peak.name;
    if (peak.runs && (names + ",").find(name + ",") == std::string::npos) names += name;
  }
  throw Error("InvalidOptionError",
              "ceiling must be one of those of this processor: " + names + "; not " + what);
}

}  // namespace

void bind_ceilings(nb::module_& m) {
  m.def("ceiling", &ceiling, "what"_a, "threads"_a = 1, "repeats"_a = 3,
        nb::call_guard<nb::gil_scoped_release>(),
        "Best measured rate per second: \"read\" (bytes), \"float32\", \"bfloat16\" or \"int8\" "
        "(operations), or "
        "that of a set of instructions: \"float32 avx2\", \"int8 avx2\", \"int8 avx512\", \"bfloat16 "
        "avx512\".");
}

}  // namespace tensorwright
