#include "runtime/core/executor/weight_reads.h"

#include "runtime/core/plan/op_table.h"

namespace tensorwright {

WeightReads weight_reads(const Plan& plan, const std::vector<std::unique_ptr<Operation>>& operations) {
  WeightReads reads;
  const size_t end = plan.logit_instructions();
  for (size_t i = 0; i < end; ++i) {
    const Instruction& instruction = plan.instructions[i];
    const ExpertUse use = operations[i]->expert_use();
    if (use.experts > 0) {
      reads.bytes += use.slots * use.bytes * use.experts / use.total;
      const std::string name = plan.name(instruction.name);
      const bool more = !use.starts && !reads.mixtures.empty() && reads.mixtures.back().name == name;
      if (more) {
        reads.mixtures.back().use.bytes += use.bytes;
      } else {
        reads.mixtures.push_back({name, use});
      }
      continue;
    }
    for (int32_t index : instruction.weight) {
      if (index < 0) continue;
      const WeightRecord& weight = plan.weights[static_cast<size_t>(index)];
      const bool one_row = instruction.op == static_cast<uint32_t>(Op::kEmbedding);
      reads.bytes += static_cast<int64_t>(one_row ? weight.bytes / weight.n : weight.bytes);
    }
  }
  return reads;
}

}  // namespace tensorwright
