// rms_norm for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/rms_norm/vector.h"

namespace tensorwright {

void rms_norm_neon(const tw_rms_norm_args* a) { normalize_rows<Neon>(a); }

}  // namespace tensorwright
