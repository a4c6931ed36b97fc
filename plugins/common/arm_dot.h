// Dot products of bytes by SDOT.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_ARM_DOT_H_
#define TENSORWRIGHT_PLUGINS_COMMON_ARM_DOT_H_

#include "plugins/common/arm_neon.h"

namespace {  // each including file gets its own copy, compiled with its own flags

struct DotProducts {
  // Returns `sum` plus, in each of 4 lanes, the products of four bytes of w with those of x.
  static TW_INLINE int32x4_t add(int32x4_t sum, int8x16_t w, int8x16_t x) { return vdotq_s32(sum, w, x); }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_ARM_DOT_H_
