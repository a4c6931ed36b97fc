#include "runtime/core/ops/state_storage.h"

#include <algorithm>
#include <cstring>

namespace tensorwright {

StateStorage::StateStorage(const Plan& plan) {
  offsets_.reserve(plan.states.size());
  for (const StateRecord& state : plan.states) {
    offsets_.push_back(slot_bytes_);
    slot_bytes_ += state.bytes;  // at most 2^44 in all (plan.cc)
  }
}

void StateStorage::allocate(int32_t slots) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(slot_bytes_, static_cast<size_t>(slots), &bytes)) bytes = SIZE_MAX;
  memory_ = Arena(bytes, "the states of recurrent layers");
  slots_ = slots;
}

std::vector<MemoryPiece> StateStorage::pieces() const {
  std::vector<MemoryPiece> pieces;
  for (int32_t slot = 0; slot < slots_; ++slot)
    pieces.push_back({memory_.data() + slot_bytes_ * static_cast<size_t>(slot), slot_bytes_});
  return pieces;
}

void StateStorage::copy(int32_t from, int32_t to, ThreadTeam& team) {
  constexpr size_t kPart = size_t{1} << 20;
  if (from == to) return;
  const char* source = memory_.data() + slot_bytes_ * static_cast<size_t>(from);
  char* target = memory_.data() + slot_bytes_ * static_cast<size_t>(to);
  team.run(static_cast<int>((slot_bytes_ + kPart - 1) / kPart), [&](int part, int) {
    const size_t begin = kPart * static_cast<size_t>(part);
    std::memcpy(target + begin, source + begin, std::min(kPart, slot_bytes_ - begin));
  });
}

}  // namespace tensorwright
