// The ranks of a parallel engine in Python: rank 0 has them in its options, the others follow.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/python_executor.h"
#include "runtime/bindings/rank_options.h"
#include "runtime/bindings/timed.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/executor/cpu_executor.h"
#include "runtime/core/ranks/mpi_ranks.h"
#include "runtime/core/ranks/parallel_executor.h"
#include "runtime/core/ranks/shared_ranks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

std::unique_ptr<Executor> lead_ranks(std::unique_ptr<Executor> own, const RankOptions& options,
                                     std::shared_ptr<Timeline> timeline) {
  if (!options.ranks) return own;
  return std::make_unique<ParallelExecutor>(options.ranks, std::move(own), options.place(),
                                            options.fingerprint, std::move(timeline));
}

namespace {

RankOptions make_options(std::shared_ptr<Ranks> ranks, int tensor, int stages, uint64_t fingerprint) {
  if (tensor < 1 || stages < 1 || tensor * stages != ranks->size()) {
    throw Error("InvalidOptionError", concat("[ranks] the engine has ", tensor, " ranks in each of ", stages,
                                             " stages, and there are ", ranks->size(), " ranks"));
  }
  return {std::move(ranks), tensor, stages, fingerprint};
}

void follow(const std::string& plan, const std::string& weights, const RankOptions& options, int threads,
            const std::string& load) {
  const nb::gil_scoped_release release;
  CpuExecutorOptions executor{threads, load_mode(load)};
  executor.place = options.place();
  try {
    follow_ranks(make_cpu_executor(plan, weights, executor), options.place(), options.fingerprint);
  } catch (const std::exception& error) {  // Others wait for a rank that could not even begin.
    options.ranks->fail(concat("[ranks] rank ", options.ranks->rank(), " failed: ", error.what()));
    throw;
  }
}

// Two ranks, which are threads here, send each other so many bytes; so often, and once more before.
std::vector<double> exchange_seconds(const std::string& path, size_t bytes, int rounds) {
  constexpr double kTimeout = 10;
  constexpr int kSpins = 2000;
  if (rounds < 1) throw Error("InvalidOptionError", "[ranks] rounds must be positive");
  const nb::gil_scoped_release release;
  SharedSegment::create(path, 2);
  std::vector<std::unique_ptr<SharedRanks>> ranks;
  std::vector<Buffer> sent, received;
  std::vector<std::string> failures(2);
  for (int rank : {0, 1}) {
    ranks.push_back(
        std::make_unique<SharedRanks>(std::make_shared<SharedSegment>(path), rank, kTimeout, kSpins));
    sent.push_back(benchmark_buffer(bytes)), received.push_back(benchmark_buffer(bytes));
  }
  std::vector<double> seconds = timed(2, rounds + 1, [&](int rank, int) {
    const auto me = static_cast<size_t>(rank);
    const Outgoing out[] = {{1 - rank, sent[me].get(), bytes}};
    const Incoming in[] = {{1 - rank, received[me].get(), bytes}};
    if (!failures[me].empty()) return;
    try {
      ranks[me]->exchange(1, out, in);
    } catch (const RankError& error) {  // a thread must not end with it
      failures[me] = error.what();
    }
  });
  for (const std::string& failure : failures)
    if (!failure.empty()) throw RankError(failure);
  seconds.erase(seconds.begin());
  return seconds;
}

// The same with an executor that is written in Python, which ends closed.
void follow_with(nb::object executor, const RankOptions& options) {
  std::unique_ptr<Executor> own = std::make_unique<PythonExecutor>(std::move(executor), 1);
  const nb::gil_scoped_release release;
  follow_ranks(std::move(own), options.place(), options.fingerprint);
}

// The tag of the bytes that rank 0 gives to all, which no command has.
constexpr uint32_t kShared = 32;

// Returns on every rank what rank 0 gives. The others say how many bytes they expect.
nb::bytes share(Ranks& ranks, const nb::bytes& data, size_t size) {
  std::vector<char> bytes(size);
  if (ranks.rank() == 0) {
    if (data.size() != size)
      throw Error("InvalidOptionError",
                  concat("[ranks] rank 0 must share ", size, " bytes, got ", data.size()));
    std::memcpy(bytes.data(), data.c_str(), size);
  }
  {
    const nb::gil_scoped_release release;
    if (ranks.rank() == 0) {
      std::vector<Outgoing> out;
      for (int rank = 1; rank < ranks.size(); ++rank) out.push_back({rank, bytes.data(), size});
      ranks.exchange(kShared, out, {}, Patience::opening);
    } else {
      const Incoming in[] = {{0, bytes.data(), size}};
      ranks.exchange(kShared, {}, in, Patience::opening);
    }
  }
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<Ranks>(m, "Ranks", "The other ranks of a parallel engine, as one of them sees them.")
      .def_prop_ro("rank", &Ranks::rank)
      .def_prop_ro("size", &Ranks::size)
      .def_prop_ro_static(
          "OPENING", [](nb::handle) { return Ranks::kOpening; },
          "how many times as long as in a step a rank waits for others that open their files")
      .def_prop_ro("failure", &Ranks::failure, "why the ranks can go on no more; empty while they can")
      .def(
          "fail", [](Ranks& ranks, const std::string& why) { ranks.fail(why); }, "why"_a,
          "Ends what all ranks do with a RankError of this text.")
      .def("share", &share, "data"_a, "size"_a,
           "Returns the bytes that rank 0 gives, on every rank; the others give b''. All ranks must call it. "
           "Raises RankError.");
  nb::class_<RankOptions>(m, "RankOptions", "The ranks of an engine, and how they share it.")
      .def(nb::init<>())
      .def(
          "__init__",
          [](RankOptions* self, std::shared_ptr<Ranks> ranks, int tensor, int stages, uint64_t fingerprint) {
            new (self) RankOptions(make_options(std::move(ranks), tensor, stages, fingerprint));
          },
          "ranks"_a, "tensor"_a, "stages"_a, "fingerprint"_a,
          "fingerprint: a number of 64 bits that says what engine is open. Raises InvalidOptionError.");
  m.def(
      "create_rank_memory", [](const std::string& path, int ranks) { SharedSegment::create(path, ranks); },
      "path"_a, "ranks"_a,
      "Makes a file of shared memory for the ranks of one machine. Raises InvalidOptionError, "
      "OutOfMemoryError, EngineError.");
  m.def(
      "shared_ranks",
      [](const std::string& path, int rank, double timeout_s, int spins) -> std::shared_ptr<Ranks> {
        auto segment = std::make_shared<SharedSegment>(path);
        if (rank < 0 || rank >= segment->ranks())
          throw Error("InvalidOptionError",
                      concat("[ranks] a rank must be below ", segment->ranks(), ", is ", rank));
        return std::make_shared<SharedRanks>(std::move(segment), rank, timeout_s, spins);
      },
      "path"_a, "rank"_a, "timeout_s"_a, "spins"_a,
      "The ranks that talk through such a file. timeout_s: how long a rank waits for another in a step. "
      "spins: "
      "how often a rank looks before it sleeps.");
  m.def(
      "mpi_ranks",
      [](const std::string& library, double timeout_s) -> std::shared_ptr<Ranks> {
        return std::make_shared<MpiRanks>(library, timeout_s);
      },
      "library"_a, "timeout_s"_a,
      "The ranks that MPI has started. Raises MissingDependencyError, EngineError.");
  m.def("exchange_seconds", &exchange_seconds, "path"_a, "bytes"_a, "rounds"_a,
        "The times of exchanges between two ranks, which are threads, through a new file of shared memory. "
        "Raises InvalidOptionError, OutOfMemoryError, EngineError, RankError.");
  m.def("follow_with", &follow_with, "executor"_a, "options"_a,
        "The same as follow, with an executor that is written in Python. It closes the executor at the end.");
  m.def("follow", &follow, "plan_path"_a, "weights_path"_a, "options"_a, "threads"_a = 0, "load"_a = "map",
        "Does a rank's part of what rank 0 computes, until that ends. Raises RankError, EngineError, "
        "IsaError.");
}

}  // namespace tensorwright
