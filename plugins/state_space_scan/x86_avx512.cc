// state_space_scan for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/state_space_scan/vector.h"

extern "C" void tw_state_space_scan_avx512(const tw_state_space_scan_args* a) { state_space_scan<Avx512>(a); }
