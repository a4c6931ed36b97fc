// A weight_only_matmul of few rows, for every instruction set: each weight is decoded in registers and
// multiplied at once.
//
//   for each P panels of a unit, for each group of K, for each block of it, for each panel: four elements of
//   K are decoded and multiplied by those of R rows of x; then the sums of the group are scaled and added
//
// Several panels together give sums enough to hide the latency of one sum, and as many streams from memory.
// The processor follows each stream by itself. What it cannot know is where the next unit begins.
//
// The file of an instruction set defines `Few`:
//   Isa               one of plugins/common; a panel takes 16 / Isa::kLanes vectors, its parts
//   kPanels<R>        P
//   kOf, kBytes       what weights are decoded to (four<kOf>() of its codecs), and the bytes of an element of
//   x at(x, j, left)    in every lane what vector j of the weights multiplies, of x with `left` bytes
//   step(sum, x, w)   the sums with that product
//   scales(p, from, part)
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_FEW_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_FEW_H_

#include "plugins/weight_only_matmul/vector.h"

namespace {

constexpr int64_t kAhead = 1024;  // bytes of a panel: its end is where the next unit is fetched

// What a call for few rows reads and writes.
struct FewTile {
  const char* w[kUnit];  // panels
  const char* x;         // first row
  int64_t x_stride;      // bytes
  float* sum;            // [rows, kUnit, 16]
  int64_t next;          // bytes between a panel and that of the next unit; 0 if there is none
};

// The sums of R rows of x and P panels in a group of weights.
template <class Few, class Codec, int R, int P>
struct FewSums {
  using Isa = typename Few::Isa;
  using Zeros = typename Codec::Zeros;
  static constexpr int kParts = (int)kLanes / Isa::kLanes;
  static constexpr int kSteps = Codec::kPlanes * 4;  // elements of K in a block
  typename Isa::Vector dot[R][P * kParts];
  Zeros zeros[P * kParts];
  const char* w[P];

  // Multiplies the first `count` elements of four, which are `plane` of a block of panel p.
  TW_INLINE void add(int p, int plane, const char* x, int64_t x_stride, int64_t count) {
    TW_UNROLL
    for (int part = p * kParts; part < (p + 1) * kParts; ++part) {
      const auto four = Codec::template four<Few::kOf>(w[p], part % kParts, plane, zeros[part]);
      constexpr int per = 4 / four.kCount;
      TW_UNROLL
      for (int j = 0; j < four.kCount; ++j) {
        if (j * per >= count) break;
        TW_UNROLL
        for (int r = 0; r < R; ++r)
          dot[r][part] =
              Few::step(dot[r][part], Few::at(x + r * x_stride, j, count * Few::kBytes), four.n[j]);
      }
    }
  }

  // Fetches a block `ahead` bytes behind the current one of every panel.
  TW_INLINE void fetch(int64_t ahead) const {
    TW_UNROLL
    for (int p = 0; p < P; ++p) {
      for (int line = 0; line < Codec::kBytes; line += 64) __builtin_prefetch(w[p] + ahead + line);
    }
  }

  // Multiplies `count` elements of K of group i of panels from `panel` on.
  TW_INLINE void group(const FewTile& t, const Packed& p, int panel, int64_t i, int64_t count) {
    TW_UNROLL
    for (int part = 0; part < P * kParts; ++part) {
      zeros[part] = Codec::zeros(t.w[panel + part / kParts] + p.zeros(i), part % kParts);
      TW_UNROLL
      for (int r = 0; r < R; ++r) dot[r][part] = Isa::all(0.0f);
    }
    TW_UNROLL
    for (int of = 0; of < P; ++of) w[of] = t.w[panel + of] + p.numbers(i);
    const char* x = t.x + i * p.size * Few::kBytes;
    int64_t left = p.panel_bytes - p.numbers(i) - kAhead;  // until what is fetched is of the next unit
    for (; count >= kSteps; count -= kSteps, left -= Codec::kBytes, x += kSteps * Few::kBytes) {
      fetch(left > 0 ? kAhead : kAhead - p.panel_bytes + t.next);
      TW_UNROLL
      for (int s = 0; s < Codec::kPlanes; ++s) {
        TW_UNROLL
        for (int of = 0; of < P; ++of) add(of, s, x + s * 4 * Few::kBytes, t.x_stride, 4);
      }
      TW_UNROLL
      for (int of = 0; of < P; ++of) w[of] += Codec::kBytes;
    }
    TW_UNROLL
    for (int s = 0; s < Codec::kPlanes; ++s) {
      if (s * 4 >= count) return;
      TW_UNROLL
      for (int of = 0; of < P; ++of) add(of, s, x + s * 4 * Few::kBytes, t.x_stride, count - s * 4);
    }
  }
};

template <class Few, class Codec, int R>
__attribute__((noinline)) void few_rows(const Packed& packed, const FewTile* tile) {
  using Isa = typename Few::Isa;
  constexpr int kPanels = Few::template kPanels<R>;
  constexpr int kParts = (int)kLanes / Isa::kLanes;
  const Packed p = packed;
  const FewTile t = *tile;
  for (int panel = 0; panel < kUnit; panel += kPanels) {
    for (int64_t i = 0; i < p.groups; ++i) {
      FewSums<Few, Codec, R, kPanels> sums;
      sums.group(t, p, panel, i, at_most(p.size, p.k - i * p.size));
      TW_UNROLL
      for (int part = 0; part < kPanels * kParts; ++part) {
        const auto scale = Few::scales(p, t.w[panel + part / kParts] + p.scales(i), part % kParts);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          float* sum = t.sum + (r * kUnit + panel) * kLanes + part * Isa::kLanes;
          const auto dot = sums.dot[r][part];
          Isa::store(sum, TW_F32, 0, Isa::kLanes,
                     p.group == 0 ? Isa::mul(dot, scale) : Isa::fma(dot, scale, Isa::load(sum, Isa::kLanes)));
        }
      }
    }
  }
}

// Calls few_rows() for that many rows, R or more.
template <class Few, class Codec, int R>
TW_INLINE void few_rows_of(int64_t rows, const Packed& p, const FewTile* t) {
  if constexpr (R < few_rows_with(Codec::kBits)) {
    if (rows > R) return few_rows_of<Few, Codec, R + 1>(rows, p, t);
  }
  few_rows<Few, Codec, R>(p, t);
}

// Sums a unit of panels for few rows. last: whether no unit follows. sum: [rows, kUnit, 16], zero at first.
template <class Few, template <class> class Numbers>
void sum_few(const tw_matmul_args* a, const Packed& p, const char* w, int64_t panels, int64_t row,
             int64_t rows, bool last, float* sum) {
  const int64_t stride = a->x_stride * Few::kBytes;
  FewTile t = {{}, (const char*)a->x + row * stride, stride, sum, last ? 0 : kUnit * p.panel_bytes};
  // Panels that the unit lacks are the last one again; nobody reads their sums.
  for (int64_t panel = 0; panel < kUnit; ++panel) t.w[panel] = w + at_most(panel, panels - 1) * p.panel_bytes;
  for_form(p.codec, [&](auto form) { few_rows_of<Few, Numbers<decltype(form)>, 1>(rows, p, &t); });
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_FEW_H_
