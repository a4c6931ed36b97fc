// The definition of a draw: of candidates with their weights in double, top_p, min_p and then the token, each
// sum taken in order.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_
#define TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensorwright {

// The sum of a row's weights: between these two, which are one where it is known to the bit.
struct Total {
  double low, high;
};

enum class Kept {
  yes,
  // All candidates stay, so others might: more are needed.
  all,
  // The total is not known well enough.
  unknown,
};

class Candidates {
 public:
  // Filled by the caller: scores (logits / temperature) by ascending place in the row, ids their places.
  std::vector<float> scores;  // [size]
  std::vector<int32_t> ids;   // [size]

  // The weights of all, from the largest score of the row; returns their sum.
  double weigh(float max);
  // Leaves those that top_p keeps, the likeliest first. `of`: how many tokens the total has; `more_wanted`:
  // whether tokens that are no candidates would be wanted, if all candidates stay. Where the answer is not
  // `yes` everything stays as it was.
  Kept keep_top_p(double top_p, const Total& total, size_t of, bool more_wanted);
  // Leaves those whose weight is at least min_p times the largest, which is 1.
  void keep_min_p(double min_p);
  // An id, by a number in [0, 1).
  int32_t draw(double uniform) const;

 private:
  size_t sort_more(size_t sorted);

  std::vector<double> weights_;  // [size]
  double total_ = 0;             // of weights_, in order
  std::vector<uint64_t> order_, spare_;
  std::vector<int32_t> kept_ids_;
  std::vector<double> kept_weights_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CANDIDATES_H_
