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
#define TW_DECLARE(dtype, kind, name) void tw_embedding_##kind##_scalar(const tw_embedding_args*);
TW_FOR_EACH_QUANTIZED(TW_DECLARE)
TW_DECLARE(TW_FP8, fp8, "fp8")
#undef TW_DECLARE
}

namespace tensorwright {

std::span<const KernelEntry<tw_embedding_fn>> embedding_kernels(int dtype) {
  static constexpr KernelEntry<tw_embedding_fn> kF32[] = {
      TW_ON_X86({"embedding_f32_avx512", Isa::avx512, Extra::none, tw_embedding_f32_avx512},
                {"embedding_f32_avx2", Isa::avx2, Extra::none, tw_embedding_f32_avx2})  //
      {"embedding_f32_scalar", Isa::scalar, Extra::none, tw_embedding_f32_scalar},
  };
  static constexpr KernelEntry<tw_embedding_fn> kBf16[] = {
      TW_ON_X86({"embedding_bf16_avx512", Isa::avx512, Extra::none, tw_embedding_bf16_avx512},
                {"embedding_bf16_avx2", Isa::avx2, Extra::none, tw_embedding_bf16_avx2})  //
      {"embedding_bf16_scalar", Isa::scalar, Extra::none, tw_embedding_bf16_scalar},
  };
#define TW_QUANTIZED(dtype, kind, name)                                                          \
  case dtype: {                                                                                  \
    static constexpr KernelEntry<tw_embedding_fn> kTable[] = {                                   \
        {"embedding_" #kind "_scalar", Isa::scalar, Extra::none, tw_embedding_##kind##_scalar}}; \
    return kTable;                                                                               \
  }
  switch (dtype) {
    case TW_BF16:
      return kBf16;
      TW_FOR_EACH_QUANTIZED(TW_QUANTIZED)
      TW_QUANTIZED(TW_FP8, fp8, "fp8")
    default:
      return kF32;
  }
#undef TW_QUANTIZED
}

namespace {

const RegisteredKernels registered_embedding(/*place=*/30,
                                             {{"embedding float32", [] { return embedding_kernels(TW_F32); }},
                                              {"embedding bfloat16",
                                               [] { return embedding_kernels(TW_BF16); }}});

}  // namespace

}  // namespace tensorwright
