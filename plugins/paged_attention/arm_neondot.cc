// Attention over caches of integers on NEON with SDOT, with the bits of scalar.cc.
#include "plugins/common/arm_dot.h"
#include "plugins/common/arm_neon.h"
#include "plugins/paged_attention/arm_integers.h"

namespace tensorwright {

void attention_i8_neondot(const tw_attention_args* a) { attend<Attention<ScoresI8<DotProducts>>>(a); }
void attention_i4_neondot(const tw_attention_args* a) { attend<Attention<ScoresI4<DotProducts>>>(a); }

}  // namespace tensorwright
