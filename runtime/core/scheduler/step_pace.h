// Keeps the time between two tokens of a completion within a goal: it says how many tokens of prompts a step
// may compute beside the completions that decode, and how many completions may run.
//
// A step that decodes d completions takes T(d), and each token of a prompt in it takes `slope` more. T is the
// mean of the steps without prompts, by d; the slope comes from the steps with prompts. The share of prompts
// is then (goal * margin - T(d)) / slope. Nobody knows the shape of the true curve, so the share at most
// doubles from one step to the next, and is solved again from what that step took: a secant method, which
// also follows prompts that cost more the longer they are. The margin is the estimate of a quantile (Robbins
// and Monro 1951): each step over the goal lowers it, each other step raises it by kRate / (1 - kRate) of
// that, so that it settles where a share kRate of the steps is over the goal.
//
// Where steps without prompts are over the goal, fewer completions may run, down to one; where the goal
// leaves room, one more. Prompts always get kLeastShare tokens of a step, so they end.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_PACE_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_PACE_H_

#include <array>
#include <cstdint>

namespace tensorwright {

// What the scheduler may plan; 0: no bound but the limits of a step.
struct Pace {
  int32_t prefill = 0;  // tokens of prompts in a step that decodes too
  int32_t places = 0;   // completions that run
};

// The shape of a step and its time.
struct PacedStep {
  int32_t decodes;     // completions that had a token before
  int32_t prefill;     // tokens of prompts, and of what is computed again
  double seconds = 0;  // from the end of the step before, or from its own begin after a pause
};

class StepPace {
 public:
  // goal: seconds between two tokens, 0: none. max_tokens: of a step.
  StepPace(double goal, int32_t max_tokens) : goal_(goal), max_tokens_(max_tokens) {}

  static constexpr int32_t kLeastShare = 16;
  static constexpr double kRate = 0.005;

  bool on() const { return goal_ > 0; }
  Pace pace() const { return on() ? Pace{share_, places_} : Pace{}; }
  void observe(const PacedStep& step);
  // Returns how many steps with decodes were over the goal.
  int64_t over() const { return over_; }

 private:
  double decode_seconds(int32_t decodes) const;
  void note_decodes(const PacedStep& step);
  void note_prefill(const PacedStep& step);
  void set_places(const PacedStep& step);

  const double goal_;
  const int32_t max_tokens_;
  double margin_ = 0.9;
  // [bits of d]: the mean time of the steps without prompts; 0: none yet.
  std::array<double, 32> decode_seconds_ = {};
  double slope_ = 0;  // seconds of a token of a prompt; 0: unknown
  int32_t share_ = kLeastShare;
  int32_t places_ = 0;
  int64_t over_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_PACE_H_
