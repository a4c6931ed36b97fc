#include "runtime/core/executor/numa.h"

#include <algorithm>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/executor/products.h"
#include "runtime/core/plan/op_table.h"

namespace tensorwright {

Numa numa_of(const std::string& name) {
  if (name == "auto") return Numa::automatic;
  if (name == "off") return Numa::off;
  if (name == "split") return Numa::split;
  if (name == "interleave") return Numa::interleave;
  throw Error("InvalidOptionError",
              concat("numa must be 'auto', 'off', 'split' or 'interleave', is '", name, "'"));
}

bool may_place(Numa numa, LoadMode load) {
  if (numa == Numa::off) return false;
  if (load == LoadMode::copy) return true;
  if (numa == Numa::automatic) return false;
  throw Error(
      "InvalidOptionError",
      "numa places weights that are copied, and load is 'map': set load to 'copy', or leave numa out");
}

Placement placement_for(Numa numa, const Topology& topology, int threads) {
  const bool wanted = numa != Numa::automatic || (topology.nodes() > 1 && threads == topology.cores());
  return wanted ? place_threads(topology, threads) : Placement{};
}

std::vector<int> processors_of_rank(Numa numa, const Topology& topology, int rank, int ranks, int threads) {
  if (numa == Numa::interleave) {
    throw Error(
        "InvalidOptionError",
        "numa='interleave' is for an engine of one rank: each rank has weights of its own; use 'split', "
        "which gives each rank its processors, or leave numa out");
  }
  const bool all = int64_t{ranks} * threads == topology.cores();
  const bool wanted = numa == Numa::split || (numa == Numa::automatic && topology.nodes() > 1 && all);
  return wanted ? processors_of_part(topology, rank, ranks) : std::vector<int>{};
}

std::vector<int> place_weights(const Plan& plan, const Placement& placement, Numa numa) {
  if (placement.nodes <= 1) return {};
  const size_t pages =
      static_cast<size_t>((plan.header.weights_bytes + MappedFile::kPage - 1) / MappedFile::kPage);
  std::vector<int> nodes(pages);
  // Threads are in the order of nodes; a node without threads holds nothing.
  const auto threads = static_cast<int64_t>(placement.processors.size());
  for (size_t page = 0; page < pages; ++page)
    nodes[page] = placement.node(static_cast<int>(page % static_cast<size_t>(threads)));
  if (numa == Numa::interleave) return nodes;
  for (const Instruction& instruction : plan.instructions) {
    if (!is_product(instruction)) continue;
    const WeightRecord& weight = plan.weights[static_cast<size_t>(instruction.weight[0])];
    const uint64_t end = weight.offset + weight.bytes;
    for (uint64_t page = weight.offset / MappedFile::kPage; page * MappedFile::kPage < end; ++page) {
      const uint64_t middle =
          std::clamp(page * MappedFile::kPage + MappedFile::kPage / 2, weight.offset, end - 1);
      const double share = static_cast<double>(middle - weight.offset) / static_cast<double>(weight.bytes);
      nodes[static_cast<size_t>(page)] =
          placement.node(static_cast<int>(share * static_cast<double>(threads)));
    }
  }
  return nodes;
}

}  // namespace tensorwright
