// rotary_kv_write for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/rotary/vector.h"

namespace tensorwright {

void rotary_kv_write_avx2(const tw_rotary_kv_write_args* a) { rotate_rows<Avx2>(a); }

}  // namespace tensorwright
