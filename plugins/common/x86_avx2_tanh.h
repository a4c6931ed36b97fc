// AVX2 names for vector_tanh.h. Only x86_avx2*.cc files may include it.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_TANH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_TANH_H_

#include "plugins/common/vector_tanh.h"
#include "plugins/common/x86_avx2.h"

static inline __m256 tw_tanh_avx2(__m256 x) { return tanh_lanes<Avx2>(x); }
static inline __m256 tw_gelu_tanh_avx2(__m256 x) { return gelu_tanh_lanes<Avx2>(x); }
static inline __m256 tw_gelu_erf_avx2(__m256 x) { return gelu_erf_lanes<Avx2>(x); }

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_TANH_H_
