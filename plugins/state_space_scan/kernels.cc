// The state_space_scan kernels, best first.
#include "plugins/state_space_scan/kernels.h"

extern "C" {
void tw_state_space_scan_scalar(const tw_state_space_scan_args*);
void tw_state_space_scan_avx512(const tw_state_space_scan_args*);
void tw_state_space_scan_avx2(const tw_state_space_scan_args*);
void tw_state_space_scan_neon(const tw_state_space_scan_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_state_space_scan_fn>> state_space_scan_kernels() {
  static constexpr KernelEntry<tw_state_space_scan_fn> kTable[] = {
      TW_ON_X86({"state_space_scan_avx512", Isa::avx512, Extra::none, tw_state_space_scan_avx512},
                {"state_space_scan_avx2", Isa::avx2, Extra::none, tw_state_space_scan_avx2})  //
      TW_ON_ARM({"state_space_scan_neon", Isa::neon, Extra::none, tw_state_space_scan_neon})  //
      {"state_space_scan_scalar", Isa::scalar, Extra::none, tw_state_space_scan_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_state_space_scan(/*place=*/130, {{"state_space_scan", [] {
                                                                       return state_space_scan_kernels();
                                                                     }}});

}  // namespace

}  // namespace tensorwright
