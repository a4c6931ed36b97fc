// Ranks that MPI has started, on one machine or many. The library is found when it is needed: Open MPI, or
// one with the binary interface of MPICH.
#ifndef TENSORWRIGHT_RUNTIME_CORE_RANKS_MPI_RANKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_RANKS_MPI_RANKS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/core/interface/ranks.h"

namespace tensorwright {

class MpiRanks : public Ranks {
 public:
  // library: the name or path of libmpi. timeout_s: how long an exchange waits for another rank before it
  // fails. Throws Error{"MissingDependencyError"} if the library does not load, {"EngineError"} if it does
  // not start.
  MpiRanks(const std::string& library, double timeout_s);
  ~MpiRanks() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void exchange(uint32_t tag, std::span<const Outgoing> out, std::span<const Incoming> in,
                Patience patience = Patience::step) override;
  void fail(const std::string& why) noexcept override;
  std::string failure() const override;

 private:
  struct Library;
  // A request of MPI: a pointer, or a number of 32 bits.
  union Request {
    void* pointer;
    uint64_t number;
  };

  bool done(Request& request);
  void require_whole();

  const std::unique_ptr<Library> mpi_;
  const std::chrono::duration<double> timeout_;
  int rank_ = 0, size_ = 0;
  Request news_{};                 // of a message that says why another rank failed
  std::array<char, 1024> text_{};  // that message
  mutable std::mutex mutex_;       // of what follows, and of calls of the library
  std::string failure_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_RANKS_MPI_RANKS_H_
