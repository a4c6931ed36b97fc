// latent_kv_write for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/latent_attention/vector.h"

namespace tensorwright {

void latent_kv_write_avx2(const tw_latent_kv_write_args* a) { write_latent_rows<Avx2>(a); }

}  // namespace tensorwright
