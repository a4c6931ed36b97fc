// layer_norm for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/layer_norm/vector.h"

namespace tensorwright {

void layer_norm_avx2(const tw_layer_norm_args* a) { normalize_rows<Avx2>(a); }

}  // namespace tensorwright
