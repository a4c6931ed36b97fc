#include "runtime/core/ranks/mpi_ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/timeline.h"

namespace tensorwright {
namespace {

constexpr int kThreadSerialized = 2;  // MPI_THREAD_SERIALIZED, in both libraries
constexpr int kFailureTag = 30000;
// A rank that waits looks so often before it sleeps.
constexpr int kSpins = 2000;
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kPatientNap = std::chrono::microseconds(500);

// The handles of MPICH's binary interface (MPI_COMM_WORLD, MPI_BYTE, MPI_ANY_SOURCE, MPI_STATUS_IGNORE).
constexpr uintptr_t kMpichWorld = 0x44000000, kMpichByte = 0x4c00010d;
constexpr int kMpichAnySource = -2, kOpenMpiAnySource = -1;

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

// Handles are passed as pointers: a number of 32 bits takes the same register.
struct MpiRanks::Library {
  explicit Library(const std::string& name) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      throw Error("MissingDependencyError",
                  concat("[ranks] MPI's library does not load (", dlerror(),
                         "); install Open MPI or MPICH, or name the ", "library in TENSORWRIGHT_MPI"));
    }
    init = find<int(int*, char***, int, int*)>(library, "MPI_Init_thread");
    initialized = find<int(int*)>(library, "MPI_Initialized");
    finalize = find<int()>(library, "MPI_Finalize");
    comm_rank = find<int(void*, int*)>(library, "MPI_Comm_rank");
    comm_size = find<int(void*, int*)>(library, "MPI_Comm_size");
    isend = find<int(const void*, int, void*, int, int, void*, void*)>(library, "MPI_Isend");
    irecv = find<int(void*, int, void*, int, int, void*, void*)>(library, "MPI_Irecv");
    test = find<int(void*, int*, void*)>(library, "MPI_Test");
    cancel = find<int(void*)>(library, "MPI_Cancel");
    request_free = find<int(void*)>(library, "MPI_Request_free");
    const bool whole = init && initialized && finalize && comm_rank && comm_size && isend && irecv && test &&
                       cancel && request_free;
    if (!whole) throw Error("MissingDependencyError", concat("[ranks] ", name, " is no library of MPI"));
    world = dlsym(library, "ompi_mpi_comm_world");
    byte = dlsym(library, "ompi_mpi_byte");
    const bool open_mpi = world && byte;
    any_source = open_mpi ? kOpenMpiAnySource : kMpichAnySource;
    ignored = open_mpi ? nullptr : reinterpret_cast<void*>(uintptr_t{1});
    if (!open_mpi) {
      world = reinterpret_cast<void*>(kMpichWorld);
      byte = reinterpret_cast<void*>(kMpichByte);
    }
  }

  int (*init)(int*, char***, int, int*);
  int (*initialized)(int*);
  int (*finalize)();
  int (*comm_rank)(void*, int*);
  int (*comm_size)(void*, int*);
  int (*isend)(const void*, int, void*, int, int, void*, void*);
  int (*irecv)(void*, int, void*, int, int, void*, void*);
  int (*test)(void*, int*, void*);
  int (*cancel)(void*);
  int (*request_free)(void*);
  void *world, *byte, *ignored;
  int any_source;
};

MpiRanks::MpiRanks(const std::string& library, double timeout_s)
    : mpi_(std::make_unique<Library>(library)), timeout_(timeout_s) {
  int running = 0, provided = 0;
  mpi_->initialized(&running);
  if (!running) mpi_->init(nullptr, nullptr, kThreadSerialized, &provided);
  if (!running && provided < kThreadSerialized)
    throw Error("EngineError", "[ranks] this library of MPI does not let a thread of its own compute");
  mpi_->comm_rank(mpi_->world, &rank_);
  mpi_->comm_size(mpi_->world, &size_);
  mpi_->irecv(text_.data(), static_cast<int>(text_.size()), mpi_->byte, mpi_->any_source, kFailureTag,
              mpi_->world, &news_);
}

MpiRanks::~MpiRanks() {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    mpi_->cancel(&news_);
    mpi_->request_free(&news_);
    mpi_->finalize();
  }
}

bool MpiRanks::done(Request& request) {
  const std::lock_guard lock(mutex_);
  int flag = 0;
  mpi_->test(&request, &flag, mpi_->ignored);
  return flag != 0;
}

void MpiRanks::require_whole() {
  if (failure().empty() && done(news_)) {
    const std::lock_guard lock(mutex_);
    failure_ = std::string(text_.data(), strnlen(text_.data(), text_.size()));
    if (failure_.empty()) failure_ = "[ranks] a rank failed";
  }
  if (std::string why = failure(); !why.empty()) throw RankError(why);
}

void MpiRanks::exchange(uint32_t tag, std::span<const Outgoing> out, std::span<const Incoming> in,
                        Patience patience) {
  require_whole();
  std::vector<Request> open(out.size() + in.size());
  const auto count = [](size_t bytes) {
    if (bytes > static_cast<size_t>(std::numeric_limits<int>::max()))
      throw RankError("[ranks] a message of more than 2 GiB; lower max_num_tokens");
    return static_cast<int>(bytes);
  };
  {
    const std::lock_guard lock(mutex_);
    const int own = static_cast<int>(tag);
    for (size_t i = 0; i < in.size(); ++i)
      mpi_->irecv(in[i].data, count(in[i].bytes), mpi_->byte, in[i].rank, own, mpi_->world, &open[i]);
    for (size_t i = 0; i < out.size(); ++i) {
      mpi_->isend(out[i].data, count(out[i].bytes), mpi_->byte, out[i].rank, own, mpi_->world,
                  &open[in.size() + i]);
    }
  }
  const std::chrono::duration<double> limit = limit_of(timeout_, patience);
  const auto begin = std::chrono::steady_clock::now();
  int spins = 0;
  std::vector<uint8_t> ended(open.size(), 0);
  while (true) {
    bool moved = false, left = false;
    for (size_t i = 0; i < open.size(); ++i) {
      if (!ended[i] && done(open[i])) ended[i] = moved = true;
      left |= !ended[i];
    }
    if (!left) {
      if (out.empty()) received_at_ = Timeline::now();
      return;
    }
    if (moved || spins++ < kSpins) continue;
    require_whole();
    if (std::chrono::steady_clock::now() - begin > limit) {
      const auto late = static_cast<size_t>(std::ranges::find(ended, 0) - ended.begin());
      const int other = late < in.size() ? in[late].rank : out[late - in.size()].rank;
      const std::string why =
          concat("[ranks] rank ", other, " did not answer rank ", rank_, " in ", limit.count(), " seconds");
      fail(why);
      throw RankError(why);
    }
    std::this_thread::sleep_for(patience == Patience::idle
                                    ? std::chrono::duration_cast<std::chrono::microseconds>(kPatientNap)
                                    : kNap);
  }
}

void MpiRanks::fail(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  try {
    failure_ = why.substr(0, text_.size() - 1);
  } catch (const std::bad_alloc&) {
    return;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    // Nobody waits until it has arrived: the text stays where it is, for it never changes again.
    Request request{};
    mpi_->isend(failure_.c_str(), static_cast<int>(failure_.size() + 1), mpi_->byte, rank, kFailureTag,
                mpi_->world, &request);
  }
}

std::string MpiRanks::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace tensorwright
