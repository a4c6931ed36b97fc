// Chooses the kernel that runs. Each family of kernels has a table, which lists the best kernel first and the
// scalar reference last. The dispatch takes the first entry that the processor and TENSORWRIGHT_ISA allow,
// and it keeps the reasons why it refused better entries. A plugin declares its tables in
// plugins/<op>/kernels.h and registers their families in plugins/<op>/kernels.cc; this file knows no
// operation.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace tensorwright {

// A build has the kernels of one kind of processor. In a table of kernels the entries of each kind stand in
// one of these macros, which leave out those that the build lacks, and add the comma.
#if defined(__x86_64__)
#define TW_ON_X86(...) __VA_ARGS__,
#define TW_ON_ARM(...)
#elif defined(__aarch64__)
#define TW_ON_X86(...)
#define TW_ON_ARM(...) __VA_ARGS__,
#else
#error "tensorwright has kernels for x86-64 and aarch64 only"
#endif

// Instruction-set levels that TENSORWRIGHT_ISA may name, worst first of each kind of processor: those of
// x86-64 are scalar, avx2 and avx512, those of aarch64 scalar and neon.
enum class Isa { scalar, avx2, avx512, neon };

// A level that no kernel is above: with it, only the processor refuses kernels.
inline constexpr Isa kEveryIsa = Isa::neon;

struct CpuFeatures {
  bool avx2 = false, fma = false, avx512 = false, avx512_bf16 = false, avx512_vnni = false, avx_vnni = false;
  bool amx_int8 = false, amx_bf16 = false;
  bool neon = false, neon_dotprod = false, neon_i8mm = false, neon_bf16 = false;
};
struct CpuFeatureName {
  const char* name;
  bool CpuFeatures::* field;
};
inline constexpr CpuFeatureName kCpuFeatureNames[] = {
    {"avx2", &CpuFeatures::avx2},
    {"fma", &CpuFeatures::fma},
    {"avx512", &CpuFeatures::avx512},
    {"avx512_bf16", &CpuFeatures::avx512_bf16},
    {"avx512_vnni", &CpuFeatures::avx512_vnni},
    {"avx_vnni", &CpuFeatures::avx_vnni},
    {"amx_int8", &CpuFeatures::amx_int8},
    {"amx_bf16", &CpuFeatures::amx_bf16},
    {"neon", &CpuFeatures::neon},
    {"neon_dotprod", &CpuFeatures::neon_dotprod},
    {"neon_i8mm", &CpuFeatures::neon_i8mm},
    {"neon_bf16", &CpuFeatures::neon_bf16},
};

// Asks the processor and the operating system for their features. features_x86.cc and features_arm.cc define
// it; CMake takes the one of the processor that is compiled for.
CpuFeatures read_features();

// The features that the processor and the operating system offer, read once per process. The features that
// TENSORWRIGHT_CPU_WITHOUT names are left out, and so are those that need them. Throws Error{"IsaError"} if
// the variable holds a name that is no feature.
const CpuFeatures& cpu_features();

// Returns `features` without those that `names` lists, separated by commas. Throws Error{"IsaError"} as
// cpu_features() does.
CpuFeatures features_without(CpuFeatures features, const std::string& names);

const char* isa_name(Isa isa);
// Returns the level that TENSORWRIGHT_ISA names, or the best that the processor has if the variable is empty.
// Throws Error{"IsaError"} if the level is unknown or the processor lacks it. The variable is read on every
// call.
Isa selected_isa();

// Instructions that a kernel needs beyond its level.
enum class Extra { none, bf16, vnni, avx_vnni, amx_int8, amx_bf16, neon_dotprod, neon_i8mm, neon_bf16 };

// Returns whether kernels with such instructions may round sums in an order of their own: those that multiply
// bfloat16 by instructions for it. All other kernels give the bits of the scalar ones.
constexpr bool rounds_otherwise(Extra extra) {
  return extra == Extra::bf16 || extra == Extra::amx_bf16 || extra == Extra::neon_bf16;
}

template <typename Fn>
struct KernelEntry {
  const char* name;  // "matmul_bf16_avx512bf16"
  Isa isa;
  Extra extra;
  Fn fn;
};

// The kernel that was taken for a family, and why each better kernel was refused.
struct DispatchChoice {
  std::string family, taken;
  std::vector<std::string> refused;  // "matmul_bf16_avx512bf16: needs AVX512-BF16"
};

// Returns why an entry may not run at level `isa` on a processor with these features; empty if it may.
std::string refusal(Isa entry_isa, Extra extra, Isa isa, const CpuFeatures& features = cpu_features());

template <typename Fn>
Fn choose(const char* family, std::span<const KernelEntry<Fn>> table, Isa isa, DispatchChoice* why = nullptr,
          const CpuFeatures& features = cpu_features()) {
  DispatchChoice local;
  DispatchChoice& choice = why ? *why : local;
  choice.family = family;
  for (const auto& entry : table) {
    std::string reason = refusal(entry.isa, entry.extra, isa, features);
    if (reason.empty()) {
      choice.taken = entry.name;
      return entry.fn;
    }
    choice.refused.push_back(std::string(entry.name) + ": " + reason);
  }
  return nullptr;  // unreachable: every table ends with a scalar reference
}

// A family of kernels as explain_dispatch() reports it.
struct KernelFamily {
  // `table` is a function that returns the family's table, a std::span<const KernelEntry<Fn>>.
  template <typename Table>
  KernelFamily(const char* family_name, Table table)
      : name(family_name), choose_at([family_name, table](Isa isa) {
          DispatchChoice choice;
          choose(family_name, table(), isa, &choice);
          return choice;
        }) {}

  const char* name;  // "matmul float32"
  std::function<DispatchChoice(Isa isa)> choose_at;
};

// Adds the families of a plugin to those that explain_dispatch() reports. A plugin's kernels.cc defines one
// object of it at namespace scope. Plugins are reported in ascending order of `place`, families in the order
// given.
class RegisteredKernels {
 public:
  RegisteredKernels(int place, std::initializer_list<KernelFamily> families);
};

// Returns the choice of every registered family at the selected level. Throws Error{"IsaError"} as
// selected_isa() does.
std::vector<DispatchChoice> explain_dispatch();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_
