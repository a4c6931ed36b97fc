// swiglu for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/swiglu/vector.h"

extern "C" void tw_swiglu_avx512(const tw_swiglu_args* a) { swiglu<Avx512>(a); }
