// The embedding kernels, best first.
#include "plugins/embedding/kernels.h"

extern "C" {
void tw_embedding_f32_scalar(const tw_embedding_args*);
void tw_embedding_f32_avx512(const tw_embedding_args*);
void tw_embedding_f32_avx2(const tw_embedding_args*);
void tw_embedding_bf16_scalar(const tw_embedding_args*);
void tw_embedding_bf16_avx512(const tw_embedding_args*);
void tw_embedding_bf16_avx2(const tw_embedding_args*);
void tw_embedding_i8_scalar(const tw_embedding_args*);
void tw_embedding_i4_scalar(const tw_embedding_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_embedding_fn>> embedding_kernels(int dtype) {
  static constexpr KernelEntry<tw_embedding_fn> kF32[] = {
      {"embedding_f32_avx512", Isa::avx512, Extra::none, tw_embedding_f32_avx512},
      {"embedding_f32_avx2", Isa::avx2, Extra::none, tw_embedding_f32_avx2},
      {"embedding_f32_scalar", Isa::scalar, Extra::none, tw_embedding_f32_scalar},
  };
  static constexpr KernelEntry<tw_embedding_fn> kBf16[] = {
      {"embedding_bf16_avx512", Isa::avx512, Extra::none, tw_embedding_bf16_avx512},
      {"embedding_bf16_avx2", Isa::avx2, Extra::none, tw_embedding_bf16_avx2},
      {"embedding_bf16_scalar", Isa::scalar, Extra::none, tw_embedding_bf16_scalar},
  };
  static constexpr KernelEntry<tw_embedding_fn> kI8[] = {
      {"embedding_i8_scalar", Isa::scalar, Extra::none, tw_embedding_i8_scalar}};
  static constexpr KernelEntry<tw_embedding_fn> kI4[] = {
      {"embedding_i4_scalar", Isa::scalar, Extra::none, tw_embedding_i4_scalar}};
  if (dtype == TW_BF16) return kBf16;
  if (dtype == TW_I8) return kI8;
  if (dtype == TW_I4) return kI4;
  return kF32;
}

namespace {

const RegisteredKernels registered(/*place=*/30,
                                   {{"embedding float32", [] { return embedding_kernels(TW_F32); }},
                                    {"embedding bfloat16", [] { return embedding_kernels(TW_BF16); }}});

}  // namespace

}  // namespace tensorwright
