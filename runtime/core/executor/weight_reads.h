// Counts the bytes of weights that a step of one token reads.
#ifndef TENSORWRIGHT_RUNTIME_CORE_WEIGHT_READS_H_
#define TENSORWRIGHT_RUNTIME_CORE_WEIGHT_READS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

struct Mixture {
  std::string name;  // module path in the model
  ExpertUse use;
};

struct WeightReads {
  int64_t bytes = 0;
  std::vector<Mixture> mixtures;  // in the order of the plan
};

// Every weight counts whole, except that a table of embeddings counts one row, and a mixture the experts that
// a token takes. operations: those of the plan's instructions.
WeightReads weight_reads(const Plan& plan, const std::vector<std::unique_ptr<Operation>>& operations);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_WEIGHT_READS_H_
