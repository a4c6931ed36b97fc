// Runs an executor that is written in Python, for targets whose runtimes have Python bindings. The Python
// object must have the methods facts, allocate, run, copy_block and close.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_EXECUTOR_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "runtime/core/base/thread_team.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/ops/step_check.h"

namespace tensorwright {

// Every call takes the GIL, on any thread, and releases it before it returns or throws. An exception of
// Python becomes a RankError if it is one, or an Error: of the same class if tensorwright.errors has the
// class, else a TensorwrightError whose message names the class.
class PythonExecutor final : public Executor {
 public:
  // Must be called with the GIL held; asks Python for facts(). threads: the size of the team that draws
  // tokens between steps. Throws Error. Where facts() says that gives_logits is False, run() returns None: of
  // a parallel engine, one rank gives the logits of all.
  PythonExecutor(nanobind::object executor, int threads);
  ~PythonExecutor() override;  // closes the executor

  const ModelFacts& facts() const override { return facts_; }
  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) override;
  LogitRows run(const Step& step) override;
  void copy_block(int32_t group, int32_t from, int32_t to) override;
  // Throws: a model with states is refused when its facts are read.
  void copy_state(int32_t from, int32_t to) override;
  int threads() const override { return team_.threads(); }
  void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) override;

  // Returns the executor's Python object.
  const nanobind::object& object() const { return executor_; }
  // Calls the Python executor's close(); a second call does nothing. No other call may be under way. An error
  // of Python is reported as unraisable.
  void close();
  // Returns whether the caller is inside a call of this executor. The caller is then the engine's thread,
  // which cannot wait for itself.
  bool called_here() const;
  // Returns whether the caller is inside a call of any such executor.
  static bool calls_here();

 private:
  using Logits = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

  template <typename Fn>
  void call(const char* method, Fn&& fn);
  // Checks what Python's run() returned and keeps it in logits_.
  void keep_logits(const nanobind::object& result, int32_t rows);

  nanobind::object executor_;
  ThreadTeam team_;
  ModelFacts facts_;
  std::unique_ptr<StepChecker> checker_;  // null before allocate()
  std::vector<int32_t> blocks_;           // per cache group
  Logits logits_;                         // the logits of the last step; keeps the array alive
  bool gives_logits_ = true;
  bool closed_ = false;  // guarded by the GIL
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_EXECUTOR_H_
