// Draws with top_p from a row of which top_p keeps thousands of tokens. Two places in the order of likelihood
// count, the last token that stays and the drawn one; sums of weights above bounds find them without a sort.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_
#define TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/rows/logit_row.h"
#include "runtime/core/rows/row_estimate.h"

namespace tensorwright {

// The object holds scratch only.
class RowOrder {
 public:
  // Returns the place of the token that the definition draws, by a number in [0, 1), from the tokens that
  // top_p < 1 keeps; none where the estimates leave it open.
  std::optional<int32_t> draw(RowEstimate* estimate, double top_p, double uniform);

 protected:
  // The most values that a draw had to sort so far; they are few, except with ties. Tests check that.
  size_t max_sorted_ = 0;

 private:
  // Some of the row's values and their places in it.
  struct Part {
    std::span<const float> values;
    std::span<const int32_t> ids;
    double above = 0;  // the weight of all likelier values
    double sum = 0;    // the weight of these values
  };
  using Shares = std::array<double, TW_ROW_BOUNDS - 1>;
  // The bounds that cut a part into pieces.
  struct Cut {
    std::array<float, TW_ROW_BOUNDS> bounds = {};  // descending, the last one -inf
    std::array<double, TW_ROW_BOUNDS> sums = {};   // the weight of the part's values above each bound
  };
  // The likeliest token with which the sum reaches the target.
  struct Passed {
    int32_t id;
    double upto;  // the sum up to this token, with it
  };

  double total() const;
  double total_error() const;
  double sum_error() const;
  Part take_likeliest(double kept, double uniform);
  float guess_lowest(double kept);
  void cut_by_shares(const Part& part, Shares shares);
  void cut_evenly(const Part& part);
  void sum_above(std::span<const float> values);
  float usable(float bound) const;
  float usable_from(double score) const;
  Part narrow(const Part& part, double target, Collected* into);
  std::optional<Passed> pass(Part part, double target, double error);
  std::optional<Passed> walk(const Part& part, double target, double error);

  RowEstimate* estimate_ = nullptr;
  double guessed_ = 1;  // about the share of the total that likeliest_ has
  Cut cut_;
  Collected likeliest_;
  Collected collected_[2];
  std::vector<float> sample_, scores_;
  std::vector<double> weights_;
  std::vector<uint64_t> order_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_
