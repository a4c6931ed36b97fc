// The rotary kernels, best first.
#include "plugins/rotary/kernels.h"

namespace tensorwright {

void rotary_table_scalar(const tw_rotary_table_args*);
void rotary_kv_write_scalar(const tw_rotary_kv_write_args*);
void rotary_kv_write_avx512(const tw_rotary_kv_write_args*);
void rotary_kv_write_avx2(const tw_rotary_kv_write_args*);
void rotary_kv_write_neon(const tw_rotary_kv_write_args*);

std::span<const KernelEntry<tw_rotary_table_fn>> rotary_table_kernels() {
  static const KernelEntry<tw_rotary_table_fn> table[] = {
      {"rotary_table_scalar", Isa::scalar, Extra::none, rotary_table_scalar},
  };
  return table;
}

std::span<const KernelEntry<tw_rotary_kv_write_fn>> rotary_kv_write_kernels() {
  static const KernelEntry<tw_rotary_kv_write_fn> table[] = {
      TW_ON_X86({"rotary_kv_write_avx512", Isa::avx512, Extra::none, rotary_kv_write_avx512},
                {"rotary_kv_write_avx2", Isa::avx2, Extra::none, rotary_kv_write_avx2})  //
      TW_ON_ARM({"rotary_kv_write_neon", Isa::neon, Extra::none, rotary_kv_write_neon})  //
      {"rotary_kv_write_scalar", Isa::scalar, Extra::none, rotary_kv_write_scalar},
  };
  return table;
}

namespace {

const RegisteredKernels registered_rotary(/*place=*/50,
                                          {{"rotary_table", [] { return rotary_table_kernels(); }},
                                           {"rotary_kv_write", [] { return rotary_kv_write_kernels(); }}});

}  // namespace

}  // namespace tensorwright
