/* A libcuda.so.1 whose calls succeed and do nothing, so that what remains is what the host pays for a launch.
   cuda-bindings asks cuGetProcAddress for each function by name. */
#include <stdint.h>
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
