// elementwise for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/elementwise/vector.h"

extern "C" void tw_elementwise_neon(const tw_elementwise_args* a) { evaluate_rows<Neon>(a); }
