// quantized_matmul for AVX-VNNI, in registers of 256 bits, with the same bits as scalar.cc.
//
// vpdpbusd multiplies unsigned by signed bytes. Weights of 4, 3 and 2 bits are stored unsigned (w + 8, 4 or
// 2); bytes become unsigned by flipping the sign bit (w + 128), codes of E2M1 by a table (2 w + 12). The sums
// start at minus what this adds.
#include "plugins/quantized_matmul/x86_ymm_sparse.h"
#include "plugins/quantized_matmul/x86_ymm_steps.h"

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
      advance(c, 4, 64);
    }
  }
};

template <int kOf>
struct Codes {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = true;

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines; n > 0; n -= tw_block_lines(kOf)) add_steps<kOf, 0>(acc, c, g, add_products);
  }
};

struct AddProducts {
  static TW_INLINE __m256i add(__m256i sum, __m256i size, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, size, x);
  }
};

template <int kOf>
struct Sparse : SparseDot<kOf, AddProducts> {};

}  // namespace

#define TW_AVXVNNI(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_avxvnni(const tw_quantized_matmul_args* a) { \
    run_any<Bytes, Codes, Sparse, dtype>(a);                                                \
  }
TW_FOR_EACH_QUANTIZED(TW_AVXVNNI)
#undef TW_AVXVNNI
