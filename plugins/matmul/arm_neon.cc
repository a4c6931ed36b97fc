// matmul for NEON: fp32, and bf16 by exact widening. Same bits as scalar.cc.
#include "plugins/common/arm_neon.h"

#include "plugins/matmul/widened.h"

namespace {

// Computes acc[r][i] += x(r) * w(i).
template <int R, int N, typename X, typename W>
TW_INLINE void add_products(float32x4_t (&acc)[R][N], X x, W w) {
  if constexpr (N > 4 * R) {
    float32x4_t row[R];
    TW_UNROLL
    for (int r = 0; r < R; ++r) row[r] = x(r);
    TW_UNROLL
    for (int i = 0; i < N; ++i) {
      const float32x4_t value = w(i);
      TW_UNROLL
      for (int r = 0; r < R; ++r) acc[r][i] = vfmaq_f32(acc[r][i], row[r], value);
    }
  } else {
    float32x4_t value[N];
    TW_UNROLL
    for (int i = 0; i < N; ++i) value[i] = w(i);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const float32x4_t row = x(r);
      TW_UNROLL
      for (int i = 0; i < N; ++i) acc[r][i] = vfmaq_f32(acc[r][i], row, value[i]);
    }
  }
}

// Makes the compiler load again what it would keep in registers, of which none are free.
TW_INLINE void forget(const float*& x, const char*& w) { __asm__("" : "+r"(x), "+r"(w)); }

// Adds the products of a 4-byte group of K: one element of fp32, or two of bf16, of which k is in the low
// half and k + 1 in the high half.
template <int kDtype, int R, int N>
TW_INLINE void step(float32x4_t (&acc)[R][N], const float* x, const char* w, int64_t w_stride) {
  const auto row = [=](int r) TW_ALWAYS { return vld1q_dup_f32(x + r * kStride); };
  if constexpr (kDtype == TW_BF16) {
    add_products(acc, row, [=](int i) TW_ALWAYS { return first_halves(w + i / 4 * w_stride + i % 4 * 16); });
    forget(x, w);
    add_products(
        acc, [=](int r) TW_ALWAYS { return vld1q_dup_f32(x + r * kStride + 1); },
        [=](int i) TW_ALWAYS { return second_halves(w + i / 4 * w_stride + i % 4 * 16); });
  } else {
    add_products(acc, row, [=](int i) TW_ALWAYS {
      return vld1q_f32((const float*)(w + i / 4 * w_stride) + i % 4 * 4);
    });
  }
}

// The `Set` of widened.h. A panel takes 4 registers, and there are 32.
struct Kernels {
  using Isa = Neon;

  static TW_INLINE Eight load(int dtype, const void* x, int64_t at, int64_t count) {
    return load_eight_of(dtype, x, at, count);
  }

  // Three rows and two panels leave no registers for the weights.
  static constexpr int64_t panels_at_once(int, int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  template <int kDtype, int R, int P>
  static void micro(const Tile* t) {
    constexpr int kGroup = kDtype == TW_BF16 ? 2 : 1;
    float32x4_t acc[R][4 * P];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * P; ++i)
        acc[r][i] = t->first ? vdupq_n_f32(0.0f) : vld1q_f32(t->sum + r * kUnit * kLanes + i * 4);
    }
    const float* x = t->x;
    const char* w = t->w;
    const int64_t w_stride = t->w_stride;
    const char* ahead = w + t->ahead;
    for (int64_t n = t->groups; n > 0; --n, x += kGroup, w += 64, ahead += 64) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) __builtin_prefetch(ahead + p * w_stride);
      step<kDtype>(acc, x, w, w_stride);
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * P; ++i) vst1q_f32(t->sum + r * kUnit * kLanes + i * 4, acc[r][i]);
    }
  }
};

}  // namespace

extern "C" void tw_matmul_f32_neon(const tw_matmul_args* a) { matmul<Kernels, TW_F32, TW_F32>(a); }
extern "C" void tw_matmul_bf16_neon(const tw_matmul_args* a) { matmul<Kernels, TW_BF16, TW_BF16>(a); }
extern "C" void tw_matmul_f32_by_bf16_neon(const tw_matmul_args* a) { matmul<Kernels, TW_F32, TW_BF16>(a); }
