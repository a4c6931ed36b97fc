// causal_conv for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/causal_conv/vector.h"

extern "C" void tw_causal_conv_avx512(const tw_causal_conv_args* a) { causal_conv<Avx512>(a); }
