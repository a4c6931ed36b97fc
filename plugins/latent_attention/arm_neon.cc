// latent_kv_write for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/latent_attention/vector.h"

namespace tensorwright {

void latent_kv_write_neon(const tw_latent_kv_write_args* a) { write_latent_rows<Neon>(a); }

}  // namespace tensorwright
