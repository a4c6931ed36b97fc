// Holds the bytes of a file, read-only: mapped from the page cache, or copied into memory of the process.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MAPPED_FILE_H_
#define TENSORWRIGHT_RUNTIME_CORE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/base/arena.h"
#include "runtime/core/base/thread_team.h"

namespace tensorwright {

enum class LoadMode {
  map,   // shares the page cache with other processes; the file must not be truncated while in use
  copy,  // huge pages, placed by the threads that read them; survives whatever happens to the file
};

// Throws Error{"InvalidOptionError"} for another name than "map" and "copy".
LoadMode load_mode(const std::string& name);

class MappedFile {
 public:
  // The bytes of a huge page, which lies on one NUMA node.
  static constexpr size_t kPage = size_t{2} << 20;

  // page_nodes: with `copy`, the node whose threads read each kPage bytes of the file, and so hold them;
  // empty: any. Throws Error{"EngineError"} that names the file, also if its size is not `expected_bytes`.
  MappedFile(const std::string& path, uint64_t expected_bytes, LoadMode mode, ThreadTeam& team,
             std::span<const int> page_nodes = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void map(int file, const std::string& path);
  void copy(int file, const std::string& path, ThreadTeam& team, std::span<const int> page_nodes);

  const char* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapping_ = nullptr;
  Arena memory_;
};

// Returns the bytes of a small file. Throws Error{"EngineError"} that names the file, also if it has more
// than `limit` bytes.
std::vector<std::byte> read_file(const std::string& path, size_t limit);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MAPPED_FILE_H_
