// AVX-512 names for vector_tanh.h. Only x86_avx512*.cc files may include it.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_

#include "plugins/common/vector_tanh.h"
#include "plugins/common/x86_avx512.h"

static inline __m512 tw_tanh_avx512(__m512 x) { return tanh_lanes<Avx512>(x); }
static inline __m512 tw_gelu_tanh_avx512(__m512 x) { return gelu_tanh_lanes<Avx512>(x); }
static inline __m512 tw_gelu_erf_avx512(__m512 x) { return gelu_erf_lanes<Avx512>(x); }

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_
