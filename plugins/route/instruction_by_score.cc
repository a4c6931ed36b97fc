// route_by_score: chooses k experts for each row by their scores, and computes their weights from the scores.
// op.py has the definition.
#include <algorithm>
#include <cmath>
#include <limits>

#include "plugins/common/tanh.h"
#include "plugins/route/choose.h"
#include "plugins/route/layout.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

// Plans store these numbers, so new ones are only appended.
enum Score { kSoftmax = 0, kSigmoid = 1, kSparsemixer = 2, kScores = 3 };

struct Rule {
  int32_t k, normalise, score, by_scores, groups, group_limit, group_best, keeps_others;
  float scale, epsilon, least, jitter;
};

Rule rule_of(const Instruction& i) {
  return {i.ints[0], i.ints[1], i.ints[2],   i.ints[3],   i.ints[4],   i.ints[5],
          i.ints[6], i.ints[7], i.floats[0], i.floats[1], i.floats[2], i.floats[3]};
}

class RouteByScore : public Operation {
 public:
  RouteByScore(const Instruction& instruction, const OpContext& context)
      : logits_(context.buffer(instruction.in[0])),
        index_(context.buffer(instruction.out[0])),
        weights_(context.buffer(instruction.out[1])),
        bias_(context.weight_floats(instruction.weight[0])),
        expert_scales_(context.weight_floats(instruction.weight[1])),
        rule_(rule_of(instruction)) {}

  // For each row: what experts and groups are chosen by, and the places of the best of a group or the groups.
  size_t reserve(const StepLimits& limits, int) override {
    const int64_t rows = logits_.kind == static_cast<int>(BufferKind::kTokens) ? limits.tokens : limits.rows;
    return static_cast<size_t>(rows) * row_scratch() * sizeof(float);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(
        team, logits_.rows(view), int64_t{logits_.cols} * index_.cols, [&](int32_t begin, int32_t end) {
          for (int32_t row = begin; row < end; ++row) {
            auto* scratch = reinterpret_cast<float*>(view.scratch) + static_cast<size_t>(row) * row_scratch();
            auto* index = reinterpret_cast<int32_t*>(index_.at(view, row));
            float* weights = weights_.floats(view, row);
            route(logits_.floats(view, row), scratch, index, weights);
            if (expert_scales_) scale_by_expert(index, weights);
          }
        });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = logits_.rows(view);
    return {rows * (logits_.row_bytes() + index_.row_bytes() + weights_.row_bytes()),
            rows * logits_.cols * index_.cols};
  }

 private:
  size_t row_scratch() const {
    return 2 * static_cast<size_t>(logits_.cols) + 2 * static_cast<size_t>(rule_.groups);
  }

  // scratch: [cols] scores, [cols] what is chosen by, [groups] scores of groups, [groups] chosen groups.
  void route(const float* logits, float* scratch, int32_t* index, float* weights) const {
    if (rule_.score == kSparsemixer) return mix_sparsely(logits, scratch, index, weights);
    const int32_t experts = logits_.cols;
    float* choice = scratch + experts;
    write_scores(logits, scratch);
    const bool by_logits = !rule_.by_scores;
    for (int32_t e = 0; e < experts; ++e) {
      choice[e] = (by_logits ? logits[e] : scratch[e]) + (bias_ ? bias_[e] : 0.0f);
    }
    if (rule_.groups > 1) leave_out_groups(choice, choice + experts);
    choose_largest(choice, experts, rule_.k, index);
    write_weights(logits, scratch, index, weights);
  }

  void write_scores(const float* logits, float* scores) const {
    const int32_t experts = logits_.cols;
    if (rule_.score == kSigmoid) {
      for (int32_t e = 0; e < experts; ++e) scores[e] = tw_sigmoid(logits[e]);
      return;
    }
    float largest = logits[0], sum = 0.0f;
    for (int32_t e = 1; e < experts; ++e) largest = sort_key(logits[e]) > largest ? logits[e] : largest;
    for (int32_t e = 0; e < experts; ++e) sum += scores[e] = tw_exp(logits[e] - largest);
    for (int32_t e = 0; e < experts; ++e) scores[e] /= sum;
  }

  // Keeps the experts of the groups with the largest sums of their `group_best` best experts.
  void leave_out_groups(float* choice, float* sums) const {
    const int32_t size = logits_.cols / rule_.groups;
    auto* chosen = reinterpret_cast<int32_t*>(sums + rule_.groups);
    for (int32_t g = 0; g < rule_.groups; ++g) sums[g] = best_of(choice + g * size, size);
    choose_largest(sums, rule_.groups, rule_.group_limit, chosen);
    for (int32_t g = 0; g < rule_.groups; ++g) {
      if (std::find(chosen, chosen + rule_.group_limit, g) != chosen + rule_.group_limit) continue;
      const float left_out = rule_.keeps_others ? 0.0f : -std::numeric_limits<float>::infinity();
      std::fill(choice + g * size, choice + (g + 1) * size, left_out);
    }
  }

  // Returns the largest of some numbers, or the sum of the two largest.
  float best_of(const float* numbers, int32_t count) const {
    int32_t best[2];
    choose_largest(numbers, count, rule_.group_best, best);
    return rule_.group_best == 1 ? numbers[best[0]] : numbers[best[0]] + numbers[best[1]];
  }

