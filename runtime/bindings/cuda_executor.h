// CudaExecutor in Python: what opens an engine of target cuda, and gives its executor to the engine.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_CUDA_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_CUDA_EXECUTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/bindings/bindings.h"
#include "runtime/core/cuda/cuda_executor.h"

namespace tensorwright {

class PyCudaExecutor {
 public:
  PyCudaExecutor(const std::string& plan, const std::string& weights, int device,
                 const std::vector<std::string>& cublaslt, bool graphs, int threads, bool draws, bool ahead);

  // Gives the executor away, once. Throws Error{"EngineStoppedError"} if it is gone or closed.
  std::unique_ptr<CudaExecutor> take();
  // The executor. Throws Error{"EngineStoppedError"} if it is gone or closed.
  CudaExecutor& get() const;
  // Frees the device's memory, if nobody took the executor.
  void close() { executor_.reset(); }

 private:
  std::unique_ptr<CudaExecutor> executor_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_CUDA_EXECUTOR_H_
