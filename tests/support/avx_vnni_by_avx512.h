// Included before the AVX-VNNI kernels of a build with TENSORWRIGHT_AVX_VNNI_BY_AVX512: AVX-512 VNNI has the
// same instruction on 256 bits under another encoding, so that these kernels also run where AVX-VNNI is
// missing.
#ifndef TENSORWRIGHT_TESTS_SUPPORT_AVX_VNNI_BY_AVX512_H_
#define TENSORWRIGHT_TESTS_SUPPORT_AVX_VNNI_BY_AVX512_H_

#include <immintrin.h>

#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32

#endif  // TENSORWRIGHT_TESTS_SUPPORT_AVX_VNNI_BY_AVX512_H_
