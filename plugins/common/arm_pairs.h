// Dot products of bytes without SDOT: bytes are multiplied to 16 bits, and two neighbours are added there
// before 32 bits take them: at most 2 * 128 * 127, which fits.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_ARM_PAIRS_H_
#define TENSORWRIGHT_PLUGINS_COMMON_ARM_PAIRS_H_

#include "plugins/common/arm_neon.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Only one of two bytes that are multiplied may be -128.
struct PairProducts {
  // Returns `sum` plus, in each of 4 lanes, the products of four bytes of w with those of x.
  static TW_INLINE int32x4_t add(int32x4_t sum, int8x16_t w, int8x16_t x) {
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_ARM_PAIRS_H_
