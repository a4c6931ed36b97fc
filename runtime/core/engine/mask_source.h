// Where EngineCore gets the token masks of its guided completions. Engine is one, over a mailbox; a test's
// may answer by itself.
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
  // The mask of a completion's token number `generated`, null if it is not there. Once given, it is not asked
  // for again. Throws nothing.
  virtual SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) = 0;
  // Called in or between steps while masks are missing, with the events so far; returns when one may have
  // come. False: it is `until`, and who has no mask sits out. May call add, end, end_completion, end_all and
  // expire of the core: a row whose completion ends so is given up.
  virtual bool wait_for_masks(std::chrono::steady_clock::time_point until, std::vector<Event>* events) = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MASK_SOURCE_H_
