// swiglu for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/swiglu/vector.h"

extern "C" void tw_swiglu_neon(const tw_swiglu_args* a) { swiglu<Neon>(a); }