  void write_weights(const float* logits, const float* scores, const int32_t* index, float* weights) const {
    float sum = 0.0f;
    if (rule_.score == kSoftmax && rule_.normalise && rule_.epsilon == 0.0f && rule_.least == 0.0f) {
      // The softmax of the chosen logits alone, which is as exact where they are far below the largest.
      float largest = logits[index[0]];
      for (int32_t s = 1; s < rule_.k; ++s) largest = std::max(largest, logits[index[s]]);
      for (int32_t s = 0; s < rule_.k; ++s) weights[s] = tw_exp(logits[index[s]] - largest);
    } else {
      for (int32_t s = 0; s < rule_.k; ++s) weights[s] = scores[index[s]];
    }
    for (int32_t s = 0; s < rule_.k; ++s) sum += weights[s];
    const float divisor = (sum < rule_.least ? rule_.least : sum) + rule_.epsilon;
    for (int32_t s = 0; s < rule_.k; ++s) {
      weights[s] = (rule_.normalise ? weights[s] / divisor : weights[s]) * rule_.scale;
    }
  }

  void scale_by_expert(const int32_t* index, float* weights) const {
    for (int32_t s = 0; s < rule_.k; ++s) weights[s] *= expert_scales_[index[s]];
  }

  // Chooses the experts one after the other. The weight of each is its share among those of the remaining
  // ones that are not far below it.
  void mix_sparsely(const float* logits, float* left, int32_t* index, float* weights) const {
    const int32_t experts = logits_.cols;
    std::copy(logits, logits + experts, left);
    for (int32_t s = 0; s < rule_.k; ++s) {
      choose_largest(left, experts, 1, index + s);
      const float largest = left[index[s]];
      float sum = 0.0f;
      for (int32_t e = 0; e < experts; ++e) {
        const float factor = std::max(std::fabs(logits[e]), largest);
        if (!((largest - logits[e]) / factor > 2.0f * rule_.jitter)) sum += tw_exp(left[e] - largest);
      }
      weights[s] = rule_.scale / sum;
      left[index[s]] = -std::numeric_limits<float>::infinity();
    }
  }

  BufferRef logits_, index_, weights_;
  const float* bias_;           // [cols of logits], or nullptr
  const float* expert_scales_;  // [cols of logits], or nullptr
  Rule rule_;
};

void check_flag(const InstructionCheck& c, const char* what, int32_t value) {
  c.require(value == 0 || value == 1, what, " must be 0 or 1, is ", value);
}

void check_groups(const InstructionCheck& c, const Rule& r, int32_t experts) {
  c.require(r.groups >= 1 && experts % r.groups == 0, "groups must divide the ", experts,
            " cols of logits, is ", r.groups);
  const int32_t size = experts / r.groups;
  c.require(r.group_limit >= 1 && r.group_limit <= r.groups, "group_limit must be 1 to ", r.groups, ", is ",
            r.group_limit);
  c.require(r.group_best >= 1 && r.group_best <= std::min(2, size), "group_best must be 1 to ",
            std::min(2, size), ", is ", r.group_best);
  c.require(r.keeps_others || r.k <= r.group_limit * size, "k must be at most ", r.group_limit * size,
            ", the experts of the chosen groups, is ", r.k);
  c.require(int64_t{r.groups} * r.group_limit <= TW_MAX_ROUTE_COMPARISONS,
            "groups times group_limit must be at most ", int{TW_MAX_ROUTE_COMPARISONS}, ", are ", r.groups,
            " times ", r.group_limit);
}

}  // namespace

void check_route_by_score(const InstructionCheck& c) {
  const Rule r = rule_of(c.instruction);
  c.require_same_kind();
  c.require_float32("logits", c.in(0));
  const uint32_t cols = c.in(0)->cols;
  c.require(r.k >= 1 && static_cast<uint32_t>(r.k) <= cols, "k must be 1 to the ", cols,
            " cols of logits, is ", r.k);
  c.require(uint64_t{cols} * static_cast<uint64_t>(r.k) <= TW_MAX_ROUTE_COMPARISONS,
            "the cols of logits times k must be at most ", int{TW_MAX_ROUTE_COMPARISONS}, ", are ", cols,
            " times ", r.k);
  check_flag(c, "normalise", r.normalise);
  c.require(r.score >= 0 && r.score < kScores, "score must be below ", int{kScores}, ", is ", r.score);
  check_flag(c, "by_scores", r.by_scores);
  check_flag(c, "keeps_others", r.keeps_others);
  check_groups(c, r, static_cast<int32_t>(cols));
  for (int i = 0; i < 4; ++i) {
    const float number = c.instruction.floats[i];
    c.require(std::isfinite(number) && number >= 0.0f, "floats[", i, "] must be finite and not negative, is ",
              number);
  }
  c.require_raw("bias", c.weight(0), cols);
  c.require_raw("expert_scales", c.weight(1), cols);
  c.require(c.out(0)->dtype == TW_I32, "index must be int32, has dtype ", c.out(0)->dtype);
  c.require_float32("weights", c.out(1));
  c.require_cols("index", c.out(0), static_cast<uint64_t>(r.k));
  c.require_cols("weights", c.out(1), static_cast<uint64_t>(r.k));
}

std::unique_ptr<Operation> make_route_by_score(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RouteByScore>(instruction, context);
}

}  // namespace tensorwright
