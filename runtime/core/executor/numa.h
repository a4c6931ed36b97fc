// What an engine of target cpu does on a machine with several NUMA nodes: it keeps its threads to processors,
// and places the weights that each thread reads on the thread's node.
#ifndef TENSORWRIGHT_RUNTIME_CORE_NUMA_H_
#define TENSORWRIGHT_RUNTIME_CORE_NUMA_H_

#include <string>
#include <vector>

#include "runtime/core/base/mapped_file.h"
#include "runtime/core/base/topology.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

enum class Numa {
  automatic,   // split, if the weights are copied, there are several nodes, and every core has a thread
  off,         // the system places threads and memory
  split,       // each node holds the part of every matrix that its threads read
  interleave,  // the nodes hold the weights in turns, page by page
};

// Throws Error{"InvalidOptionError"} for another name than "auto", "off", "split" and "interleave".
Numa numa_of(const std::string& name);

// Whether threads and weights may be placed. Throws Error{"InvalidOptionError"} if weights that are not
// copied are to be: pages of a file belong to all processes that map it.
bool may_place(Numa numa, LoadMode load);
// Returns where the threads of an engine run that may place them.
Placement placement_for(Numa numa, const Topology& topology, int threads);

// Returns the processors of one of `ranks` processes of this machine that compute together, each with so many
// threads; empty: the system places them. A rank then has the nodes of its processors to itself, so its
// memory is near where it reads. Throws Error{"InvalidOptionError"} for Numa::interleave: a rank's weights
// are its own.
std::vector<int> processors_of_rank(Numa numa, const Topology& topology, int rank, int ranks, int threads);

// Returns the node that holds each MappedFile::kPage bytes of weights.bin; empty for a placement on one node.
// A product cuts its matrix into as many shares as there are threads, so a node with a quarter of them reads
// the same quarter in every step. What is read in another way lies on the nodes in turns: experts, of which a
// token takes a few, and tables of embeddings.
std::vector<int> place_weights(const Plan& plan, const Placement& placement, Numa numa);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_NUMA_H_
