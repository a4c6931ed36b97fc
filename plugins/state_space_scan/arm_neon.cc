// state_space_scan for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/state_space_scan/vector.h"

extern "C" void tw_state_space_scan_neon(const tw_state_space_scan_args* a) { state_space_scan<Neon>(a); }
