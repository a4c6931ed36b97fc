// layer_norm for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/layer_norm/vector.h"

namespace tensorwright {

void layer_norm_avx512(const tw_layer_norm_args* a) { normalize_rows<Avx512>(a); }

}  // namespace tensorwright
