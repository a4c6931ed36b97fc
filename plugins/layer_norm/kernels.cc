// The layer_norm kernels, best first.
#include "plugins/layer_norm/kernels.h"

namespace tensorwright {

void layer_norm_scalar(const tw_layer_norm_args*);
void layer_norm_avx512(const tw_layer_norm_args*);
void layer_norm_avx2(const tw_layer_norm_args*);
void layer_norm_neon(const tw_layer_norm_args*);

std::span<const KernelEntry<tw_layer_norm_fn>> layer_norm_kernels() {
  static const KernelEntry<tw_layer_norm_fn> table[] = {
      TW_ON_X86({"layer_norm_avx512", Isa::avx512, Extra::none, layer_norm_avx512},
                {"layer_norm_avx2", Isa::avx2, Extra::none, layer_norm_avx2})  //
      TW_ON_ARM({"layer_norm_neon", Isa::neon, Extra::none, layer_norm_neon})  //
      {"layer_norm_scalar", Isa::scalar, Extra::none, layer_norm_scalar},
  };
  return table;
}

namespace {

const RegisteredKernels registered_layer_norm(/*place=*/90,
                                              {{"layer_norm", [] { return layer_norm_kernels(); }}});

}  // namespace

}  // namespace tensorwright
