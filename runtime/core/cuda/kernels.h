// The kernels of a plan on the device, and their launches.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_KERNELS_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_KERNELS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/cuda/cuda_plan.h"
#include "runtime/core/cuda/driver.h"

namespace tensorwright {

class Kernels {
 public:
  // The plan must live as long. Throws Error{"EngineError"} for code that the driver refuses.
  Kernels(const Driver& driver, const CudaPlan& plan);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Starts a kernel on a stream. arguments: as the record has them; an integer's value is the 64 bits of it.
  // Throws DeviceError; Error{"InvalidRequestError"} for a grid or an integer out of range.
  void start(uint32_t kernel, const int64_t grid[3], const uint64_t* arguments, size_t count,
             CudaStream* stream) const;

 private:
  struct Loaded {
    CudaModule* module = nullptr;
    CudaFunction* function = nullptr;
  };

  void load(const KernelRecord& record, Loaded& kernel) const;
  void unload() noexcept;

  const Driver& driver_;
  const std::vector<KernelRecord>& records_;
  std::vector<Loaded> loaded_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_KERNELS_H_
