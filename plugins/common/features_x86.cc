// Asks an x86-64 processor, by CPUID, and its operating system for what the kernels need.
#include <cpuid.h>

#include <cstdint>

#include "plugins/common/dispatch.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tensorwright {
namespace {

// The register states that the operating system saves: XCR0, or 0 without XSAVE.
uint64_t saved_states(uint32_t leaf1_ecx) {
  if (!(leaf1_ecx & bit_OSXSAVE)) return 0;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Asks Linux for tiles, whose state is large: it gives them to processes that ask
// (Documentation/arch/x86/xstate.rst). Threads that start later have them too.
bool may_use_tiles(uint64_t states) {
#if defined(__linux__)
  constexpr uint64_t kTileStates = 0x60000;  // the configuration and the data
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return (states & kTileStates) == kTileStates && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  (void)states;
  return false;  // how other systems give them is not known here
#endif
}

}  // namespace

CpuFeatures read_features() {
  CpuFeatures f;
#ifdef TENSORWRIGHT_SCALAR_KERNELS
  return f;  // A test build has no other kernels.
#endif
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const uint64_t states = saved_states(c);
  const bool ymm = (states & 0x6) == 0x6, zmm = (states & 0xe6) == 0xe6;
  f.fma = ymm && (c & bit_FMA);
  const bool f16c = c & bit_F16C;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const uint32_t levels = a;
  constexpr uint32_t kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  f.avx2 = ymm && (b & bit_AVX2) && f16c;
  f.avx512 = zmm && f.avx2 && f.fma && (b & kAvx512) == kAvx512;
  f.avx512_vnni = f.avx512 && (c & bit_AVX512VNNI);
  const bool tiles = f.avx512 && (d & bit_AMX_TILE) && may_use_tiles(states);
  f.amx_int8 = tiles && f.avx512_vnni && (d & bit_AMX_INT8);
  f.amx_bf16 = tiles && (d & bit_AMX_BF16);
  if (levels >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx512_bf16 = f.avx512 && (a & bit_AVX512BF16);
    f.avx_vnni = f.avx2 && (a & bit_AVXVNNI);
  }
#ifdef TENSORWRIGHT_AVX_VNNI_BY_AVX512
  // A test build: its AVX-VNNI kernels use AVX-512's encoding of the same instruction.
  f.avx_vnni = f.avx512_vnni;
#endif
  return f;
}

}  // namespace tensorwright
