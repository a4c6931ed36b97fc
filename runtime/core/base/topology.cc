#include "runtime/core/base/topology.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

namespace tensorwright {
namespace {

std::optional<int> number_in(const std::string& path) {
  std::ifstream file(path);
  int value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Returns the first word of a file, or "" if there is none.
std::string word_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// Returns the node of a processor: its folder has a link or a folder called node<N>. (The standard library's
// iterator of folders ends the process where memory runs out.)
int node_of(const std::string& processor) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(processor.c_str()), closedir);
  if (!folder) return 0;
  while (const dirent* entry = readdir(folder.get())) {
    int node = 0, length = 0;
    const bool is_node = std::sscanf(entry->d_name, "node%d%n", &node, &length) == 1;
    if (is_node && entry->d_name[length] == 0 && node >= 0) return node;
  }
  return 0;
}

// Returns the processors that share the last-level cache, as the kernel writes them; "" if it does not.
std::string last_cache_of(const std::string& processor) {
  int highest = 0;
  std::string shared;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = processor + "/cache/index" + std::to_string(index);
    const int level = number_in(folder + "/level").value_or(0);
    if (level > highest) highest = level, shared = word_in(folder + "/shared_cpu_list");
  }
  return shared;
}

// Returns the lowest processor of a processor's core, where the kernel lists the processors of a core. The
// second name is that of kernels before 5.3 (Linux, admin-guide/cputopology). Lists are ascending.
std::optional<int> first_of_core_of(const std::string& processor) {
  const std::optional<int> first = number_in(processor + "/topology/core_cpus_list");
  return first ? first : number_in(processor + "/topology/thread_siblings_list");
}

// Numbers keys from 0 in the order in which they are first asked for.
template <typename Key>
class Numbers {
 public:
  int of(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int>(numbers_.size())).first->second;
  }
  int count() const { return static_cast<int>(numbers_.size()); }

 private:
  std::map<Key, int> numbers_;
};

}  // namespace

Topology Topology::read(const std::string& folder, std::span<const int> usable) {
  struct Described {
    int id, node, package, core, first;
    std::string cache;
  };
  std::vector<Described> described;
  for (int id : usable) {
    const std::string processor = folder + "/cpu/cpu" + std::to_string(id);
    const std::optional<int> core = number_in(processor + "/topology/core_id");
    const int package = number_in(processor + "/topology/physical_package_id").value_or(0);
    const std::optional<int> first = first_of_core_of(processor);
    // The numbers of cores repeat in each cluster of a machine that a device tree describes, so the list of a
    // core's processors decides where there is one. A core with neither is one of its own.
    described.push_back({id, node_of(processor), package, core.value_or(-1), first.value_or(core ? -1 : id),
                         last_cache_of(processor)});
  }
  std::ranges::sort(described, {},
                    [](const Described& d) { return std::tie(d.node, d.package, d.core, d.first, d.id); });
  Topology topology;
  Numbers<int> nodes;
  Numbers<std::pair<int, std::string>> caches;
  Numbers<std::tuple<int, int, int, int>> cores;
  for (const Described& d : described) {
    const int before = cores.count();
    const int node = nodes.of(d.node), cache = caches.of({d.node, d.cache});
    const int core = cores.of({d.node, d.package, d.core, d.first});
    topology.processors_.push_back({d.id, node, cache, core, cores.count() > before});
  }
  std::ranges::sort(topology.processors_, {},
                    [](const Processor& p) { return std::tie(p.node, p.cache, p.core, p.id); });
  topology.nodes_ = std::max(1, nodes.count());
  topology.cores_ = cores.count();
  return topology;
}

Topology Topology::of_machine() { return of_machine(usable_processor_ids()); }

Topology Topology::of_machine(std::span<const int> usable) { return read("/sys/devices/system", usable); }

std::vector<int> Placement::on_node(int node) const {
  std::vector<int> ids;
  for (const Processor& processor : processors)
    if (processor.node == node) ids.push_back(processor.id);
  return ids;
}

Placement place_threads(const Topology& topology, int threads) {
  const std::vector<Processor>& all = topology.processors();
  if (threads < 1 || static_cast<size_t>(threads) > all.size()) return {};
  // The processors of each node, in the order in which they are taken.
  std::vector<std::vector<Processor>> waiting(static_cast<size_t>(topology.nodes()));
  for (bool first : {true, false})
    for (const Processor& processor : all)
      if (processor.first_of_core == first) waiting[static_cast<size_t>(processor.node)].push_back(processor);
  const int cores = topology.cores();
  Placement placement;
  std::vector<size_t> taken(waiting.size(), 0);
  const auto take = [&](bool first) {
    bool any = true;
    while (any && static_cast<int>(placement.processors.size()) < threads) {
      any = false;
      for (size_t node = 0; node < waiting.size(); ++node) {
        if (static_cast<int>(placement.processors.size()) == threads) break;
        if (taken[node] == waiting[node].size() || waiting[node][taken[node]].first_of_core != first)
          continue;
        placement.processors.push_back(waiting[node][taken[node]++]);
        any = true;
      }
    }
  };
  take(true);
  if (threads > cores) take(false);
  std::ranges::sort(placement.processors, {},
                    [](const Processor& p) { return std::tie(p.node, p.cache, p.core, p.id); });
  placement.nodes = topology.nodes();
  return placement;
}

std::vector<int> processors_of_part(const Topology& topology, int part, int parts) {
  const int64_t cores = topology.cores();
  std::vector<int> ids;
  if (parts < 1 || part < 0 || part >= parts || parts > cores) return ids;
  const int64_t begin = cores * part / parts, end = cores * (part + 1) / parts;
  int64_t core = -1;
  for (const Processor& processor : topology.processors()) {
    if (processor.first_of_core) ++core;
    if (core >= begin && core < end) ids.push_back(processor.id);
  }
  return ids;
}

#if defined(__linux__)

namespace {

constexpr int kMostProcessors = 1 << 16;  // a mask of so many fits the largest kernels

struct CpuSet {
  size_t bytes = CPU_ALLOC_SIZE(kMostProcessors);
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{CPU_ALLOC(kMostProcessors),
                                                       [](cpu_set_t* s) { CPU_FREE(s); }};
  CpuSet() {
    if (set) CPU_ZERO_S(bytes, set.get());
  }
};

}  // namespace

std::vector<int> usable_processor_ids() {
  std::vector<int> ids;
  const CpuSet usable;
  if (!usable.set || sched_getaffinity(0, usable.bytes, usable.set.get()) != 0) return ids;
  for (int id = 0; id < kMostProcessors; ++id)
    if (CPU_ISSET_S(static_cast<size_t>(id), usable.bytes, usable.set.get())) ids.push_back(id);
  return ids;
}

void keep_to_processors(std::span<const int> ids) {
  const CpuSet wanted;
  if (!wanted.set || ids.empty()) return;
  for (int id : ids)
    if (id >= 0 && id < kMostProcessors) CPU_SET_S(static_cast<size_t>(id), wanted.bytes, wanted.set.get());
  sched_setaffinity(0, wanted.bytes, wanted.set.get());
}

#else

// Other systems do not say where a thread may run, nor keep it there.
std::vector<int> usable_processor_ids() { return {}; }
void keep_to_processors(std::span<const int> /*ids*/) {}

#endif

}  // namespace tensorwright
