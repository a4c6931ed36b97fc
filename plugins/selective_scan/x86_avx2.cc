// selective_scan for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/selective_scan/vector.h"

extern "C" void tw_selective_scan_avx2(const tw_selective_scan_args* a) { selective_scan<Avx2>(a); }
