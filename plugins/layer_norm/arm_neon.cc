// layer_norm for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/layer_norm/vector.h"

namespace tensorwright {

void layer_norm_neon(const tw_layer_norm_args* a) { normalize_rows<Neon>(a); }

}  // namespace tensorwright
