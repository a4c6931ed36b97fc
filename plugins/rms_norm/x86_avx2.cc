// rms_norm for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/rms_norm/vector.h"

namespace tensorwright {

void rms_norm_avx2(const tw_rms_norm_args* a) { normalize_rows<Avx2>(a); }

}  // namespace tensorwright
