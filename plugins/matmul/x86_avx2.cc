// matmul for AVX2: fp32, and bf16 by exact widening. Same bits as scalar.cc.
#include "plugins/common/x86_avx2.h"

#include "plugins/matmul/widened.h"

namespace {

template <int R, int N>
TW_INLINE void step_f32(__m256 (&acc)[R][N], const float* x, const char* w, int64_t w_stride) {
  tw_multiply_avx2(
      acc, [=](int r) TW_ALWAYS { return _mm256_broadcast_ss(x + r * kStride); },
      [=](int i) TW_ALWAYS { return _mm256_loadu_ps((const float*)(w + i / 2 * w_stride) + i % 2 * 8); });
}

// A group holds k in its low half and k + 1 in its high half.
template <int R, int N>
TW_INLINE void step_bf16(__m256 (&acc)[R][N], const float* x, const char* w, int64_t w_stride) {
  tw_multiply_avx2(
      acc, [=](int r) TW_ALWAYS { return _mm256_broadcast_ss(x + r * kStride); },
      [=](int i) TW_ALWAYS { return tw_low_halves_avx2(w + i / 2 * w_stride + i % 2 * 32); });
  __asm__("" : "+r"(w));  // makes the compiler load again: no registers are free for the first halves
  tw_multiply_avx2(
      acc, [=](int r) TW_ALWAYS { return _mm256_broadcast_ss(x + r * kStride + 1); },
      [=](int i) TW_ALWAYS { return tw_high_halves_avx2(w + i / 2 * w_stride + i % 2 * 32); });
}

template <int kDtype, int R, int N>
TW_INLINE void step(__m256 (&acc)[R][N], const float* x, const char* w, int64_t w_stride) {
  kDtype == TW_BF16 ? step_bf16(acc, x, w, w_stride) : step_f32(acc, x, w, w_stride);
}

// The `Set` of widened.h.
struct Kernels {
  using Isa = Avx2;

  static TW_INLINE __m256 load(int dtype, const void* x, int64_t at, int64_t count) {
    return dtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)x + at, count)
                            : tw_load_avx2((const float*)x + at, count);
  }

  // Widened weights leave no register for 3 rows and 2 panels.
  static constexpr int64_t panels_at_once(int dtype, int64_t rows) {
    return rows == 1 ? 4 : rows == 2 || (rows == 3 && dtype == TW_F32) ? 2 : 1;
  }

  template <int kDtype, int R, int P>
  static void micro(const Tile* t) {
    constexpr int kGroup = kDtype == TW_BF16 ? 2 : 1, kSteps = 4;
    __m256 acc[R][2 * P];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * P; ++i) {
        acc[r][i] = t->first ? _mm256_setzero_ps() : _mm256_loadu_ps(t->sum + r * kUnit * kLanes + i * 8);
      }
    }
    const float* x = t->x;
    const char* w = t->w;
    const int64_t w_stride = t->w_stride;
    const char *ahead = w + t->ahead, *x_ahead0 = t->x_ahead[0], *x_ahead1 = t->x_ahead[1];
    for (int64_t n = t->groups / kSteps; n > 0; --n) {
      TW_UNROLL
      for (int u = 0; u < kSteps; ++u) {
        TW_UNROLL
        for (int p = 0; p < P; ++p) _mm_prefetch(ahead + p * w_stride + u * 64, _MM_HINT_T0);
        step<kDtype>(acc, x + u * kGroup, w + u * 64, w_stride);
      }
      if (P == 1) {
        _mm_prefetch(x_ahead0, _MM_HINT_T1);
        _mm_prefetch(x_ahead1, _MM_HINT_T1);
        x_ahead0 += 4 * kSteps;
        x_ahead1 += 4 * kSteps;
      }
      x += kSteps * kGroup;
      w += kSteps * 64;
      ahead += kSteps * 64;
    }
    for (int64_t n = t->groups % kSteps; n > 0; --n, x += kGroup, w += 64) step<kDtype>(acc, x, w, w_stride);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * P; ++i) _mm256_storeu_ps(t->sum + r * kUnit * kLanes + i * 8, acc[r][i]);
    }
  }
};

}  // namespace

extern "C" void tw_matmul_f32_avx2(const tw_matmul_args* a) { matmul<Kernels, TW_F32, TW_F32>(a); }
extern "C" void tw_matmul_bf16_avx2(const tw_matmul_args* a) { matmul<Kernels, TW_BF16, TW_BF16>(a); }
extern "C" void tw_matmul_f32_by_bf16_avx2(const tw_matmul_args* a) { matmul<Kernels, TW_F32, TW_BF16>(a); }
