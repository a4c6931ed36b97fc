// rms_norm for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/rms_norm/vector.h"

namespace tensorwright {

void rms_norm_avx512(const tw_rms_norm_args* a) { normalize_rows<Avx512>(a); }

}  // namespace tensorwright
