// rotary_kv_write for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/rotary/vector.h"

namespace tensorwright {

void rotary_kv_write_neon(const tw_rotary_kv_write_args* a) { rotate_rows<Neon>(a); }

}  // namespace tensorwright
