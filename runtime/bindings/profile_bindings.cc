// Profiles in Python, of an executor alone and of the served engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "runtime/bindings/bindings.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

std::vector<ProfileRow> sum_of_phases(const Profile& profile) {
  std::vector<ProfileRow> sums = profile.rows(Phase::kPrefill);
  for (Phase phase : {Phase::kDecode, Phase::kMixed}) {
    const std::vector<ProfileRow> rows = profile.rows(phase);
    for (size_t i = 0; i < rows.size(); ++i) {
      sums[i].calls += rows[i].calls;
      sums[i].nanoseconds += rows[i].nanoseconds;
      sums[i].cost.bytes += rows[i].cost.bytes;
      sums[i].cost.operations += rows[i].cost.operations;
      sums[i].expert_rows.resize(std::max(sums[i].expert_rows.size(), rows[i].expert_rows.size()));
      for (size_t expert = 0; expert < rows[i].expert_rows.size(); ++expert) {
        sums[i].expert_rows[expert] += rows[i].expert_rows[expert];
      }
    }
  }
  return sums;
}

std::vector<ProfileRow> rows_of(const Profile& profile, const std::string& phase) {
  if (phase.empty()) return sum_of_phases(profile);
  const auto* known = std::find(kPhaseNames.begin(), kPhaseNames.end(), phase);
  if (known == kPhaseNames.end()) {
    throw Error("InvalidOptionError",
                concat("profile_table: phase must be prefill, decode, mixed or empty, is '", phase, "'"));
  }
  return profile.rows(static_cast<Phase>(known - kPhaseNames.begin()));
}

}  // namespace

ProfileTable profile_table(const Profile& profile, const std::string& phase) {
  ProfileTable table;
  for (const ProfileRow& row : rows_of(profile, phase)) {
    nb::dict entry;
    entry["name"] = row.name;
    entry["op"] = row.op;
    entry["arithmetic"] = row.arithmetic;
    entry["calls"] = row.calls;
    entry["ns"] = row.nanoseconds;
    entry["bytes"] = row.cost.bytes;
    entry["ops"] = row.cost.operations;
    if (!row.expert_rows.empty()) entry["expert_rows"] = row.expert_rows;
    table.append(entry);
  }
  return table;
}

ProfileSteps profile_steps(const Profile& profile) {
  ProfileSteps phases;
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    const PhaseSums sums = profile.steps(static_cast<Phase>(i));
    nb::dict entry;
    entry["steps"] = sums.steps;
    entry["tokens"] = sums.tokens;
    entry["sequences"] = sums.sequences;
    entry["rows"] = sums.rows;
    entry["ns"] = sums.nanoseconds;
    phases[kPhaseNames[i]] = entry;
  }
  return phases;
}

}  // namespace tensorwright
