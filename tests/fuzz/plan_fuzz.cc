// libFuzzer's entry for plans: cmake -DTENSORWRIGHT_FUZZ=ON with clang, then build/plan_fuzz CORPUS.
#include "tests/fuzz/plan_case.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw_fuzz::run_plan_case(data, size);
  return 0;
}
