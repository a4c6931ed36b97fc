// The processor's features, the machine's nodes and the choice of kernels in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "plugins/common/dispatch.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/base/topology.h"
#include "runtime/core/executor/numa.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

nb::typed<nb::dict, nb::str, bool> features() {
  const CpuFeatures& f = cpu_features();
  nb::typed<nb::dict, nb::str, bool> d;
  for (const CpuFeatureName& feature : kCpuFeatureNames) d[feature.name] = f.*(feature.field);
  return d;
}

nb::typed<nb::dict, nb::str, int> topology() {
  const Topology machine = Topology::of_machine();
  nb::typed<nb::dict, nb::str, int> d;
  d["nodes"] = machine.nodes();
  d["cores"] = machine.cores();
  return d;
}

std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> dispatch_choices() {
  std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> rows;
  for (const auto& c : explain_dispatch()) rows.emplace_back(c.family, c.taken, c.refused);
  return rows;
}

}  // namespace

void bind_dispatch(nb::module_& m) {
  m.def("cpu_features", &features,
        "What the processor and the operating system offer, by name, less what TENSORWRIGHT_CPU_WITHOUT "
        "lists.");
  m.def("topology", &topology, "The NUMA \"nodes\" and physical \"cores\" that this process may use.");
  m.def(
      "processors_of_rank",
      [](const std::string& numa, int rank, int ranks, int threads) {
        return processors_of_rank(numa_of(numa), Topology::of_machine(), rank, ranks, threads);
      },
      "numa"_a, "rank"_a, "ranks"_a, "threads"_a,
      "The processors of a rank of this machine, each with so many threads; empty: the system places it. "
      "Raises "
      "InvalidOptionError.");
  m.def(
      "isa", [] { return std::string(isa_name(selected_isa())); },
      "The selected instruction-set level; IsaError if TENSORWRIGHT_ISA is wrong.");
  m.def("explain_dispatch", &dispatch_choices, "[(family, kernel taken, [\"kernel: why refused\"])]");
}

}  // namespace tensorwright
