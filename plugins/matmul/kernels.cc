// The matmul kernels, best first.
#include "plugins/matmul/kernels.h"

extern "C" {
void tw_matmul_f32_scalar(const tw_matmul_args*);
void tw_matmul_f32_avx512(const tw_matmul_args*);
void tw_matmul_f32_avx2(const tw_matmul_args*);
void tw_matmul_f32_neon(const tw_matmul_args*);
void tw_matmul_f32_by_bf16_scalar(const tw_matmul_args*);
void tw_matmul_f32_by_bf16_avx2(const tw_matmul_args*);
void tw_matmul_f32_by_bf16_neon(const tw_matmul_args*);
void tw_matmul_bf16_scalar(const tw_matmul_args*);
void tw_matmul_bf16_avx512(const tw_matmul_args*);
void tw_matmul_bf16_avx2(const tw_matmul_args*);
void tw_matmul_bf16_neonbf16(const tw_matmul_args*);
void tw_matmul_bf16_neon(const tw_matmul_args*);
void tw_matmul_bf16_avx512bf16(const tw_matmul_args*);
void tw_matmul_bf16_amx(const tw_matmul_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_matmul_fn>> matmul_kernels(int dtype) {
  static constexpr KernelEntry<tw_matmul_fn> kF32[] = {
      TW_ON_X86({"matmul_f32_avx512", Isa::avx512, Extra::none, tw_matmul_f32_avx512},
                {"matmul_f32_avx2", Isa::avx2, Extra::none, tw_matmul_f32_avx2})  //
      TW_ON_ARM({"matmul_f32_neon", Isa::neon, Extra::none, tw_matmul_f32_neon})  //
      {"matmul_f32_scalar", Isa::scalar, Extra::none, tw_matmul_f32_scalar},
  };
  static constexpr KernelEntry<tw_matmul_fn> kBf16[] = {
      TW_ON_X86({"matmul_bf16_amx", Isa::avx512, Extra::amx_bf16, tw_matmul_bf16_amx},
                {"matmul_bf16_avx512bf16", Isa::avx512, Extra::bf16, tw_matmul_bf16_avx512bf16},
                {"matmul_bf16_avx512", Isa::avx512, Extra::none, tw_matmul_bf16_avx512},
                {"matmul_bf16_avx2", Isa::avx2, Extra::none, tw_matmul_bf16_avx2})  //
      TW_ON_ARM({"matmul_bf16_neonbf16", Isa::neon, Extra::neon_bf16, tw_matmul_bf16_neonbf16},
                {"matmul_bf16_neon", Isa::neon, Extra::none, tw_matmul_bf16_neon})  //
      {"matmul_bf16_scalar", Isa::scalar, Extra::none, tw_matmul_bf16_scalar},
  };
  if (dtype == TW_BF16) return kBf16;
  return kF32;
}

std::span<const KernelEntry<tw_matmul_fn>> matmul_by_bf16_kernels() {
  static constexpr KernelEntry<tw_matmul_fn> kTable[] = {
      TW_ON_X86({"matmul_f32_by_bf16_avx2", Isa::avx2, Extra::none, tw_matmul_f32_by_bf16_avx2})  //
      TW_ON_ARM({"matmul_f32_by_bf16_neon", Isa::neon, Extra::none, tw_matmul_f32_by_bf16_neon})  //
      {"matmul_f32_by_bf16_scalar", Isa::scalar, Extra::none, tw_matmul_f32_by_bf16_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_matmul(/*place=*/10,
                                          {{"matmul float32", [] { return matmul_kernels(TW_F32); }},
                                           {"matmul bfloat16", [] { return matmul_kernels(TW_BF16); }},
                                           {"matmul float32 by bfloat16", &matmul_by_bf16_kernels}});

}  // namespace

}  // namespace tensorwright
