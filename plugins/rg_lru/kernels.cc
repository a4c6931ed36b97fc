// The rg_lru kernels, best first.
#include "plugins/rg_lru/kernels.h"

extern "C" {
void tw_rg_lru_scalar(const tw_rg_lru_args*);
void tw_rg_lru_avx512(const tw_rg_lru_args*);
void tw_rg_lru_avx2(const tw_rg_lru_args*);
void tw_rg_lru_neon(const tw_rg_lru_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_rg_lru_fn>> rg_lru_kernels() {
  static constexpr KernelEntry<tw_rg_lru_fn> kTable[] = {
      TW_ON_X86({"rg_lru_avx512", Isa::avx512, Extra::none, tw_rg_lru_avx512},
                {"rg_lru_avx2", Isa::avx2, Extra::none, tw_rg_lru_avx2})  //
      TW_ON_ARM({"rg_lru_neon", Isa::neon, Extra::none, tw_rg_lru_neon})  //
      {"rg_lru_scalar", Isa::scalar, Extra::none, tw_rg_lru_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_rg_lru(/*place=*/145, {{"rg_lru", [] { return rg_lru_kernels(); }}});

}  // namespace

}  // namespace tensorwright
