#include "runtime/core/cuda/driver.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Names another driver library, for tests with a stand-in.
constexpr char kLibrary[] = "TENSORWRIGHT_LIBCUDA";
// Numbers of CUdevice_attribute.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;

std::string named_library() {
  const char* named = std::getenv(kLibrary);
  return named ? named : "libcuda.so.1";
}

}  // namespace

Driver::Driver(int device)
    : library_({named_library()},
               "engines of target cuda need NVIDIA's driver, and libcuda.so.1 cannot be loaded; install the "
               "driver, or build the model with --target cpu") {
  library_.find("cuInit", init_);
  library_.find("cuDeviceGetCount", device_count_);
  library_.find("cuDeviceGet", device_get_);
  library_.find("cuDeviceGetName", device_name_);
  library_.find("cuDeviceGetAttribute", device_attribute_);
  library_.find("cuDeviceTotalMem_v2", device_memory_);
  library_.find("cuDevicePrimaryCtxRetain", primary_retain_);
  library_.find("cuDevicePrimaryCtxRelease_v2", primary_release_);
  library_.find("cuCtxSetCurrent", ctx_set_current);
  library_.find("cuMemGetInfo_v2", mem_info_);
  library_.find("cuGetErrorName", error_name_);
  library_.find("cuGetErrorString", error_text_);
  library_.find("cuMemAlloc_v2", mem_alloc);
  library_.find("cuMemFree_v2", mem_free);
  library_.find("cuMemHostAlloc", mem_host_alloc);
  library_.find("cuMemFreeHost", mem_free_host);
  library_.find("cuMemcpyHtoDAsync_v2", copy_to_device_async);
  library_.find("cuMemcpyDtoHAsync_v2", copy_to_host_async);
  library_.find("cuMemcpyDtoDAsync_v2", copy_on_device_async);
  library_.find("cuMemsetD8Async", set_bytes_async);
  library_.find("cuStreamCreate", stream_create);
  library_.find("cuStreamDestroy_v2", stream_destroy);
  library_.find("cuStreamSynchronize", stream_synchronize);
  library_.find("cuEventCreate", event_create);
  library_.find("cuEventDestroy_v2", event_destroy);
  library_.find("cuEventRecord", event_record);
  library_.find("cuEventSynchronize", event_synchronize);
  library_.find("cuStreamBeginCapture_v2", stream_begin_capture);
  library_.find("cuStreamEndCapture", stream_end_capture);
  library_.find("cuGraphInstantiateWithFlags", graph_instantiate);
  library_.find("cuGraphLaunch", graph_launch);
  library_.find("cuGraphExecDestroy", graph_exec_destroy);
  library_.find("cuGraphDestroy", graph_destroy);
  library_.find("cuModuleLoadData", module_load);
  library_.find("cuModuleUnload", module_unload);
  library_.find("cuModuleGetFunction", module_function);
  library_.find("cuFuncSetAttribute", function_set);
  library_.find("cuLaunchKernel", launch);

  check_open(init_(0), "cuInit");
  int count = 0;
  check_open(device_count_(&count), "cuDeviceGetCount");
  if (device < 0 || device >= count) {
    throw Error("InvalidOptionError",
                concat("devices: this machine has ", count, " GPUs, numbered from 0, and no GPU ", device));
  }
  check_open(device_get_(&device_, device), "cuDeviceGet");
  char name[256] = {};
  check_open(device_name_(name, sizeof name - 1, device_), "cuDeviceGetName");
  int major = 0, minor = 0;
  check_open(device_attribute_(&major, kMajor, device_), "cuDeviceGetAttribute");
  check_open(device_attribute_(&minor, kMinor, device_), "cuDeviceGetAttribute");
  check_open(device_attribute_(&facts_.multiprocessors, kMultiprocessors, device_), "cuDeviceGetAttribute");
  check_open(device_memory_(&facts_.memory, device_), "cuDeviceTotalMem");
  facts_.name = name;
  facts_.sm = 10 * major + minor;
  check_open(primary_retain_(&context_, device_), "cuDevicePrimaryCtxRetain");
}

Driver::~Driver() {
  if (context_) primary_release_(device_);
}

size_t Driver::free_memory() const {
  size_t free = 0, total = 0;
  check(mem_info_(&free, &total), "cuMemGetInfo");
  return free;
}

std::string Driver::describe(int result) const {
  const char *name = nullptr, *text = nullptr;
  error_name_(result, &name);
  error_text_(result, &text);
  return concat(name ? name : "an unknown error", " (", result, ")", text ? ": " : "", text ? text : "");
}

void Driver::fail(int result, const char* call) const {
  throw DeviceError(concat("[cuda] ", call, " on ", facts_.name, " failed with ", describe(result)));
}

void Driver::check_open(int result, const char* call) const {
  if (result != 0) throw Error("EngineError", concat("[cuda] ", call, " failed with ", describe(result)));
}

}  // namespace tensorwright
