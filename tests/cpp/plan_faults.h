// What the plan reader says against a damaged plan.
#ifndef TENSORWRIGHT_TESTS_CPP_PLAN_FAULTS_H_
#define TENSORWRIGHT_TESTS_CPP_PLAN_FAULTS_H_

#include "runtime/core/base/error.h"
#include "runtime/core/plan/plan.h"
#include "tests/cpp/check.h"
#include "tests/cpp/toy_plan.h"

namespace tw_test {

// What parse() says against a plan that `damage` has changed; empty if it takes it.
template <typename Damage>
std::string fault_of(Damage&& damage) {
  ToyPlan toy;
  toy.bytes();  // fills in the counts and sizes
  damage(toy);
  try {
    Plan::parse(toy.bytes());
  } catch (const Error& error) {
    return error.type() == "EngineError" ? error.what() : error.type();
  }
  return "";
}

inline void check_says(const std::string& fault, const char* part) {
  const bool good = fault.find(part) != std::string::npos && fault.find("plan.bin: ") == 0 &&
                    fault.find("; rebuild the engine with build-engine") != std::string::npos;
  if (!good) fail(__FILE__, __LINE__, "expected \"" + std::string(part) + "\" in \"" + fault + "\"");
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_PLAN_FAULTS_H_
