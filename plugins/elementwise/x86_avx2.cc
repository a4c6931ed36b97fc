// elementwise for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/elementwise/vector.h"

extern "C" void tw_elementwise_avx2(const tw_elementwise_args* a) { evaluate_rows<Avx2>(a); }
