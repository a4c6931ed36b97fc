// Captures a step of target cuda as a CUDA graph, which starts all of its kernels at once.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_GRAPH_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_GRAPH_H_

#include "runtime/core/cuda/device_memory.h"
#include "runtime/core/cuda/driver.h"

namespace tensorwright {

// A captured step.
class StepGraph {
 public:
  // Captures what `start` starts on the stream.
  template <typename Start>
  StepGraph(const Driver& driver, const Stream& stream, Start start) : driver_(driver) {
    constexpr int kThreadLocal = 1;
    driver.check(driver.stream_begin_capture(stream.get(), kThreadLocal), "cuStreamBeginCapture");
    CudaGraph* graph = nullptr;
    try {
      start();
    } catch (...) {
      driver.stream_end_capture(stream.get(), &graph);
      if (graph) driver.graph_destroy(graph);
      throw;
    }
    driver.check(driver.stream_end_capture(stream.get(), &graph), "cuStreamEndCapture");
    const int result = driver.graph_instantiate(&graph_, graph, 0);
    driver.graph_destroy(graph);
    driver.check(result, "cuGraphInstantiate");
  }
  ~StepGraph() {
    if (graph_) driver_.graph_exec_destroy(graph_);
  }
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  void launch(const Stream& stream) const {
    driver_.check(driver_.graph_launch(graph_, stream.get()), "cuGraphLaunch");
  }

 private:
  const Driver& driver_;
  CudaGraphExec* graph_ = nullptr;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_GRAPH_H_
