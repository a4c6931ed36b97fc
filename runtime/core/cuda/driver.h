// The functions of NVIDIA's driver that engines of target cuda call, found in libcuda when such an engine is
// opened. Types and numbers are those of its public interface, cuda.h.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_DRIVER_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/core/cuda/library.h"
#include "runtime/core/interface/fatal_error.h"

namespace tensorwright {

// What is thrown when the device or the driver fails while steps run. Such errors stay: no later call of the
// process can use the device's memory.
class DeviceError : public FatalError {
 public:
  explicit DeviceError(const std::string& message) : FatalError("DeviceError", message) {}
};

using DevicePointer = uint64_t;
struct CudaContext;
struct CudaStream;
struct CudaEvent;
struct CudaModule;
struct CudaFunction;
struct CudaGraph;
struct CudaGraphExec;

// What of a device the runtime asks.
struct DeviceFacts {
  std::string name;
  int sm = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  size_t memory = 0;  // bytes
};

// The driver, and a device with its primary context. Every thread that uses the device calls bind() first.
class Driver {
 public:
  // Throws Error{"MissingDependencyError"} without a driver, {"InvalidOptionError"} without such a device,
  // {"EngineError"} if the driver refuses.
  explicit Driver(int device);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const DeviceFacts& facts() const { return facts_; }
  void bind() const { check(ctx_set_current(context_), "cuCtxSetCurrent"); }
  size_t free_memory() const;
  // Throws DeviceError if a call answered with an error.
  void check(int result, const char* call) const {
    if (result != 0) fail(result, call);
  }
  std::string describe(int result) const;

  static constexpr int kOutOfMemory = 2;

  int (*mem_alloc)(DevicePointer*, size_t);
  int (*mem_free)(DevicePointer);
  int (*mem_host_alloc)(void**, size_t, unsigned);
  int (*mem_free_host)(void*);
  int (*copy_to_device_async)(DevicePointer, const void*, size_t, CudaStream*);
  int (*copy_to_host_async)(void*, DevicePointer, size_t, CudaStream*);
  int (*copy_on_device_async)(DevicePointer, DevicePointer, size_t, CudaStream*);
  int (*set_bytes_async)(DevicePointer, unsigned char, size_t, CudaStream*);
  int (*stream_create)(CudaStream**, unsigned);
  int (*stream_destroy)(CudaStream*);
  int (*stream_synchronize)(CudaStream*);
  int (*event_create)(CudaEvent**, unsigned);
  int (*event_destroy)(CudaEvent*);
  int (*event_record)(CudaEvent*, CudaStream*);
  int (*event_synchronize)(CudaEvent*);
  int (*stream_begin_capture)(CudaStream*, int);
  int (*stream_end_capture)(CudaStream*, CudaGraph**);
  int (*graph_instantiate)(CudaGraphExec**, CudaGraph*, unsigned long long);
  int (*graph_launch)(CudaGraphExec*, CudaStream*);
  int (*graph_exec_destroy)(CudaGraphExec*);
  int (*graph_destroy)(CudaGraph*);
  int (*module_load)(CudaModule**, const void*);
  int (*module_unload)(CudaModule*);
  int (*module_function)(CudaFunction**, CudaModule*, const char*);
  int (*function_set)(CudaFunction*, int, int);
  int (*launch)(CudaFunction*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CudaStream*, void**, void**);

 private:
  [[noreturn]] void fail(int result, const char* call) const;
  void check_open(int result, const char* call) const;

  const Library library_;
  int (*init_)(unsigned);
  int (*device_count_)(int*);
  int (*device_get_)(int*, int);
  int (*device_name_)(char*, int, int);
  int (*device_attribute_)(int*, int, int);
  int (*device_memory_)(size_t*, int);
  int (*primary_retain_)(CudaContext**, int);
  int (*primary_release_)(int);
  int (*mem_info_)(size_t*, size_t*);
  int (*error_name_)(int, const char**);
  int (*error_text_)(int, const char**);
  int (*ctx_set_current)(CudaContext*);

  int device_ = 0;
  CudaContext* context_ = nullptr;
  DeviceFacts facts_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_DRIVER_H_
