#include "runtime/core/base/host.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/base/topology.h"

namespace tensorwright {
namespace {

using Path = std::filesystem::path;

// Returns the words of a file; none if it cannot be read.
std::vector<std::string> words_of(const Path& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(std::move(word));
  return words;
}

// Returns the number that a word is; none for "max" and whatever else is no number.
std::optional<int64_t> number_of(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || end != word.data() + word.size() || value < 0)
    return std::nullopt;
  return value;
}

std::optional<int64_t> number_in(const Path& path) {
  const std::vector<std::string> words = words_of(path);
  return words.empty() ? std::nullopt : number_of(words.front());
}

// Returns the number behind a word of a file, 0 if it is not there.
int64_t number_behind(const Path& path, const std::string& key) {
  const std::vector<std::string> words = words_of(path);
  for (size_t i = 0; i + 1 < words.size(); i += 2)
    if (words[i] == key) return number_of(words[i + 1]).value_or(0);
  return 0;
}

// Adds root / inside and all folders above it, down to root, that are not there yet.
void add_up_to_root(const Path& root, const std::string& inside, std::vector<Path>* folders) {
  const Path relative = Path(inside).relative_path();
  for (Path part = relative;; part = part.parent_path()) {
    const Path folder = part.empty() ? root : root / part;
    if (std::ranges::find(*folders, folder) == folders->end()) folders->push_back(folder);
    if (part.empty()) return;
  }
}

bool lists(const std::string& controllers, const std::string& controller) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');)
    if (name == controller) return true;
  return false;
}

// Returns the folders of this process's group and of all groups above it, in the layout of either version.
// Version 1 mounts each controller in its own folder. In a container, the group's own folder is the root.
std::vector<Path> groups_of(const HostFolders& host, const std::string& controller) {
  std::vector<Path> folders;
  std::ifstream file(Path(host.proc) / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string inside = line.substr(second + 1);
    if (controllers.empty()) {
      add_up_to_root(host.cgroup, inside, &folders);
    } else if (lists(controllers, controller)) {
      add_up_to_root(Path(host.cgroup) / controllers, inside, &folders);
      add_up_to_root(Path(host.cgroup) / controller, inside, &folders);
    }
  }
  return folders;
}

// What the two versions of control groups call the limit, what is used of it, and what of that the kernel
// gives up when a process asks for memory.
struct MemoryNames {
  const char *limit, *used, *reclaimable;
};
constexpr MemoryNames kMemoryNames[] = {
    {"memory.max", "memory.current", "inactive_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

std::optional<double> quota_of(const Path& folder) {
  std::optional<int64_t> quota, period;
  if (const auto both = words_of(folder / "cpu.max"); both.size() == 2) {
    quota = number_of(both[0]);
    period = number_of(both[1]);
  } else {
    quota = number_in(folder / "cpu.cfs_quota_us");
    period = number_in(folder / "cpu.cfs_period_us");
  }
  if (!quota || !period || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

int64_t available_memory(const HostFolders& folders) {
  const Path meminfo = Path(folders.proc) / "meminfo";
  std::optional<int64_t> kib;
  const std::vector<std::string> words = words_of(meminfo);
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "MemAvailable:") kib = number_of(words[i + 1]);
  if (!kib) {
    throw Error("TensorwrightError",
                "[host] " + meminfo.string() +
                    " must say MemAvailable, and does not; mount /proc, or set kv_cache_memory");
  }
  int64_t room = *kib * 1024;
  for (const Path& folder : groups_of(folders, "memory")) {
    for (const MemoryNames& names : kMemoryNames) {
      const std::optional<int64_t> most = number_in(folder / names.limit);
      if (!most) continue;
      const int64_t taken = number_in(folder / names.used).value_or(0) -
                            number_behind(folder / "memory.stat", names.reclaimable);
      room = std::min(room, std::max(int64_t{0}, *most - taken));
    }
  }
  return room;
}

std::optional<double> processor_quota(const HostFolders& folders) {
  std::optional<double> least;
  for (const Path& folder : groups_of(folders, "cpu"))
    if (const auto quota = quota_of(folder)) least = std::min(*quota, least.value_or(*quota));
  return least;
}

int default_threads(const HostFolders& folders) {
  int threads = Topology::of_machine().cores();
  if (const auto quota = processor_quota(folders); quota && *quota < threads)
    threads = static_cast<int>(std::floor(*quota));
  return std::max(1, threads);
}

}  // namespace tensorwright
