#include "runtime/core/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/page.h"

namespace tensorwright {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& fault) {
  throw Error("EngineError", concat(path, ": ", fault));
}

// An open file that closes itself.
class File {
 public:
  explicit File(const std::string& path)
      : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail(path, concat("cannot be opened (", std::strerror(errno), ")"));
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }

  uint64_t bytes() const {
    struct stat status;
    if (fstat(descriptor_, &status) != 0) fail(path_, concat("cannot be read (", std::strerror(errno), ")"));
    if (!S_ISREG(status.st_mode)) fail(path_, "must be a regular file");
    return static_cast<uint64_t>(status.st_size);
  }

 private:
  const std::string& path_;
  const int descriptor_;
};

void read_exactly(int file, const std::string& path, char* to, size_t bytes, size_t offset) {
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, concat("cannot be read at offset ", offset, " (", std::strerror(errno), ")"));
    if (got == 0) fail(path, concat("ends at offset ", offset, ", ", bytes, " bytes too early"));
    to += got;
    offset += static_cast<size_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace

LoadMode load_mode(const std::string& name) {
  if (name == "map") return LoadMode::map;
  if (name == "copy") return LoadMode::copy;
  throw Error("InvalidOptionError", concat("load must be 'map' or 'copy', is '", name, "'"));
}

MappedFile::MappedFile(const std::string& path, uint64_t expected_bytes, LoadMode mode, ThreadTeam& team,
                       std::span<const int> page_nodes) {
  const File file(path);
  const uint64_t bytes = file.bytes();
  if (bytes != expected_bytes) {
    fail(path, concat("must have ", expected_bytes, " bytes as plan.bin says, has ", bytes,
                      "; rebuild the engine with build-engine"));
  }
  bytes_ = static_cast<size_t>(bytes);
  if (bytes_ == 0) return;
  switch (mode) {
    case LoadMode::map:
      map(file.descriptor(), path);
      break;
    case LoadMode::copy:
      copy(file.descriptor(), path, team, page_nodes);
      break;
  }
}

MappedFile::~MappedFile() {
  if (mapping_) munmap(mapping_, bytes_);
}

void MappedFile::map(int file, const std::string& path) {
  void* mapping = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
  if (mapping == MAP_FAILED) fail(path, concat("cannot be mapped (", std::strerror(errno), ")"));
  mapping_ = mapping;
  data_ = static_cast<const char*>(mapping);
  // These are hints. Where the kernel refuses them, the first step takes the page faults instead.
#ifdef MADV_HUGEPAGE
  madvise(mapping_, bytes_, MADV_HUGEPAGE);
#endif
  madvise(mapping_, bytes_, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  // Fill the page tables now, unless the file would push everything else out of memory.
  const auto memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
  if (bytes_ < memory / 2) madvise(mapping_, bytes_, MADV_POPULATE_READ);
#endif
}

// A page lies on the node of the thread that writes to it first. So each thread reads pages of its own node,
// in turns with the other threads there.
void MappedFile::copy(int file, const std::string& path, ThreadTeam& team, std::span<const int> page_nodes) {
  memory_ = Arena(bytes_, "the weights");
  const size_t pages = (bytes_ + kPage - 1) / kPage;
  const auto read = [&](size_t page) {
    const size_t begin = page * kPage;
    read_exactly(file, path, memory_.data() + begin, std::min(kPage, bytes_ - begin), begin);
  };
  if (page_nodes.empty()) {
    team.run(static_cast<int>(pages), [&](int page, int) { read(static_cast<size_t>(page)); });
  } else {
    std::vector<std::vector<size_t>> shares(static_cast<size_t>(team.threads()));
    std::vector<std::vector<size_t>> threads(static_cast<size_t>(team.placement().nodes));
    for (size_t thread = 0; thread < shares.size(); ++thread)
      threads[static_cast<size_t>(team.placement().node(static_cast<int>(thread)))].push_back(thread);
    for (size_t page = 0; page < pages; ++page) {
      std::vector<size_t>& here = threads[static_cast<size_t>(page_nodes[page])];
      shares[here[page % here.size()]].push_back(page);
    }
    team.run_on_each([&](int thread) {
      for (size_t page : shares[static_cast<size_t>(thread)]) read(page);
    });
  }
  memory_.make_read_only();
  data_ = memory_.data();
}

std::vector<std::byte> read_file(const std::string& path, size_t limit) {
  const File file(path);
  const uint64_t bytes = file.bytes();
  if (bytes > limit) fail(path, concat("must have at most ", limit, " bytes, has ", bytes));
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  read_exactly(file.descriptor(), path, reinterpret_cast<char*>(content.data()), content.size(), 0);
  return content;
}

}  // namespace tensorwright
