// Reads the processor's features and the level that TENSORWRIGHT_ISA asks for, and explains every choice.
#include "plugins/common/dispatch.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>

#include "runtime/core/base/error.h"

namespace tensorwright {
namespace {

constexpr Isa kLevels[] = {Isa::scalar, Isa::avx2, Isa::avx512};

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
  constexpr uint64_t kTileStates = 0x60000;  // the configuration and the data
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return (states & kTileStates) == kTileStates && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

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

CpuFeatures read_allowed_features() {
  const char* without = std::getenv("TENSORWRIGHT_CPU_WITHOUT");
  return features_without(read_features(), without ? without : "");
}

bool has(Isa isa, const CpuFeatures& f = cpu_features()) {
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return f.avx2 && f.fma;
    case Isa::avx512:
      return f.avx512;
  }
  return false;
}

Isa best_isa() {
  Isa best = Isa::scalar;
  for (Isa isa : kLevels) {
    if (has(isa)) best = isa;
  }
  return best;
}

const char* needs(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "nothing";
    case Isa::avx2:
      return "AVX2 and FMA";
    case Isa::avx512:
      return "AVX-512 (F, BW, VL, DQ)";
  }
  return "";
}

// The families by their plugin's place. Families of one place stay in the order in which they were added.
std::multimap<int, KernelFamily>& registered_families() {
  static std::multimap<int, KernelFamily> families;  // made on first use: other files' objects fill it
  return families;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_allowed_features();
  return features;
}

CpuFeatures features_without(CpuFeatures f, const std::string& names) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const auto* found = std::ranges::find(kCpuFeatureNames, name, &CpuFeatureName::name);
    if (found == std::end(kCpuFeatureNames)) {
      std::string known;
      for (const CpuFeatureName& feature : kCpuFeatureNames)
        known += std::string(known.empty() ? "" : ", ") + feature.name;
      throw Error("IsaError", "TENSORWRIGHT_CPU_WITHOUT must list features, separated by commas, of " +
                                  known + ", not '" + name +
                                  "'. Unset it to use all that the processor has.");
    }
    f.*(found->field) = false;
    begin = end + 1;
  }
  f.avx512 = f.avx512 && f.avx2 && f.fma;
  f.avx512_bf16 = f.avx512_bf16 && f.avx512;
  f.avx512_vnni = f.avx512_vnni && f.avx512;
  f.avx_vnni = f.avx_vnni && f.avx2;
  f.amx_int8 = f.amx_int8 && f.avx512_vnni;  // few rows are computed without tiles
  f.amx_bf16 = f.amx_bf16 && f.avx512;
  return f;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "";
}

Isa selected_isa() {
  const char* text = std::getenv("TENSORWRIGHT_ISA");
  if (!text || !*text) return best_isa();
  const std::string name = text;
  for (Isa isa : kLevels) {
    if (name != isa_name(isa)) continue;
    if (has(isa)) return isa;
    throw Error("IsaError", "TENSORWRIGHT_ISA=" + name +
                                " must name an instruction set this processor has; it lacks " + needs(isa) +
                                ". Unset it, or use " + isa_name(best_isa()) + " or below.");
  }
  throw Error("IsaError", "TENSORWRIGHT_ISA must be scalar, avx2 or avx512, not '" + name +
                              "'. Unset it to take the best.");
}

// Returns the name of the instructions if the processor lacks them, else an empty text.
static const char* lacks(Extra extra, const CpuFeatures& f) {
  switch (extra) {
    case Extra::none:
      return "";
    case Extra::bf16:
      return f.avx512_bf16 ? "" : "AVX512-BF16";
    case Extra::vnni:
      return f.avx512_vnni ? "" : "AVX512-VNNI";
    case Extra::avx_vnni:
      return f.avx_vnni ? "" : "AVX-VNNI";
    case Extra::amx_int8:
      return f.amx_int8 ? "" : "AMX-INT8";
    case Extra::amx_bf16:
      return f.amx_bf16 ? "" : "AMX-BF16";
  }
  return "";
}

std::string refusal(Isa entry_isa, Extra extra, Isa isa, const CpuFeatures& features) {
  if (!has(entry_isa, features))
    return std::string("needs ") + needs(entry_isa) + ", which this processor lacks";
  if (entry_isa > isa)
    return std::string("needs ") + needs(entry_isa) + ", above the selected level " + isa_name(isa);
  if (*lacks(extra, features))
    return std::string("needs ") + lacks(extra, features) + ", which this processor lacks";
  return "";
}

RegisteredKernels::RegisteredKernels(int place, std::initializer_list<KernelFamily> families) {
  for (const KernelFamily& family : families) registered_families().emplace(place, family);
}

std::vector<DispatchChoice> explain_dispatch() {
  const Isa isa = selected_isa();
  std::vector<DispatchChoice> choices;
  for (const auto& [place, family] : registered_families()) choices.push_back(family.choose_at(isa));
  return choices;
}

}  // namespace tensorwright
