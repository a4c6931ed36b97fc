// Reads the level that TENSORWRIGHT_ISA asks for, and explains every choice.
#include "plugins/common/dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "runtime/core/base/error.h"

namespace tensorwright {
namespace {

// The levels of the kernels that this build has.
constexpr Isa kLevels[] = {Isa::scalar, TW_ON_X86(Isa::avx2, Isa::avx512) TW_ON_ARM(Isa::neon)};

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
    case Isa::neon:
      return f.neon;
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
    case Isa::neon:
      return "NEON";
  }
  return "";
}

// The levels of this build as a text: "scalar, avx2 or avx512".
std::string level_names() {
  std::string names;
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (i > 0) names += i + 1 < std::size(kLevels) ? ", " : " or ";
    names += isa_name(kLevels[i]);
  }
  return names;
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
  f.neon_dotprod = f.neon_dotprod && f.neon;
  f.neon_i8mm = f.neon_i8mm && f.neon_dotprod;  // one row is computed without products of matrices
  f.neon_bf16 = f.neon_bf16 && f.neon;
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
    case Isa::neon:
      return "neon";
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
  throw Error("IsaError", "TENSORWRIGHT_ISA must be " + level_names() + ", not '" + name +
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
    case Extra::neon_dotprod:
      return f.neon_dotprod ? "" : "NEON's dot products (FEAT_DotProd)";
    case Extra::neon_i8mm:
      return f.neon_i8mm ? "" : "NEON's products of int8 matrices (FEAT_I8MM)";
    case Extra::neon_bf16:
      return f.neon_bf16 ? "" : "NEON's products of bfloat16 (FEAT_BF16)";
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
