#include "runtime/core/executor/profile.h"

namespace tensorwright {
namespace {

void add_expert_rows(const ExpertUse& use, std::vector<int64_t>& sums) {
  if (!use.starts) return;
  sums.resize(static_cast<size_t>(use.experts));
  for (size_t expert = 0; expert < sums.size(); ++expert) {
    sums[expert] += (*use.starts)[expert + 1] - (*use.starts)[expert];
  }
}

}  // namespace

Phase phase_of(const Step& step) {
  bool one = false, several = false;
  for (size_t seq = 0; seq + 1 < step.seq_starts.size(); ++seq) {
    const int32_t tokens = step.seq_starts[seq + 1] - step.seq_starts[seq];
    one |= tokens == 1;
    several |= tokens > 1;
  }
  return !several ? Phase::kDecode : one ? Phase::kMixed : Phase::kPrefill;
}

Profile::Profile(const Plan& plan) {
  for (const Instruction& instruction : plan.instructions) {
    ProfileRow row;
    row.name = plan.name(instruction.name);
    row.op = op_name(instruction.op);
    row.arithmetic = plan.arithmetic(instruction);
    for (Sums& sums : phases_) sums.rows.push_back(row);
  }
}

void Profile::enable(bool on) {
  const std::lock_guard lock(mutex_);
  enabled_ = on;
  if (!on) return;
  for (Sums& sums : phases_) {
    sums.steps = {};
    for (ProfileRow& row : sums.rows) {
      row.calls = row.nanoseconds = 0;
      row.cost = {};
      row.expert_rows.clear();
    }
  }
}

void Profile::add(const Step& step, const std::vector<Measured>& measured, int64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  if (!enabled_) return;
  Sums& sums = phases_[static_cast<size_t>(phase_of(step))];
  ++sums.steps.steps;
  sums.steps.tokens += step.tokens();
  sums.steps.sequences += step.seqs();
  sums.steps.rows += step.rows();
  sums.steps.nanoseconds += nanoseconds;
  for (size_t i = 0; i < measured.size(); ++i) {
    ProfileRow& row = sums.rows[i];
    ++row.calls;
    row.nanoseconds += measured[i].nanoseconds;
    row.cost.bytes += measured[i].cost.bytes;
    row.cost.operations += measured[i].cost.operations;
    add_expert_rows(measured[i].experts, row.expert_rows);
  }
}

std::vector<ProfileRow> Profile::rows(Phase phase) const {
  const std::lock_guard lock(mutex_);
  return phases_[static_cast<size_t>(phase)].rows;
}

PhaseSums Profile::steps(Phase phase) const {
  const std::lock_guard lock(mutex_);
  return phases_[static_cast<size_t>(phase)].steps;
}

}  // namespace tensorwright
