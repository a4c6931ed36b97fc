// Owns the memory of the recurrent layers' states: for each slot the states of all layers, one behind the
// other. A slot belongs to one sequence, or keeps the states that a prefix ends with.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STATE_STORAGE_H_
#define TENSORWRIGHT_RUNTIME_CORE_STATE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/base/arena.h"
#include "runtime/core/base/populate.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

class StateStorage {
 public:
  explicit StateStorage(const Plan& plan);

  // Throws Error{"OutOfMemoryError"}. What a slot holds at first is not defined.
  void allocate(int32_t slots);

  int32_t slots() const { return slots_; }  // 0 before allocate()
  // Returns a layer's state in a slot, aligned to 64 bytes. `layer` is the index of its StateRecord.
  char* at(size_t layer, int32_t slot) const {
    return memory_.data() + slot_bytes_ * static_cast<size_t>(slot) + offsets_[layer];
  }
  size_t slot_bytes() const { return slot_bytes_; }  // of all layers

  // Returns all memory in the order in which slots are given out.
  std::vector<MemoryPiece> pieces() const;

  // Copies the states of all layers, on all threads where they are large; both slots must be in range.
  void copy(int32_t from, int32_t to, ThreadTeam& team);

 private:
  std::vector<size_t> offsets_;  // [layers]: of the layer's state in a slot
  size_t slot_bytes_ = 0;
  int32_t slots_ = 0;
  Arena memory_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STATE_STORAGE_H_
