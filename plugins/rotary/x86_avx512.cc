// rotary_kv_write for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/rotary/vector.h"

namespace tensorwright {

void rotary_kv_write_avx512(const tw_rotary_kv_write_args* a) { rotate_rows<Avx512>(a); }

}  // namespace tensorwright
