// Which processors this process may use, and which of them share a core, a last-level cache and a NUMA node;
// and where the threads of a team run on them.
#ifndef TENSORWRIGHT_RUNTIME_CORE_TOPOLOGY_H_
#define TENSORWRIGHT_RUNTIME_CORE_TOPOLOGY_H_

#include <span>
#include <string>
#include <vector>

namespace tensorwright {

// Numbers of core, cache and node count from 0 within a Topology. The lowest processor of a core is its
// first.
struct Processor {
  int id;  // the system's number
  int node, cache, core;
  bool first_of_core;
};

class Topology {
 public:
  // Reads the folder in which the kernel describes processors and nodes (Linux, admin-guide/cputopology), for
  // these processors. One that is not described is a core, a cache and a part of node 0.
  static Topology read(const std::string& folder, std::span<const int> usable);
  static Topology of_machine();
  static Topology of_machine(std::span<const int> usable);

  // In the order of node, cache, core and number.
  const std::vector<Processor>& processors() const { return processors_; }
  int nodes() const { return nodes_; }
  int cores() const { return cores_; }

 private:
  std::vector<Processor> processors_;
  int nodes_ = 1, cores_ = 0;
};

// Where each thread of a team runs: in the order of node and cache, so that neighbours share them.
struct Placement {
  std::vector<Processor> processors;  // [threads]; empty: wherever the system puts them
  int nodes = 1;

  int node(int thread) const { return processors.empty() ? 0 : processors[static_cast<size_t>(thread)].node; }
  // Returns the system's numbers of the processors on a node.
  std::vector<int> on_node(int node) const;
};

// Gives each thread a processor: cores before second processors of a core, and as many of every node as the
// sizes of the nodes allow. Returns an empty placement for more threads than processors.
Placement place_threads(const Topology& topology, int threads);

// Returns the system's numbers of the processors of one of `parts` processes that share the machine: cores in
// the order of node and cache, as many for each as for the others. So with as many parts as nodes, or several
// for each node, a part lies on one node where nodes are of one size. Empty for more parts than cores.
std::vector<int> processors_of_part(const Topology& topology, int part, int parts);

// Returns the processors that the calling thread may run on.
std::vector<int> usable_processor_ids();
// Keeps the calling thread to these processors. Where the system does not grant them it stays as it is: then
// it computes the same, perhaps slower.
void keep_to_processors(std::span<const int> ids);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_TOPOLOGY_H_
