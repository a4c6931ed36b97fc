// The latent_kv_write kernels, best first.
#include "plugins/latent_attention/kernels.h"

namespace tensorwright {

void latent_kv_write_scalar(const tw_latent_kv_write_args*);
void latent_kv_write_avx512(const tw_latent_kv_write_args*);
void latent_kv_write_avx2(const tw_latent_kv_write_args*);
void latent_kv_write_neon(const tw_latent_kv_write_args*);

std::span<const KernelEntry<tw_latent_kv_write_fn>> latent_kv_write_kernels() {
  static const KernelEntry<tw_latent_kv_write_fn> table[] = {
      TW_ON_X86({"latent_kv_write_avx512", Isa::avx512, Extra::none, latent_kv_write_avx512},
                {"latent_kv_write_avx2", Isa::avx2, Extra::none, latent_kv_write_avx2})  //
      TW_ON_ARM({"latent_kv_write_neon", Isa::neon, Extra::none, latent_kv_write_neon})  //
      {"latent_kv_write_scalar", Isa::scalar, Extra::none, latent_kv_write_scalar},
  };
  return table;
}

namespace {

const RegisteredKernels registered_latent_attention(/*place=*/55, {{"latent_kv_write", [] {
                                                                      return latent_kv_write_kernels();
                                                                    }}});

}  // namespace

}  // namespace tensorwright
