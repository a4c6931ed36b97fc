// causal_conv for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/causal_conv/vector.h"

extern "C" void tw_causal_conv_neon(const tw_causal_conv_args* a) { causal_conv<Neon>(a); }
