#include "runtime/core/profile.h"

namespace tensorwright {

Profile::Profile(const Plan& plan) {
  for (const Instruction& instruction : plan.instructions) {
    ProfileRow row;
    row.name = plan.name(instruction.name);
    row.op = op_name(instruction.op);
    rows_.push_back(std::move(row));
  }
}

void Profile::enable(bool on) {
  enabled_ = on;
  if (!on) return;
  for (ProfileRow& row : rows_) {
    row.calls = row.nanoseconds = 0;
    row.cost = {};
  }
}

void Profile::add(size_t instruction, int64_t nanoseconds, Cost cost) {
  ProfileRow& row = rows_[instruction];
  ++row.calls;
  row.nanoseconds += nanoseconds;
  row.cost.bytes += cost.bytes;
  row.cost.operations += cost.operations;
}

}  // namespace tensorwright
