/* A libcuda.so.1 whose calls succeed and do nothing, so that what remains is what the host pays for a launch.
   cuda-bindings asks cuGetProcAddress for each function by name; the runtime of target cuda asks for the symbols at the end,
   those of cuBLASLt among them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void* Handle;

enum { kMajor = 75, kMinor = 76, kSharedBytes = 97, kNotFound = 500 };

static Result nothing(void) { return 0; }

static Result version(int* out) {
  *out = 13000;
  return 0;
}

static Result device(int* out) {
  *out = 0;
  return 0;
}

static Result attribute(int* out, int which, int device_number) {
  (void)device_number;
  *out = which == kMajor ? 9 : which == kMinor ? 0 : which == kSharedBytes ? 232448 : 132;
  return 0;
}

static Result handle(Handle* out) {
  *out = (Handle)0x7000;
  return 0;
}

static Result text(int error, const char** out) {
  (void)error;
  *out = "no error";
  return 0;
}

static const struct {
  const char* name;
  Handle function;
} kKnown[] = {
    {"cuInit", (Handle)nothing},
    {"cuDriverGetVersion", (Handle)version},
    {"cuDeviceGet", (Handle)device},
    {"cuCtxGetDevice", (Handle)device},
    {"cuDeviceGetAttribute", (Handle)attribute},
    {"cuDevicePrimaryCtxRetain", (Handle)handle},
    {"cuDevicePrimaryCtxRelease", (Handle)nothing},
    {"cuCtxSetCurrent", (Handle)nothing},
    {"cuCtxGetCurrent", (Handle)handle},
    {"cuModuleLoadData", (Handle)handle},
    {"cuModuleUnload", (Handle)nothing},
    {"cuModuleGetFunction", (Handle)handle},
    {"cuFuncSetAttribute", (Handle)nothing},
    {"cuFuncSetCacheConfig", (Handle)nothing},
    {"cuLaunchKernel", (Handle)nothing},
    {"cuGetErrorName", (Handle)text},
    {"cuGetErrorString", (Handle)text},
};

Result cuGetProcAddress_v2(const char* name, Handle* function, int version_number, uint64_t flags, int* status) {
  (void)version_number;
  (void)flags;
  for (unsigned i = 0; i < sizeof kKnown / sizeof *kKnown; ++i) {
    if (strcmp(kKnown[i].name, name) == 0) {
      *function = kKnown[i].function;
      if (status) *status = 0;
      return 0;
    }
  }
  *function = 0;
  if (status) *status = 1;
  return kNotFound;
}

Result cuGetProcAddress(const char* name, Handle* function, int version_number, uint64_t flags) {
  return strcmp(name, "cuGetProcAddress") == 0
             ? (*function = (Handle)cuGetProcAddress_v2, 0)
             : cuGetProcAddress_v2(name, function, version_number, flags, 0);
}

/* The symbols of target cuda. Memory of the device is addresses alone; that of the host is real. */
#define IDLE(name) Result name(void) { return 0; }
#define MAKES(name) Result name(Handle* out) { return handle(out); }

IDLE(cuInit)
Result cuDeviceGetCount(int* out) { return *out = 1, 0; }
Result cuDeviceGet(int* out, int number) { return *out = number, 0; }
Result cuDeviceGetName(char* name, int size, int number) {
  (void)number;
  strncpy(name, "no GPU at all", (size_t)size);
  return 0;
}
Result cuDeviceGetAttribute(int* out, int which, int number) { return attribute(out, which, number); }
Result cuDeviceTotalMem_v2(size_t* out, int number) { return (void)number, *out = (size_t)1 << 40, 0; }
MAKES(cuDevicePrimaryCtxRetain)
IDLE(cuDevicePrimaryCtxRelease_v2)
IDLE(cuCtxSetCurrent)
Result cuMemGetInfo_v2(size_t* available, size_t* total) { return *available = *total = (size_t)1 << 40, 0; }
Result cuGetErrorName(int error, const char** out) { return text(error, out); }
Result cuGetErrorString(int error, const char** out) { return text(error, out); }
Result cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  static uint64_t next = (uint64_t)1 << 32;
  *out = next;
  next += (bytes + 4095) / 4096 * 4096;
  return 0;
}
IDLE(cuMemFree_v2)
Result cuMemHostAlloc(void** out, size_t bytes, unsigned flags) { return (void)flags, *out = calloc(1, bytes), !*out; }
Result cuMemFreeHost(void* at) { return free(at), 0; }
IDLE(cuMemcpyHtoDAsync_v2)
IDLE(cuMemcpyDtoHAsync_v2)
IDLE(cuMemcpyDtoDAsync_v2)
IDLE(cuMemsetD8Async)
MAKES(cuStreamCreate)
IDLE(cuStreamDestroy_v2)
IDLE(cuStreamSynchronize)
MAKES(cuEventCreate)
IDLE(cuEventDestroy_v2)
IDLE(cuEventRecord)
IDLE(cuEventSynchronize)
IDLE(cuStreamBeginCapture_v2)
Result cuStreamEndCapture(Handle stream, Handle* out) { return (void)stream, handle(out); }
MAKES(cuGraphInstantiateWithFlags)
IDLE(cuGraphLaunch)
IDLE(cuGraphExecDestroy)
IDLE(cuGraphDestroy)
MAKES(cuModuleLoadData)
IDLE(cuModuleUnload)
MAKES(cuModuleGetFunction)
IDLE(cuFuncSetAttribute)
IDLE(cuLaunchKernel)

MAKES(cublasLtCreate)
IDLE(cublasLtDestroy)
MAKES(cublasLtMatmulDescCreate)
IDLE(cublasLtMatmulDescDestroy)
IDLE(cublasLtMatmulDescSetAttribute)
MAKES(cublasLtMatrixLayoutCreate)
IDLE(cublasLtMatrixLayoutDestroy)
MAKES(cublasLtMatmulPreferenceCreate)
IDLE(cublasLtMatmulPreferenceDestroy)
IDLE(cublasLtMatmulPreferenceSetAttribute)
Result cublasLtMatmulAlgoGetHeuristic(Handle a, Handle b, Handle c, Handle d, Handle e, Handle f, Handle g, int wanted,
                                      Handle results, int* found) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)wanted, (void)results;
  return *found = 1, 0;
}
IDLE(cublasLtMatmul)
