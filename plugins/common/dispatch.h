// Which kernel runs: one table per family, best first, reference last; the first entry the processor and
// TENSORWRIGHT_ISA admit is taken, and the refusals are kept for whoever asks.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_

#include <span>
#include <string>
#include <vector>

#include "plugins/elementwise/kernel.h"
#include "plugins/embedding/kernel.h"
#include "plugins/layer_norm/kernel.h"
#include "plugins/logits/kernel.h"
#include "plugins/matmul/kernel.h"
#include "plugins/paged_attention/kernel.h"
#include "plugins/quantized_matmul/kernel.h"
#include "plugins/rms_norm/kernel.h"
#include "plugins/rotary/kernel.h"
#include "plugins/swiglu/kernel.h"

namespace tensorwright {

// Instruction-set levels that TENSORWRIGHT_ISA may name, worst first.
enum class Isa { scalar, avx2, avx512 };

struct CpuFeatures {
  bool avx2 = false, fma = false, avx512 = false, avx512_bf16 = false, avx512_vnni = false, avx_vnni = false;
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
};

// What the processor and the operating system offer, read once by CPUID, less what TENSORWRIGHT_CPU_WITHOUT
// names and what needs that. Throws Error{"IsaError"} if the variable names no feature.
const CpuFeatures& cpu_features();

// `features` less those that `names` lists, separated by commas; throws as above.
CpuFeatures features_without(CpuFeatures features, const std::string& names);

const char* isa_name(Isa isa);
// The best level present, or what TENSORWRIGHT_ISA names; throws Error{"IsaError"} if unknown or unsupported.
Isa selected_isa();

// Instructions a kernel needs beyond its level.
enum class Extra { none, bf16, vnni, avx_vnni };

template <typename Fn>
struct KernelEntry {
  const char* name;  // "matmul_bf16_avx512bf16"
  Isa isa;
  Extra extra;
  Fn fn;
};

// The tables, one per family and activation dtype; a family's tests and benchmarks sweep them too.
std::span<const KernelEntry<tw_matmul_fn>> matmul_kernels(int dtype);  // x and w dtype: TW_F32, TW_BF16
std::span<const KernelEntry<tw_quantized_matmul_fn>> quantized_matmul_kernels(int dtype);  // w: TW_I8, TW_I4
std::span<const KernelEntry<tw_quantize_rows_fn>> quantize_rows_kernels();
std::span<const KernelEntry<tw_quantize_weights_fn>> quantize_weights_kernels();  // of builds
std::span<const KernelEntry<tw_embedding_fn>> embedding_kernels(int dtype);       // table dtype
std::span<const KernelEntry<tw_rms_norm_fn>> rms_norm_kernels();
std::span<const KernelEntry<tw_rotary_table_fn>> rotary_table_kernels();
std::span<const KernelEntry<tw_rotary_kv_write_fn>> rotary_kv_write_kernels();
std::span<const KernelEntry<tw_attention_fn>> attention_kernels(
    int dtype);  // the cache's: TW_F32, TW_BF16, TW_I8
std::span<const KernelEntry<tw_attention_combine_fn>> attention_combine_kernels();
std::span<const KernelEntry<tw_swiglu_fn>> swiglu_kernels();
std::span<const KernelEntry<tw_elementwise_fn>> elementwise_kernels();
std::span<const KernelEntry<tw_layer_norm_fn>> layer_norm_kernels();
std::span<const KernelEntry<tw_logits_fn>> logits_kernels();  // of sampling: a set of loops

// Why each better kernel was refused, and which was taken.
struct DispatchChoice {
  std::string family, taken;
  std::vector<std::string> refused;  // "matmul_bf16_avx512bf16: needs AVX512-BF16"
};

// Empty if an entry may run at level `isa` on a processor of these features, else the reason.
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

// The choice of every family at the selected level, in the order of the tables above.
std::vector<DispatchChoice> explain_dispatch();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_COMMON_DISPATCH_H_
