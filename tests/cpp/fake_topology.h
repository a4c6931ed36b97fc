// Folders like those in which the kernel describes processors and nodes, of a machine that is made up.
#ifndef TENSORWRIGHT_TESTS_CPP_FAKE_TOPOLOGY_H_
#define TENSORWRIGHT_TESTS_CPP_FAKE_TOPOLOGY_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/core/base/topology.h"

namespace tensorwright {

// `nodes` packages of a node each, with `caches` last-level caches of `cores` cores. Processors are numbered
// through all cores first, then through the second processors of all cores, and so on. clusters: the numbers
// of cores begin anew in each cache, and the lists of their processors tell them apart.
class FakeTopology {
 public:
  FakeTopology(int nodes, int caches, int cores, int processors, bool clusters = false) {
    const int all = nodes * caches * cores;
    for (int id = 0; id < all * processors; ++id) {
      const int core = id % all, cache = core / cores, node = cache / caches;
      const std::filesystem::path folder = folder_ / "cpu" / ("cpu" + std::to_string(id));
      write(folder / "topology/core_id", std::to_string(core % (clusters ? cores : caches * cores)));
      if (clusters)
        write(folder / "topology/core_cpus_list", std::to_string(core) + "," + std::to_string(core + all));
      write(folder / "topology/physical_package_id", std::to_string(node));
      write(folder / "cache/index0/level", "1");
      write(folder / "cache/index0/shared_cpu_list", "core " + std::to_string(core));
      write(folder / "cache/index3/level", "3");
      write(folder / "cache/index3/shared_cpu_list", std::to_string(cache * cores) + "-");
      std::filesystem::create_directory(folder / ("node" + std::to_string(node)));
      ids_.push_back(id);
    }
  }
  ~FakeTopology() { std::filesystem::remove_all(folder_); }
  FakeTopology(const FakeTopology&) = delete;
  FakeTopology& operator=(const FakeTopology&) = delete;

  Topology read() const { return read(ids_); }
  Topology read(const std::vector<int>& usable) const { return Topology::read(folder_.string(), usable); }

 private:
  static std::filesystem::path make_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "topology-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    return name;
  }
  static void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  const std::filesystem::path folder_ = make_folder();
  std::vector<int> ids_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_TESTS_CPP_FAKE_TOPOLOGY_H_
