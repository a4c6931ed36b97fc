// The weight_only_matmul kernels, best first.
#include "plugins/weight_only_matmul/kernels.h"

extern "C" {
void tw_weight_only_matmul_f32_scalar(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_f32_avx512(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_f32_avx2(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_f32_neon(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_bf16_scalar(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_bf16_avx512(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_bf16_avx2(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_bf16_neon(const tw_weight_only_matmul_args*);
void tw_weight_only_matmul_bf16_avx512bf16(const tw_weight_only_matmul_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_weight_only_matmul_fn>> weight_only_matmul_kernels(int x_dtype) {
  static constexpr KernelEntry<tw_weight_only_matmul_fn> kF32[] = {
      TW_ON_X86({"weight_only_matmul_f32_avx512", Isa::avx512, Extra::none, tw_weight_only_matmul_f32_avx512},
                {"weight_only_matmul_f32_avx2", Isa::avx2, Extra::none, tw_weight_only_matmul_f32_avx2})  //
      TW_ON_ARM({"weight_only_matmul_f32_neon", Isa::neon, Extra::none, tw_weight_only_matmul_f32_neon})  //
      {"weight_only_matmul_f32_scalar", Isa::scalar, Extra::none, tw_weight_only_matmul_f32_scalar},
  };
  static constexpr KernelEntry<tw_weight_only_matmul_fn> kBf16[] = {
      TW_ON_X86(
          {"weight_only_matmul_bf16_avx512bf16", Isa::avx512, Extra::bf16,
           tw_weight_only_matmul_bf16_avx512bf16},
          {"weight_only_matmul_bf16_avx512", Isa::avx512, Extra::none, tw_weight_only_matmul_bf16_avx512},
          {"weight_only_matmul_bf16_avx2", Isa::avx2, Extra::none, tw_weight_only_matmul_bf16_avx2})        //
      TW_ON_ARM({"weight_only_matmul_bf16_neon", Isa::neon, Extra::none, tw_weight_only_matmul_bf16_neon})  //
      {"weight_only_matmul_bf16_scalar", Isa::scalar, Extra::none, tw_weight_only_matmul_bf16_scalar},
  };
  if (x_dtype == TW_BF16) return kBf16;
  return kF32;
}

namespace {

const RegisteredKernels registered_weight_only_matmul(
    /*place=*/25, {{"weight_only_matmul float32", [] { return weight_only_matmul_kernels(TW_F32); }},
                   {"weight_only_matmul bfloat16", [] { return weight_only_matmul_kernels(TW_BF16); }}});

}  // namespace

}  // namespace tensorwright
