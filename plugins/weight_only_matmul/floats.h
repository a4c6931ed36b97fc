// weight_only_matmul for instruction sets that decode weights to floats, and widen the rows of x that a micro
// kernel reads. A vector has 8 lanes, so a panel takes two of them.
//
// The file of an instruction set defines `Of`: Isa, one of plugins/common; Few<kOfX>, as vector_few.h says;
// Numbers<Form>, the codec of a form; load(dtype, x, at, count), which loads 8 elements as floats;
// panels_at_once(rows), how many panels go through a micro kernel together, and micro<R, P>(tile).
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_FLOATS_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_FLOATS_H_

#include "plugins/matmul/vector_finish.h"
#include "plugins/weight_only_matmul/vector_few.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kStride = kPart<TW_F32> + 16;  // floats between rows of x

// One call of a micro kernel.
struct Tile {
  const float* x;       // [R, kStride], the part's K
  const char* w;        // first panel, decoded
  int64_t depth;        // elements of K
  int64_t spans, span;  // groups of weights with a scale, and elements of each
  bool whole;           // of whole rows, whose sums are scaled after the last part
  const float* scale;   // [spans, kUnit, 16]
  float* sum;           // [R, kUnit, 16]
};

typedef void (*Micro)(const Tile*);

template <class Of>
Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro one[kRows] = {Of::template micro<1, 1>, Of::template micro<2, 1>,
                                   Of::template micro<3, 1>, Of::template micro<4, 1>,
                                   Of::template micro<5, 1>, Of::template micro<6, 1>};
  static const Micro two[3] = {Of::template micro<1, 2>, Of::template micro<2, 2>,
                               Of::panels_at_once(3) == 2 ? Of::template micro<3, 2> : nullptr};
  if (panels == 1) return one[rows - 1];
  if (panels == 2) return two[rows - 1];
  return panels == 3 ? Of::template micro<1, 3> : Of::template micro<1, 4>;
}

// The `Set` of vector.h, for x of type kOfX.
template <class Of, int kOfX>
struct Floats {
  using Isa = typename Of::Isa;
  using Few = typename Of::template Few<kOfX>;
  static constexpr int kDtype = TW_F32;
  static constexpr int64_t kRowsAtOnce = kRows;

  static void sum_few(const tw_matmul_args* a, const Packed& p, const char* w, int64_t panels, int64_t row,
                      int64_t rows, bool last, float* sum) {
    ::sum_few<Few, Of::template Numbers>(a, p, w, panels, row, rows, last, sum);
  }

  static void decode(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
    for_form(p.codec, [&](auto form) {
      using Codec = typename Of::template Numbers<decltype(form)>;
      const typename Codec::Zeros z[2] = {Codec::zeros(zeros, 0), Codec::zeros(zeros, 1)};
      for (int64_t k = 0; k < count; k += 4 * Codec::kPlanes, from += Codec::kBytes) {
        TW_UNROLL
        for (int s = 0; s < Codec::kPlanes; ++s, to += 256) {
          TW_UNROLL
          for (int half = 0; half < 2; ++half) {
            const auto four = Codec::template four<TW_F32>(from, half, s, z[half]);
            TW_UNROLL
            for (int j = 0; j < 4; ++j)
              Isa::store(to + j * 64 + half * 32, TW_F32, 0, Isa::kLanes, four.n[j]);
          }
        }
      }
    });
  }

  static void scales(const Packed& p, const char* from, float* to) {
    for (int half = 0; half < 2; ++half)
      Isa::store(to, TW_F32, half * Isa::kLanes, Isa::kLanes, Few::scales(p, from, half));
  }

  static int64_t panels_at_once(const Part&) { return kUnit; }

  static void sum(const tw_matmul_args* a, const Part& part, const Decoded<TW_F32>& w, int64_t,
                  int64_t panels, int64_t row, int64_t rows, float* sum) {
    constexpr int64_t bytes = kOfX == TW_BF16 ? 2 : 4;
    const int64_t depth = part.end - part.begin;
    float x[kRows * kStride];
    for (int64_t r = 0; r < rows; ++r) {
      const char* from = (const char*)a->x + ((row + r) * a->x_stride + part.begin) * bytes;
      for (int64_t k = 0; k < depth; k += Isa::kLanes)
        Isa::store(x + r * kStride, TW_F32, k, Isa::kLanes, Of::load(kOfX, from, k, depth - k));
    }
    const int64_t at_once = Of::panels_at_once(rows);
    for (int64_t p = 0; p < panels; p += at_once) {
      const Tile t = {x,
                      w.w + p * Decoded<TW_F32>::kStride,
                      depth,
                      part.spans,
                      part.span,
                      part.whole,
                      w.scale + p * kLanes,
                      sum + p * kLanes};
      micro_for<Of>(rows, at_most(at_once, panels - p))(&t);
    }
  }

  static void finish(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     const float* sum) {
    const FinishRow finish = finish_row_for<Isa>(a->epilogue);
    for (int64_t r = 0; r < rows; ++r) finish(*a, row + r, panel, panels, sum + r * kUnit * kLanes);
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_FLOATS_H_
