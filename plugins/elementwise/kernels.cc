// The elementwise kernels, best first.
#include "plugins/elementwise/kernels.h"

extern "C" {
void tw_elementwise_scalar(const tw_elementwise_args*);
void tw_elementwise_avx512(const tw_elementwise_args*);
void tw_elementwise_avx2(const tw_elementwise_args*);
void tw_elementwise_neon(const tw_elementwise_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_elementwise_fn>> elementwise_kernels() {
  static constexpr KernelEntry<tw_elementwise_fn> kTable[] = {
      TW_ON_X86({"elementwise_avx512", Isa::avx512, Extra::none, tw_elementwise_avx512},
                {"elementwise_avx2", Isa::avx2, Extra::none, tw_elementwise_avx2})  //
      TW_ON_ARM({"elementwise_neon", Isa::neon, Extra::none, tw_elementwise_neon})  //
      {"elementwise_scalar", Isa::scalar, Extra::none, tw_elementwise_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_elementwise(/*place=*/80,
                                               {{"elementwise", [] { return elementwise_kernels(); }}});

}  // namespace

}  // namespace tensorwright
