// selective_scan for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/selective_scan/vector.h"

extern "C" void tw_selective_scan_avx512(const tw_selective_scan_args* a) { selective_scan<Avx512>(a); }
