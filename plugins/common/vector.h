// Macros that the kernels of instruction sets share.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_COMMON_VECTOR_H_

// Loops over an array of registers must be unrolled early, or the compiler puts the array in memory.
#define TW_UNROLL _Pragma("GCC unroll 16")
#define TW_ALWAYS __attribute__((always_inline))
#define TW_INLINE inline TW_ALWAYS

#endif  // TENSORWRIGHT_PLUGINS_COMMON_VECTOR_H_
