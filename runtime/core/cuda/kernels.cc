#include "runtime/core/cuda/kernels.h"

#include <limits>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

constexpr int kMaxDynamicShared = 8;  // of CUfunction_attribute
constexpr uint32_t kUsualShared = 48 << 10;
constexpr int64_t kMostBlocks[] = {std::numeric_limits<int32_t>::max(), 65535, 65535};

}  // namespace

Kernels::Kernels(const Driver& driver, const CudaPlan& plan)
    : driver_(driver), records_(plan.kernels), loaded_(plan.kernels.size()) {
  try {
    for (size_t i = 0; i < loaded_.size(); ++i) load(records_[i], loaded_[i]);
  } catch (...) {
    unload();
    throw;
  }
}

Kernels::~Kernels() { unload(); }

void Kernels::load(const KernelRecord& record, Loaded& kernel) const {
  const auto check = [&](int result, const char* call) {
    if (result == 0) return;
    throw Error("EngineError", concat("[cuda] ", call, " of kernel ", record.name, " on ",
                                      driver_.facts().name, " failed with ", driver_.describe(result)));
  };
  check(driver_.module_load(&kernel.module, record.code.data()), "cuModuleLoadData");
  check(driver_.module_function(&kernel.function, kernel.module, record.name.c_str()), "cuModuleGetFunction");
  if (record.shared_bytes > kUsualShared) {
    check(driver_.function_set(kernel.function, kMaxDynamicShared, static_cast<int>(record.shared_bytes)),
          "cuFuncSetAttribute");
  }
}

void Kernels::unload() noexcept {
  for (const Loaded& kernel : loaded_) {
    if (kernel.module) driver_.module_unload(kernel.module);
  }
}

void Kernels::start(uint32_t kernel, const int64_t grid[3], const uint64_t* arguments, size_t count,
                    CudaStream* stream) const {
  const KernelRecord& record = records_[kernel];
  for (int axis = 0; axis < 3; ++axis) {
    if (grid[axis] >= 1 && grid[axis] <= kMostBlocks[axis]) continue;
    throw Error("InvalidRequestError",
                concat("[cuda] kernel ", record.name, ": a step of this size needs ", grid[axis],
                       " blocks along one axis, 1 to ", kMostBlocks[axis], " are possible"));
  }
  uint64_t values[kMostParameters] = {};  // those behind `count` are null
  void* pointers[kMostParameters];
  for (size_t i = 0; i < record.parameters.size(); ++i) {
    if (i < count) values[i] = arguments[i];
    const auto number = static_cast<int64_t>(values[i]);
    if (record.parameters[i] == KernelRecord::kInt32 && number != static_cast<int32_t>(number)) {
      throw Error("InvalidRequestError", concat("[cuda] kernel ", record.name, ": the argument ", number,
                                                " of a step of this size does not fit 32 bits"));
    }
    pointers[i] = &values[i];  // the processor is little-endian, so the low bytes come first
  }
  const auto side = [&](int axis) { return static_cast<unsigned>(grid[axis]); };
  driver_.check(driver_.launch(loaded_[kernel].function, side(0), side(1), side(2), 32 * record.num_warps, 1,
                               1, record.shared_bytes, stream, pointers, nullptr),
                "cuLaunchKernel");
}

}  // namespace tensorwright
