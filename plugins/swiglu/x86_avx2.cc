// swiglu for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/swiglu/vector.h"

extern "C" void tw_swiglu_avx2(const tw_swiglu_args* a) { swiglu<Avx2>(a); }
