// What a step of target cuda has for itself while it is underway, so that another one can be started behind
// it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_BUFFERS_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/cuda/device_memory.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

struct StepBuffers {
  StepBuffers(const Driver& driver, size_t metadata_bytes, size_t row_bytes, size_t rows)
      : metadata(driver, metadata_bytes, "metadata of steps"),
        logits(driver, row_bytes * rows, "logits"),
        tokens(driver, sizeof(int32_t) * rows, "tokens"),
        done(driver) {}

  PinnedMemory metadata;  // as step_metadata.h packs it
  PinnedMemory logits;    // [rows, row_bytes]: of the rows that the host asked for
  PinnedMemory tokens;    // [rows] int32, if tokens are drawn
  StreamEvent done;       // behind the copies of logits and tokens
  int32_t rows = 0;
  std::vector<RowDraw> draws;  // of the step

  const int32_t* drawn() const { return reinterpret_cast<const int32_t*>(tokens.data()); }
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_BUFFERS_H_
