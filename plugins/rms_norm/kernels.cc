// The rms_norm kernels, best first.
#include "plugins/rms_norm/kernels.h"

namespace tensorwright {

void rms_norm_scalar(const tw_rms_norm_args*);
void rms_norm_avx512(const tw_rms_norm_args*);
void rms_norm_avx2(const tw_rms_norm_args*);
void rms_norm_neon(const tw_rms_norm_args*);

std::span<const KernelEntry<tw_rms_norm_fn>> rms_norm_kernels() {
  static const KernelEntry<tw_rms_norm_fn> table[] = {
      TW_ON_X86({"rms_norm_avx512", Isa::avx512, Extra::none, rms_norm_avx512},
                {"rms_norm_avx2", Isa::avx2, Extra::none, rms_norm_avx2})  //
      TW_ON_ARM({"rms_norm_neon", Isa::neon, Extra::none, rms_norm_neon})  //
      {"rms_norm_scalar", Isa::scalar, Extra::none, rms_norm_scalar},
  };
  return table;
}

namespace {

const RegisteredKernels registered_rms_norm(/*place=*/40, {{"rms_norm", [] { return rms_norm_kernels(); }}});

}  // namespace

}  // namespace tensorwright
