// state_space_scan for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/state_space_scan/vector.h"

extern "C" void tw_state_space_scan_avx2(const tw_state_space_scan_args* a) { state_space_scan<Avx2>(a); }
