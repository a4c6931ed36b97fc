// Sorts the pairs (row, slot) of a step by the expert that the slot names.
#ifndef TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_PAIRS_H_
#define TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_PAIRS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/ops/op.h"

namespace tensorwright {

class InstructionCheck;

class SortedPairs {
 public:
  // index: the experts of each row, one for each slot. experts: how many have matrices here. identities: how
  // many numbers behind those of the experts stand for experts without matrices. Their pairs come last.
  // first, total: which experts of how many these are; 0 and 0 if they are all. A pair with an expert that is
  // not here is left out.
  SortedPairs(const BufferRef& index, int32_t experts, int32_t identities, int32_t first, int32_t total);

  // Takes memory for the largest step. Throws OutOfMemoryError if it has more pairs than 32 bits count.
  // Returns the number of pairs.
  int64_t reserve(const StepLimits& limits);

  // Sorts the pairs of a step, stably. The plan cannot say which numbers the step will hold, so they are
  // checked here. Throws EngineError for an expert that does not exist.
  void sort(const StepView& view);

  int32_t experts() const { return experts_; }
  int32_t total() const { return total_; }
  // How many pairs so many rows have that are not left out, if rows take all experts equally often.
  int64_t expected(int64_t rows) const { return rows * slots() * (experts_ + identities_) / total_; }
  int32_t slots() const { return index_.cols; }
  int32_t count() const { return starts_.back(); }
  // The first place of each expert's pairs, and the end; with identities, theirs and the end.
  const std::vector<int32_t>& starts() const { return starts_; }
  // The first place of the pairs of identities. It is count() if there are none.
  int32_t first_identity() const { return starts_[static_cast<size_t>(experts_)]; }
  // The pair at a place: row * slots + slot.
  int32_t pair(int32_t place) const { return pairs_[static_cast<size_t>(place)]; }
  int32_t row(int32_t place) const { return pair(place) / slots(); }
  int32_t slot(int32_t place) const { return pair(place) % slots(); }
  // The place of a pair, or -1 if it is left out.
  int32_t place(int32_t row, int32_t slot) const {
    return places_[static_cast<size_t>(row * slots() + slot)];
  }
  // The expert whose pairs have this place among them.
  int32_t expert(int32_t place) const;
  // How many experts the last step took.
  int64_t taken_experts() const { return taken_experts_; }

 private:
  BufferRef index_;
  int32_t experts_, identities_, first_, total_;
  std::vector<int32_t> pairs_, places_, starts_;
  int64_t taken_experts_ = 0;
};

// Adds up the slots of a row, in their order: y = sum over slots of weights[slot] * results[place of the
// slot], plus bias[expert] inside the weighting. A slot that is left out adds nothing. weights: nullptr for
// ones. bias: [experts, cols] or nullptr.
struct PaddedRows;
void add_slots(const SortedPairs& pairs, const PaddedRows& results, const float* weights, const float* bias,
               int32_t row, float* y, int32_t cols);

// Checks the number of experts and the buffer that names the experts of each row. first, total: as above.
void check_index(const InstructionCheck& c, int32_t identities, int32_t first, int32_t total);

// Checks the matrices of all experts. panels: of all of them together.
void check_expert_matrices(const InstructionCheck& c, const char* what, int weight, uint64_t panels,
                           uint64_t k);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_EXPERTS_INSTRUCTION_PAIRS_H_
