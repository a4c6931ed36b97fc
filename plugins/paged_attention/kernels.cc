// The attention kernels, best first. The bf16 kernels that widen give the same bits; the one with dot
// instructions need not.
#include "plugins/common/dispatch.h"
#include "runtime/core/error.h"

namespace tensorwright {

void attention_f32_scalar(const tw_attention_args*);
void attention_f32_avx512(const tw_attention_args*);
void attention_f32_avx2(const tw_attention_args*);
void attention_bf16_scalar(const tw_attention_args*);
void attention_bf16_avx512(const tw_attention_args*);
void attention_bf16_avx2(const tw_attention_args*);
void attention_bf16_avx512bf16(const tw_attention_args*);
void attention_combine_scalar(const tw_attention_combine_args*);
void attention_combine_avx512(const tw_attention_combine_args*);
void attention_combine_avx2(const tw_attention_combine_args*);

std::span<const KernelEntry<tw_attention_fn>> attention_kernels(int dtype) {
  static const KernelEntry<tw_attention_fn> f32[] = {
      {"attention_f32_avx512", Isa::avx512, Extra::none, attention_f32_avx512},
      {"attention_f32_avx2", Isa::avx2, Extra::none, attention_f32_avx2},
      {"attention_f32_scalar", Isa::scalar, Extra::none, attention_f32_scalar},
  };
  static const KernelEntry<tw_attention_fn> bf16[] = {
      {"attention_bf16_avx512bf16", Isa::avx512, Extra::bf16, attention_bf16_avx512bf16},
      {"attention_bf16_avx512", Isa::avx512, Extra::none, attention_bf16_avx512},
      {"attention_bf16_avx2", Isa::avx2, Extra::none, attention_bf16_avx2},
      {"attention_bf16_scalar", Isa::scalar, Extra::none, attention_bf16_scalar},
  };
  if (dtype == TW_F32) return f32;
  if (dtype == TW_BF16) return bf16;
  throw Error("EngineError",
              "attention needs a float32 or bfloat16 cache, not dtype " + std::to_string(dtype));
}

std::span<const KernelEntry<tw_attention_combine_fn>> attention_combine_kernels() {
  static const KernelEntry<tw_attention_combine_fn> table[] = {
      {"attention_combine_avx512", Isa::avx512, Extra::none, attention_combine_avx512},
      {"attention_combine_avx2", Isa::avx2, Extra::none, attention_combine_avx2},
      {"attention_combine_scalar", Isa::scalar, Extra::none, attention_combine_scalar},
  };
  return table;
}

}  // namespace tensorwright
