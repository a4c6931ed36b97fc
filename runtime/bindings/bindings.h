// Declares the bind functions of this folder, which module.cc calls, and what they share.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>

#include <cstdint>
#include <map>
#include <string>

#include "runtime/core/base/work_cut.h"
#include "runtime/core/executor/profile.h"

namespace tensorwright {

void bind_dispatch(nanobind::module_& m);    // the processor's features, and which kernels run
void bind_ceilings(nanobind::module_& m);    // the rates that the machine reaches at most
void bind_build(nanobind::module_& m);       // what a build does in C++
void bind_executor(nanobind::module_& m);    // one step at a time, for build-time accuracy and tests
void bind_cuda(nanobind::module_& m);        // engines of target cuda
void bind_plan(nanobind::module_& m);        // what the steps of a plan cost
void bind_adapter(nanobind::module_& m);     // the adapters of an engine
void bind_sampling(nanobind::module_& m);    // the sampling parameters of a request
void bind_ranks(nanobind::module_& m);       // the ranks of a parallel engine
void bind_engine(nanobind::module_& m);      // the served engine
void bind_simulation(nanobind::module_& m);  // engines on a virtual clock
void bind_step(nanobind::module_& m);        // the step that an executor written in Python runs

// A WorkCut by the names of its fields. work_cut() takes the defaults for those that are left out, and throws
// Error{"InvalidOptionError"} for another name, and for a number that is out of range.
using WorkCutValues = std::map<std::string, int64_t>;
WorkCutValues work_cut_values(const WorkCut& cut);
WorkCut work_cut(const WorkCutValues& values);

// Python types that _runtime.pyi describes.
using Facts = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;
using FactsList = nanobind::typed<nanobind::list, Facts>;
using ProfileTable = FactsList;
using ProfileSteps =
    nanobind::typed<nanobind::dict, nanobind::str, nanobind::typed<nanobind::dict, nanobind::str, int>>;

// profile_table returns a dict per instruction; phase is one of kPhaseNames, or "" for the sum over all
// phases. profile_steps returns a dict per phase.
ProfileTable profile_table(const Profile& profile, const std::string& phase);
ProfileSteps profile_steps(const Profile& profile);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_BINDINGS_H_
