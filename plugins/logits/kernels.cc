// The loops over a row of logits, best first.
#include "plugins/logits/kernels.h"

extern "C" {
const tw_logits_loops* tw_logits_scalar(void);
const tw_logits_loops* tw_logits_avx512(void);
const tw_logits_loops* tw_logits_avx2(void);
const tw_logits_loops* tw_logits_neon(void);
}

namespace tensorwright {

std::span<const KernelEntry<tw_logits_fn>> logits_kernels() {
  static constexpr KernelEntry<tw_logits_fn> kTable[] = {
      TW_ON_X86({"logits_avx512", Isa::avx512, Extra::none, tw_logits_avx512},
                {"logits_avx2", Isa::avx2, Extra::none, tw_logits_avx2})  //
      TW_ON_ARM({"logits_neon", Isa::neon, Extra::none, tw_logits_neon})  //
      {"logits_scalar", Isa::scalar, Extra::none, tw_logits_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_logits(/*place=*/100, {{"logits", [] { return logits_kernels(); }}});

}  // namespace

}  // namespace tensorwright
