// elementwise for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/elementwise/vector.h"

extern "C" void tw_elementwise_avx512(const tw_elementwise_args* a) { evaluate_rows<Avx512>(a); }
