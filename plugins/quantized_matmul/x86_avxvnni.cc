// quantized_matmul for AVX-VNNI, in registers of 256 bits, with the same bits as scalar.cc.
//
// vpdpbusd multiplies unsigned by signed bytes. Nibbles are stored unsigned (w + 8); bytes become unsigned by
// flipping the sign bit (w + 128), codes of E2M1 by a table (2 w + 12). The sums start at minus what this
// adds.
#include "plugins/quantized_matmul/x86_ymm.h"

namespace {

TW_INLINE __m256i add_products(__m256i sum, __m256i x, __m256i w) {
  return _mm256_dpbusd_avx_epi32(sum, w, x);
}

template <int kOf>
struct Bytes {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = true;

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    const __m256i flip = _mm256_set1_epi8((char)0x80);
    for (int64_t n = g->lines; n > 0; --n) {
      multiply(
          acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, 0); },
          [&](int i) TW_ALWAYS { return _mm256_xor_si256(weights(c, g->w_stride, i), flip); }, add_products);
      pin(acc);
      advance(c, 4);
    }
  }
};

template <int kOf>
struct Nibbles {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = true;

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines; n > 0; --n) {
      multiply(
          acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, 0); },
          [&](int i) TW_ALWAYS { return unsigned_weights<kOf>(low_nibbles(weights(c, g->w_stride, i))); },
          add_products);
      pin(acc);
      forget(c);
      multiply(
          acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, 4); },
          [&](int i) TW_ALWAYS { return unsigned_weights<kOf>(high_nibbles(weights(c, g->w_stride, i))); },
          add_products);
      pin(acc);
      advance(c, 8);
    }
  }
};

}  // namespace

extern "C" void tw_quantized_matmul_i8_avxvnni(const tw_quantized_matmul_args* a) {
  a->group == 0 ? matmul<Kernels<Bytes<TW_I8>, true>>(a) : matmul<Kernels<Bytes<TW_I8>>>(a);
}

extern "C" void tw_quantized_matmul_i4_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles<TW_I4>>>(a);
}

extern "C" void tw_quantized_matmul_mxfp4_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles<TW_MXFP4>>>(a);
}

extern "C" void tw_quantized_matmul_u8_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Bytes<TW_U8>>>(a);
}

extern "C" void tw_quantized_matmul_u4_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles<TW_U4>>>(a);
}

extern "C" void tw_quantized_matmul_i8_f16_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Bytes<TW_I8_F16>>>(a);
}

extern "C" void tw_quantized_matmul_i4_f16_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles<TW_I4_F16>>>(a);
}

extern "C" void tw_quantized_matmul_u8_f16_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Bytes<TW_U8_F16>>>(a);
}

extern "C" void tw_quantized_matmul_u4_f16_avxvnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles<TW_U4_F16>>>(a);
}
