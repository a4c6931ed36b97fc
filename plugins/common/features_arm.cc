// Asks the operating system of an aarch64 processor for what the kernels need. NEON is a part of the
// architecture. Source: Linux, Documentation/arch/arm64/elf_hwcaps.rst; Apple, "Determining instruction set
// characteristics".
#include "plugins/common/dispatch.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#elif defined(__linux__)
#include <sys/auxv.h>
#else
#error "no way is known to ask this operating system for the features of an aarch64 processor"
#endif

namespace tensorwright {
namespace {

#if defined(__APPLE__)

bool says(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return says("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return says("hw.optional.arm.FEAT_I8MM"); }
bool has_bf16() { return says("hw.optional.arm.FEAT_BF16"); }

#else

// The bits of the auxiliary vector, which headers older than the processors do not name.
constexpr unsigned long kDotprod = 1ul << 20;                  // of AT_HWCAP: asimddp
constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // of AT_HWCAP2
bool has_dotprod() { return getauxval(AT_HWCAP) & kDotprod; }
bool has_i8mm() { return getauxval(AT_HWCAP2) & kI8mm; }
bool has_bf16() { return getauxval(AT_HWCAP2) & kBf16; }

#endif

}  // namespace

CpuFeatures read_features() {
  CpuFeatures f;
#ifdef TENSORWRIGHT_SCALAR_KERNELS
  return f;  // A test build has no other kernels.
#endif
  f.neon = true;
  f.neon_dotprod = has_dotprod();
  f.neon_i8mm = f.neon_dotprod && has_i8mm();
  f.neon_bf16 = has_bf16();
  return f;
}

}  // namespace tensorwright
