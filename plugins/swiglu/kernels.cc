// The swiglu kernels, best first.
#include "plugins/swiglu/kernels.h"

extern "C" {
void tw_swiglu_scalar(const tw_swiglu_args*);
void tw_swiglu_avx512(const tw_swiglu_args*);
void tw_swiglu_avx2(const tw_swiglu_args*);
void tw_swiglu_neon(const tw_swiglu_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_swiglu_fn>> swiglu_kernels() {
  static constexpr KernelEntry<tw_swiglu_fn> kTable[] = {
      TW_ON_X86({"swiglu_avx512", Isa::avx512, Extra::none, tw_swiglu_avx512},
                {"swiglu_avx2", Isa::avx2, Extra::none, tw_swiglu_avx2})  //
      TW_ON_ARM({"swiglu_neon", Isa::neon, Extra::none, tw_swiglu_neon})  //
      {"swiglu_scalar", Isa::scalar, Extra::none, tw_swiglu_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_swiglu(/*place=*/70, {{"swiglu", [] { return swiglu_kernels(); }}});

}  // namespace

}  // namespace tensorwright
