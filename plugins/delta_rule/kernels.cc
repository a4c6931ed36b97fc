// The delta_rule kernels, best first.
#include "plugins/delta_rule/kernels.h"

extern "C" {
void tw_delta_rule_scalar(const tw_delta_rule_args*);
void tw_delta_rule_avx512(const tw_delta_rule_args*);
void tw_delta_rule_avx2(const tw_delta_rule_args*);
void tw_delta_rule_neon(const tw_delta_rule_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_delta_rule_fn>> delta_rule_kernels() {
  static constexpr KernelEntry<tw_delta_rule_fn> kTable[] = {
      TW_ON_X86({"delta_rule_avx512", Isa::avx512, Extra::none, tw_delta_rule_avx512},
                {"delta_rule_avx2", Isa::avx2, Extra::none, tw_delta_rule_avx2})  //
      TW_ON_ARM({"delta_rule_neon", Isa::neon, Extra::none, tw_delta_rule_neon})  //
      {"delta_rule_scalar", Isa::scalar, Extra::none, tw_delta_rule_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered_delta_rule(/*place=*/140,
                                              {{"delta_rule", [] { return delta_rule_kernels(); }}});

}  // namespace

}  // namespace tensorwright
