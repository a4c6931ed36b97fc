// The interface through which EngineCore gets the token masks of its guided completions. Engine implements it
// with a mailbox; a test may compute the masks itself.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MASK_SOURCE_H_
#define TENSORWRIGHT_RUNTIME_CORE_MASK_SOURCE_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/core/scheduler/request.h"
#include "runtime/core/scheduler/token_masks.h"

namespace tensorwright {

class MaskSource {
 public:
  virtual ~MaskSource() = default;
  // Returns the mask of a completion's token number `generated`, or null if it has not come. The core does
  // not ask again for a mask that it got. Throws nothing.
  virtual SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) = 0;
  // Appends to `tokens` the completion's tokens from number `generated` on whose masks have come and leave
  // one token alone, one after the other and at most `most`. Returns whether the first of these masks has
  // come. A mask can still be taken afterwards. A source that does not look ahead has nothing to say. Throws
  // std::bad_alloc.
  virtual bool forced_tokens(int64_t /*id*/, int32_t /*completion*/, int32_t /*generated*/, int32_t /*most*/,
                             std::vector<int32_t>* /*tokens*/) {
    return true;
  }
  // Waits for a mask. The core calls it in or between steps while masks are missing, with the events so far.
  // Returns true when a mask may have come, and false when the time `until` has come: completions without a
  // mask then sit out. It may call add, end, end_completion, end_all and expire of the core; the core gives
  // up the row of a completion that ends in it.
  virtual bool wait_for_masks(std::chrono::steady_clock::time_point until, std::vector<Event>* events) = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MASK_SOURCE_H_
