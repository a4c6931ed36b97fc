// causal_conv for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/causal_conv/vector.h"

extern "C" void tw_causal_conv_avx2(const tw_causal_conv_args* a) { causal_conv<Avx2>(a); }
