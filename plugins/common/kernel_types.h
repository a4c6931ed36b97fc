// Plain types that all kernels share. They are C only: files of an instruction set include kernel headers and
// intrinsics only, so that no template instantiated under -mavx512f can leak into the rest of the program.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_KERNEL_TYPES_H_
#define TENSORWRIGHT_PLUGINS_COMMON_KERNEL_TYPES_H_

#include <stddef.h>
#include <stdint.h>

// Plans store these numbers, so new ones are only appended. TW_I4 is a dtype of packed weights and of KV
// caches only; the numbers behind it are dtypes of packed weights, which plugins/quantized_matmul/layout.h
// names.
enum tw_dtype { TW_F32 = 0, TW_BF16 = 1, TW_I32 = 2, TW_I8 = 3, TW_I4 = 4 };

// What a gated layer applies to the gate. Plans store these numbers, so new ones are only appended.
enum tw_activation { TW_SILU = 0, TW_GELU_TANH = 1, TW_GELU_ERF = 2, TW_RELU = 3 };
enum { TW_ACTIVATIONS = 4 };

// The number of output columns in one panel of packed weights, and of positions in one tile of a K page.
enum { TW_LANES = 16 };

static inline size_t tw_dtype_bytes(int dtype) {
  return dtype == TW_F32 || dtype == TW_I32 ? 4 : dtype == TW_BF16 ? 2 : 1;
}

// Returns the number of elements along K in one 4-byte group of a panel.
static inline int tw_k_group(int dtype) { return (int)(4 / tw_dtype_bytes(dtype)); }

static inline size_t tw_k_padded(int dtype, size_t k) {
  size_t group = (size_t)tw_k_group(dtype);
  return (k + group - 1) / group * group;
}

// Returns the bytes of one panel: TW_LANES rows of K, where K is padded to a multiple of 4 bytes.
static inline size_t tw_panel_bytes(int dtype, size_t k) {
  return tw_k_padded(dtype, k) * TW_LANES * tw_dtype_bytes(dtype);
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_KERNEL_TYPES_H_
