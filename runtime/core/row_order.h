// top_p of a row of which it keeps thousands: the two places that count in the order of likelihood, found by
// sums of weights above bounds instead of a sort.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_
#define TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/logit_row.h"
#include "runtime/core/row_estimate.h"

namespace tensorwright {

// Holds scratch only.
class RowOrder {
 public:
  // The place of the token that the definition draws from those that top_p < 1 keeps, by a number in [0, 1);
  // none where the estimates leave it open.
  std::optional<int32_t> draw(const RowEstimate& estimate, double top_p, double uniform);

 private:
  // Some of the row's values. An empty `ids` stands for the places from 0 on.
  struct Part {
    std::span<const float> values;
    std::span<const int32_t> ids;
    double above = 0;  // weight of all likelier ones
    double sum = 0;    // of these
  };
  // The likeliest token with which the sum reaches what was asked for.
  struct Passed {
    int32_t id;
    double upto;  // the sum with it
  };

  void cut(const Part& part, std::span<const double> shares);
  float usable(float bound) const;
  Part narrow(const Part& part, double target, Collected* into);
  std::optional<Passed> pass(Part part, double target);
  std::optional<Passed> walk(const Part& part, double target);

  const RowEstimate* estimate_ = nullptr;
  double error_ = 0;                              // of a sum
  std::array<float, TW_ROW_BOUNDS> bounds_ = {};  // descending, the last one -inf
  std::array<double, TW_ROW_BOUNDS> sums_ = {};   // of the part's values above each
  Collected collected_[2];
  std::vector<float> sample_, scores_;
  std::vector<double> weights_;
  std::vector<uint64_t> order_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_ORDER_H_
