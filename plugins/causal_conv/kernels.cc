// The causal_conv kernels, best first.
#include "plugins/causal_conv/kernels.h"

extern "C" {
void tw_causal_conv_scalar(const tw_causal_conv_args*);
void tw_causal_conv_avx512(const tw_causal_conv_args*);
void tw_causal_conv_avx2(const tw_causal_conv_args*);
void tw_causal_conv_neon(const tw_causal_conv_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_causal_conv_fn>> causal_conv_kernels() {
  static constexpr KernelEntry<tw_causal_conv_fn> kTable[] = {
      TW_ON_X86({"causal_conv_avx512", Isa::avx512, Extra::none, tw_causal_conv_avx512},
                {"causal_conv_avx2", Isa::avx2, Extra::none, tw_causal_conv_avx2})  //
      TW_ON_ARM({"causal_conv_neon", Isa::neon, Extra::none, tw_causal_conv_neon})  //
      {"causal_conv_scalar", Isa::scalar, Extra::none, tw_causal_conv_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_causal_conv(/*place=*/120,
                                               {{"causal_conv", [] { return causal_conv_kernels(); }}});

}  // namespace

}  // namespace tensorwright
