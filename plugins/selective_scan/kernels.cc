// The selective_scan kernels, best first.
#include "plugins/selective_scan/kernels.h"

extern "C" {
void tw_selective_scan_scalar(const tw_selective_scan_args*);
void tw_selective_scan_avx512(const tw_selective_scan_args*);
void tw_selective_scan_avx2(const tw_selective_scan_args*);
void tw_selective_scan_neon(const tw_selective_scan_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_selective_scan_fn>> selective_scan_kernels() {
  static constexpr KernelEntry<tw_selective_scan_fn> kTable[] = {
      TW_ON_X86({"selective_scan_avx512", Isa::avx512, Extra::none, tw_selective_scan_avx512},
                {"selective_scan_avx2", Isa::avx2, Extra::none, tw_selective_scan_avx2})  //
      TW_ON_ARM({"selective_scan_neon", Isa::neon, Extra::none, tw_selective_scan_neon})  //
      {"selective_scan_scalar", Isa::scalar, Extra::none, tw_selective_scan_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_selective_scan(/*place=*/135, {{"selective_scan",
                                                                   [] { return selective_scan_kernels(); }}});

}  // namespace

}  // namespace tensorwright
