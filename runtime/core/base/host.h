// Finds how much memory and how many processors this process may use, within the limits of its containers.
// runtime/base/host.py finds the same for Python; a test compares the two on the same folders.
#ifndef TENSORWRIGHT_RUNTIME_CORE_HOST_H_
#define TENSORWRIGHT_RUNTIME_CORE_HOST_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tensorwright {

// The folders in which the kernel tells of processes and control groups; others are for tests.
struct HostFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// Returns the bytes that the process may still take: the kernel's estimate, or what its control groups leave
// if that is less. Throws Error{"TensorwrightError"} if the kernel does not say.
int64_t available_memory(const HostFolders& folders = {});
// Returns how many processors' time the control groups of this process leave it at most; none: no limit.
std::optional<double> processor_quota(const HostFolders& folders = {});
// Returns the number of physical cores that this process may use, at most the quota of its control groups.
int default_threads(const HostFolders& folders = {});

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_HOST_H_
