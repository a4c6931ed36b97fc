// Decides how many tokens are proposed for each sequence of a step: as many as make the most tokens per
// second by what a step of that size costs on this machine (step_cost.h) and by how often the sequence's
// proposals were right lately. Where none pays, none are proposed, but for a probe now and then.
#ifndef TENSORWRIGHT_RUNTIME_CORE_LENGTH_POLICY_H_
#define TENSORWRIGHT_RUNTIME_CORE_LENGTH_POLICY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/core/speculation/proposer.h"
#include "runtime/core/speculation/step_cost.h"

namespace tensorwright {

// What is known of a sequence's proposals. Older tokens count less and less.
class Acceptance {
 public:
  // Counts a proposed token that was verified, because those before it were right. first: the proposal's
  // first.
  void observe(bool right, bool first);
  // Returns how likely it is that a proposed token is right, given that those before it are. `all`: what is
  // known of all sequences together, which stands in for what is not known of this one.
  double likelihood(const Acceptance& all) const;
  // Whether a sequence that gets no proposals for its likelihood shall get one, to see whether it has
  // changed. Call it once a step. The more probes were wrong in a row, the rarer they are.
  bool probes();

 private:
  double right_ = 0, tried_ = 0;
  int32_t waited_ = 0, pause_ = kFirstPause;
  static constexpr int32_t kFirstPause = 32, kLongestPause = 512;
};

// One sequence for which tokens may be proposed.
struct Candidate {
  Acceptance* acceptance;
  int32_t most;
  int32_t length = 0;  // the decision
  bool sampled = false;
};

class LengthPolicy {
 public:
  // fixed: the tokens to propose whatever they cost; 0: decide.
  explicit LengthPolicy(int32_t fixed) : fixed_(fixed) {}
  // Returns the seconds that one more proposed token for each of so many sequences takes.
  using Price = std::function<double(int32_t sequences)>;
  // Whether it is worth `start` seconds to begin with proposals for a sequence that has `left` tokens to go:
  // they must be less than what proposals are thought to save, or a hundredth of the time that is left. One
  // of `tried` starts that are not is tried, because nothing is learnt without.
  bool worth_starting(double start, int32_t left, int32_t tokens, const Price& price,
                      int32_t tried = kTriedSteps, bool sampled = false);
  // Each step asks again for a sequence that is refused.
  static constexpr int32_t kTriedSteps = 4096;
  // Sets the lengths. tokens: those of the step without proposals. room: the most tokens to propose in all.
  void decide(std::span<Candidate> candidates, int32_t tokens, int32_t room, const Price& price = nullptr);
  void observe_step(int32_t tokens, double seconds) { cost_.observe(tokens, seconds); }
  // Counts a verified token of a sequence, as Acceptance::observe does.
  // place: of the token in its proposal.
  void observe(Acceptance* acceptance, bool right, int32_t place, bool sampled = false);
  const StepCost& cost() const { return cost_; }

 private:
  double at_place(double likelihood, int32_t place) const;

  const int32_t fixed_;
  StepCost cost_;
  // Of all sequences that are answered greedily, and of all that are sampled: proposals are right far more
  // often for the first.
  std::array<Acceptance, 2> all_;
  // Of the tokens at each place of all proposals, and of all of them: heads, for example, are right less
  // often the further ahead they look.
  struct Share {
    double right = 0, tried = 0;
    void add(bool was_right);
  };
  std::array<Share, kMaxDraft> places_;
  Share overall_;
  int32_t refused_ = 0;  // starts since the last one that was tried
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_LENGTH_POLICY_H_
