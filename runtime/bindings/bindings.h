// One bind function per file of this folder, called by module.cc, and what they share.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/core/base/mapped_file.h"
#include "runtime/core/executor/profile.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

void bind_kernels(nanobind::module_& m);   // single kernels, for their tests and benchmarks
void bind_executor(nanobind::module_& m);  // one step at a time, for build-time accuracy and tests
void bind_sampling(nanobind::module_& m);  // sampling parameters, and the sampler alone for its tests
void bind_engine(nanobind::module_& m);    // the served engine
void bind_step(nanobind::module_& m);      // what an executor written in Python runs

LoadMode load_mode(const std::string& name);  // throws Error{"InvalidOptionError"}

using LogprobTuples = std::vector<std::tuple<int32_t, double, int32_t>>;
// The words of a one-dimensional uint32 array; `what` names it in the InvalidRequestError for anything else.
MaskWords to_mask(nanobind::handle bits, const char* what);

LogprobTuples to_tuples(const std::vector<TokenLogprob>& logprobs);

// What was measured: a dict per instruction (phase: one of kPhaseNames, or "" for the sum), and a dict per
// phase.
nanobind::list profile_table(const Profile& profile, const std::string& phase);
nanobind::dict profile_steps(const Profile& profile);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
