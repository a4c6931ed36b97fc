// Defines a draw: from candidates with weights in double, it applies top_p, min_p, typical_p and XTC and then
// draws the token, and takes each sum in order.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_
#define TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tensorwright {

// The sum of a row's weights lies between these two numbers. They are equal where the sum is known to the
// bit.
struct Total {
  double low, high;
};

enum class Kept {
  yes,
  // All candidates stay, so tokens that are not candidates might stay too: more candidates are needed.
  all,
  // The total is not known well enough for an answer.
  unknown,
};

class Candidates {
 public:
  // The caller fills these two: the scores (logits / temperature) in ascending order of their places in the
  // row, and the places.
  std::vector<float> scores;  // [size]
  std::vector<int32_t> ids;   // [size]

  // Computes the weights of all candidates, relative to the largest score `max` of the row, and returns their
  // sum.
  double weigh(float max);
  // Leaves the candidates that top_p keeps, the likeliest first. total_tokens: the number of tokens in the
  // total. more_wanted: whether to return `all` if all candidates stay, because the row has tokens that are
  // not candidates. Unless it returns `yes`, nothing has changed.
  Kept keep_top_p(double top_p, const Total& total, size_t total_tokens, bool more_wanted);
  // Leaves the candidates whose weight is at least min_p times the largest weight, which is 1.
  void keep_min_p(double min_p);
  // Leaves the candidates whose information is nearest to the entropy, as many as reach `mass` of the weight
  // together, and those that are as near as the last of them (Meister et al. 2023, "Locally typical
  // sampling"; transformers' TypicalLogitsWarper). Their order stays. It passes over the candidates a few
  // times and sorts only those about as far as the last one.
  void keep_typical(double mass);
  // Leaves out all candidates with at least `threshold` of the weight but the least likely of these, of equal
  // ones that with the lowest id ("Exclude Top Choices", text-generation-webui #6335, llama.cpp). Their order
  // stays.
  void exclude_top(double threshold);
  // Returns the id that a number in [0, 1) draws.
  int32_t draw(double uniform) const;

 private:
  size_t sort_more(size_t sorted);
  // Leaves the candidates of those places for which keeps(place) is true.
  template <typename Keeps>
  void filter(const Keeps& keeps);
  // How far from the entropy the last candidate is that stays, and the bin of that distance.
  struct Nearest {
    int32_t bin;
    double distance;
  };
  double mean_score() const;
  double distance(size_t i, double mean) const;
  void bin_distances(double mean);
  std::optional<Nearest> guess_last_typical(double mass, double mean);
  double last_typical(double mass, double mean);

  std::vector<double> weights_;  // [size]
  double total_ = 0;             // the sum of weights_, taken in order
  double max_ = 0;               // the score that has the weight 1
  std::vector<uint64_t> order_, spare_;
  std::vector<int32_t> kept_ids_;
  std::vector<float> kept_scores_;
  std::vector<double> kept_weights_;
  std::vector<int32_t> bins_of_;                    // [size]: by distance from the entropy
  std::vector<double> sums_;                        // [kBins]: weights by their bins
  std::vector<std::pair<double, double>> nearest_;  // (distance, weight)

 protected:
  // How often keep_typical() had to sort all candidates. Tests check that this is seldom.
  int64_t typical_sorted_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_
