// selective_scan for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/selective_scan/vector.h"

extern "C" void tw_selective_scan_neon(const tw_selective_scan_args* a) { selective_scan<Neon>(a); }
