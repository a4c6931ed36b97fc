// What the core finds of the machine and divides of its memory, for tests that compare it with Python's.
#include "runtime/core/base/host.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/bindings/kernel_bindings.h"
#include "runtime/core/base/topology.h"
#include "runtime/core/base/xxh3.h"
#include "runtime/core/engine/cache_size.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Shares = std::tuple<int64_t, int32_t, int32_t>;

CacheNeeds needs_of(int64_t weights, int64_t block, int64_t state, int32_t most_held, int32_t block_size) {
  return {weights, block, state, most_held, block_size};
}

void bind_host(nb::module_& m) {
  nb::class_<CacheNeeds>(m, "CacheNeeds", "What an engine needs of memory.")
      .def(nb::new_(&needs_of), "weight_bytes"_a, "block_bytes"_a, "state_bytes"_a, "most_held"_a,
           "block_size"_a);
  m.def(
      "available_memory",
      [](const std::string& proc, const std::string& cgroup) { return available_memory({proc, cgroup}); },
      "proc"_a, "cgroup"_a);
  m.def(
      "processor_quota",
      [](const std::string& proc, const std::string& cgroup) { return processor_quota({proc, cgroup}); },
      "proc"_a, "cgroup"_a);
  m.def("default_threads", [] { return default_threads(); });
  m.def(
      "count_cores",
      [](const std::string& folder, const std::vector<int>& usable) {
        return Topology::read(folder, usable).cores();
      },
      "folder"_a, "usable"_a);
  m.def("default_cache_bytes", &default_cache_bytes, "needs"_a, "max_batch_size"_a, "available"_a,
        "prefixes"_a);
  m.def(
      "share_cache",
      [](const CacheNeeds& needs, int64_t size, int32_t batch, std::optional<int32_t> snapshots) {
        const CacheShares shares = share_cache(needs, size, batch, snapshots);
        return Shares(shares.kv_bytes, shares.sequences, shares.snapshots);
      },
      "needs"_a, "size"_a, "max_batch_size"_a, "snapshots"_a.none());
  m.def("populated_bytes", &populated_bytes, "available"_a);
  m.def(
      "xxh3_128_hex",
      [](const nb::bytes& data) { return xxh3_128_hex(std::span<const char>(data.c_str(), data.size())); },
      "data"_a);
}

const RegisteredBindings registered_host(&bind_host);

}  // namespace
}  // namespace tensorwright
