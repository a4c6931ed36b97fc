// latent_kv_write for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/latent_attention/vector.h"

namespace tensorwright {

void latent_kv_write_avx512(const tw_latent_kv_write_args* a) { write_latent_rows<Avx512>(a); }

}  // namespace tensorwright
