// The embedding kernels, best first.
#include "plugins/embedding/kernels.h"

#include "plugins/quantized_matmul/layout.h"

extern "C" {
void tw_embedding_f32_scalar(const tw_embedding_args*);
void tw_embedding_f32_avx512(const tw_embedding_args*);
void tw_embedding_f32_avx2(const tw_embedding_args*);
void tw_embedding_bf16_scalar(const tw_embedding_args*);
void tw_embedding_bf16_avx512(const tw_embedding_args*);
void tw_embedding_bf16_avx2(const tw_embedding_args*);
void tw_embedding_i8_scalar(const tw_embedding_args*);
void tw_embedding_i4_scalar(const tw_embedding_args*);
void tw_embedding_mxfp4_scalar(const tw_embedding_args*);
void tw_embedding_u8_scalar(const tw_embedding_args*);
void tw_embedding_u4_scalar(const tw_embedding_args*);
void tw_embedding_i8_f16_scalar(const tw_embedding_args*);
void tw_embedding_i4_f16_scalar(const tw_embedding_args*);
void tw_embedding_u8_f16_scalar(const tw_embedding_args*);
void tw_embedding_u4_f16_scalar(const tw_embedding_args*);
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
#define TW_QUANTIZED(dtype, kind)                                                                \
  case dtype: {                                                                                  \
    static constexpr KernelEntry<tw_embedding_fn> kTable[] = {                                   \
        {"embedding_" #kind "_scalar", Isa::scalar, Extra::none, tw_embedding_##kind##_scalar}}; \
    return kTable;                                                                               \
  }
  switch (dtype) {
    case TW_BF16:
      return kBf16;
      TW_QUANTIZED(TW_I8, i8)
      TW_QUANTIZED(TW_I4, i4)
      TW_QUANTIZED(TW_MXFP4, mxfp4)
      TW_QUANTIZED(TW_U8, u8)
      TW_QUANTIZED(TW_U4, u4)
      TW_QUANTIZED(TW_I8_F16, i8_f16)
      TW_QUANTIZED(TW_I4_F16, i4_f16)
      TW_QUANTIZED(TW_U8_F16, u8_f16)
      TW_QUANTIZED(TW_U4_F16, u4_f16)
    default:
      return kF32;
  }
#undef TW_QUANTIZED
}

namespace {

const RegisteredKernels registered(/*place=*/30,
                                   {{"embedding float32", [] { return embedding_kernels(TW_F32); }},
                                    {"embedding bfloat16", [] { return embedding_kernels(TW_BF16); }}});

}  // namespace

}  // namespace tensorwright
