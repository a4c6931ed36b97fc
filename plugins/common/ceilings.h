// Loops that run at the highest rate of the machine, with which the benchmarks compare. A caller must first
// ask cpu_features() whether the processor has their instructions.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_CEILINGS_H_
#define TENSORWRIGHT_PLUGINS_COMMON_CEILINGS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Reads `bytes` (a multiple of 256, 64-aligned) once, in order. The result depends on all of them.
float tw_ceiling_read_avx512(const void* data, size_t bytes);
float tw_ceiling_read_avx2(const void* data, size_t bytes);
float tw_ceiling_read_neon(const void* data, size_t bytes);

// `iterations` times 16 independent fp32 FMA vectors: 16 * 16 * 2 operations each.
float tw_ceiling_fma_avx512(int64_t iterations);

// `iterations` times 12 independent fp32 FMA vectors: 12 * 8 * 2 operations each.
float tw_ceiling_fma_avx2(int64_t iterations);

// `iterations` times 16 independent fp32 FMA vectors: 16 * 4 * 2 operations each.
float tw_ceiling_fma_neon(int64_t iterations);

// `iterations` times 16 independent bf16 dot vectors: 16 * 16 * 4 operations each.
float tw_ceiling_bf16_avx512bf16(int64_t iterations);

// `iterations` times 16 independent int8 dot vectors (vpdpbusd): 16 * 64 * 2 operations each.
float tw_ceiling_int8_avx512vnni(int64_t iterations);

// `iterations` times 8 independent int8 dot vectors (vpmaddubsw, vpmaddwd, vpaddd): 8 * 32 * 2 operations
// each.
float tw_ceiling_int8_avx2(int64_t iterations);

// `iterations` times 8 independent int8 dot vectors (smull, addp, sadalp), or 16 (sdot), or 16 tiles of 2 x 2
// sums (smmla): 8 * 16 * 2, 16 * 16 * 2 and 16 * 32 * 2 operations each.
float tw_ceiling_int8_neon(int64_t iterations);
float tw_ceiling_int8_neondot(int64_t iterations);
float tw_ceiling_int8_neoni8mm(int64_t iterations);

// `iterations` times 16 independent bf16 dot vectors (bfdot): 16 * 4 * 4 operations each.
float tw_ceiling_bf16_neonbf16(int64_t iterations);

// `iterations` times 4 independent products of tiles of int8: 4 * 16 * 16 * 64 * 2 operations each.
float tw_ceiling_int8_amx(int64_t iterations);

// `iterations` times 4 independent products of tiles of bf16: 4 * 16 * 16 * 32 * 2 operations each.
float tw_ceiling_bf16_amx(int64_t iterations);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWRIGHT_PLUGINS_COMMON_CEILINGS_H_
