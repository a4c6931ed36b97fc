// experts_up and experts_down: the two halves of experts whose products have biases, or whose gate is not
// that of matmul's epilogues. What lies between them is a buffer: of each row, the inner rows of its slots
// side by side.
//
// A bias, a gate and a slot are computed for each row alone, in one order, so that a row's bits depend on no
// other row, as in instruction.cc.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/common/bf16.h"
#include "plugins/common/tanh.h"
#include "plugins/experts/instruction.h"
#include "plugins/experts/instruction_pairs.h"
#include "plugins/matmul/pack.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

// What is computed between the two products.
struct Gate {
  int activation;
  bool gated, squared, limits_activated;
  float slope, limit, up_offset;

  float activate(float x) const {
    const float y = activation == TW_SILU ? x / (1.0f + tw_exp(-slope * x)) : tw_activate(activation, x);
    return squared ? y * y : y;
  }
  // A comparison with NaN is false, so that NaN stays.
  float bounded(float x) const { return x > limit ? limit : x; }
  float operator()(float gate, float up) const {
    up = up > limit ? limit : up < -limit ? -limit : up;
    gate = limits_activated ? bounded(activate(gate)) : activate(bounded(gate));
    return gate * (up + up_offset);
  }
};

Gate gate_of(const Instruction& i) {
  return {i.ints[1], i.ints[2] != 0, i.ints[3] != 0, i.ints[4] != 0, i.floats[0], i.floats[1], i.floats[2]};
}

void store(void* row, int dtype, int32_t column, float value) {
  if (dtype == TW_BF16) {
    static_cast<uint16_t*>(row)[column] = tw_f32_to_bf16(value);
  } else {
    static_cast<float*>(row)[column] = value;
  }
}

float load(const void* row, int dtype, int32_t column) {
  return dtype == TW_BF16 ? tw_bf16_to_f32(static_cast<const uint16_t*>(row)[column])
                          : static_cast<const float*>(row)[column];
}

// Scratch of both halves: the rows of the pairs before the product and after it, then what the product needs.
struct Scratch {
  PaddedRows taken, results;
  char* product;
  int64_t bytes;
};

Scratch cut_scratch(char* data, int64_t pairs, int x_dtype, const GroupedProduct& product, int64_t cols) {
  Scratch s{{data, x_dtype, product.k()}, {nullptr, TW_F32, cols}, nullptr, 0};
  const int64_t results = pairs * s.taken.stride_bytes();
  const int64_t rest = results + pairs * s.results.stride_bytes();
  s.bytes = rest + product.scratch_bytes(pairs);
  if (data) s.results.data = data + results, s.product = data + rest;
  return s;
}

class ExpertsUp : public Operation {
 public:
  ExpertsUp(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        bias_(context.weight_floats(instruction.weight[1])),
        gate_(gate_of(instruction)),
        pairs_(context.buffer(instruction.in[1]), instruction.ints[0], 0, instruction.ints[5],
               instruction.ints[6]),
        inner_(y_.cols / pairs_.slots()),
        product_(make_product(context, instruction.weight[0], instruction.ints[0],
                              (gate_.gated ? 2 : 1) * panels_of(inner_) * TW_LANES, TW_EPILOGUE_NONE,
                              x_.dtype)),
        scaled_(instruction.in[2] >= 0) {
    if (scaled_) weights_ = context.buffer(instruction.in[2]);
  }

  size_t reserve(const StepLimits& limits, int) override {
    return static_cast<size_t>(scratch(nullptr, pairs_.reserve(limits)).bytes);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    pairs_.sort(view);
    if (x_.rows(view) == 0) return;
    const Scratch s = scratch(view.scratch, pairs_.count());
    split_rows(team, pairs_.count(), x_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t place = begin; place < end; ++place) take(view, place, s.taken);
    });
    product_.run(team, pairs_.starts(), s.taken, s.results, s.product);
    split_rows(team, pairs_.count(), 2 * inner_, [&](int32_t begin, int32_t end) {
      for (int32_t place = begin; place < end; ++place) finish(view, place, s.results);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {pairs_.taken_experts() * product_.matrix_bytes() + rows * (x_.row_bytes() + y_.row_bytes()),
            pairs_.expected(rows) * product_.operations()};
  }

  ExpertUse expert_use() const override {
    return {pairs_.experts(), pairs_.total(), pairs_.slots(), product_.matrix_bytes(), &pairs_.starts()};
  }

 private:
  Scratch scratch(char* data, int64_t pairs) const {
    return cut_scratch(data, pairs, x_.dtype, product_, product_.wide_cols());
  }

  void take(const StepView& view, int32_t place, const PaddedRows& taken) const {
    const char* x = x_.at(view, pairs_.row(place));
    if (!scaled_) {
      std::memcpy(taken.at(place), x, static_cast<size_t>(taken.row_bytes()));
      return;
    }
    const float weight = weights_.floats(view, pairs_.row(place))[pairs_.slot(place)];
    for (int32_t c = 0; c < x_.cols; ++c) store(taken.at(place), x_.dtype, c, weight * load(x, x_.dtype, c));
  }

  // Panels of gate and up take turns in a wide row.
  void finish(const StepView& view, int32_t place, const PaddedRows& wide) const {
    const auto* row = reinterpret_cast<const float*>(wide.at(place));
    const int32_t width = gate_.gated ? 2 * inner_ : inner_;
    const float* bias = bias_ ? bias_ + int64_t{pairs_.expert(place)} * width : nullptr;
    const auto at = [&](int32_t column, int32_t source) {
      return bias ? row[source] + bias[column] : row[source];
    };
    void* y = y_.at(view, pairs_.row(place));
    const int32_t first = pairs_.slot(place) * inner_;
    for (int32_t c = 0; c < inner_; ++c) {
      const int32_t panel = c / TW_LANES * 2 * TW_LANES + c % TW_LANES;
      const float value =
          gate_.gated ? gate_(at(c, panel), at(inner_ + c, panel + TW_LANES)) : gate_.activate(at(c, c));
      store(y, y_.dtype, first + c, value);
    }
  }

  BufferRef x_, weights_, y_;
  const float* bias_;  // [experts, 2 * inner], or [experts, inner] without a gate, or nullptr
  Gate gate_;
  SortedPairs pairs_;
  int32_t inner_;
  GroupedProduct product_;
  bool scaled_;
};

class ExpertsDown : public Operation {
 public:
  ExpertsDown(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        bias_(context.weight_floats(instruction.weight[1])),
        pairs_(context.buffer(instruction.in[1]), instruction.ints[0], 0, instruction.ints[1],
               instruction.ints[2]),
        product_(make_product(context, instruction.weight[0], instruction.ints[0], y_.cols, TW_EPILOGUE_NONE,
                              x_.dtype)),
        weighted_(instruction.in[2] >= 0) {
    if (weighted_) weights_ = context.buffer(instruction.in[2]);
  }

  size_t reserve(const StepLimits& limits, int) override {
    return static_cast<size_t>(scratch(nullptr, pairs_.reserve(limits)).bytes);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t rows = x_.rows(view);
    pairs_.sort(view);
    if (rows == 0) return;
    const Scratch s = scratch(view.scratch, pairs_.count());
    const int64_t bytes = s.taken.row_bytes();
    split_rows(team, pairs_.count(), product_.k(), [&](int32_t begin, int32_t end) {
      for (int32_t place = begin; place < end; ++place) {
        const char* x = x_.at(view, pairs_.row(place)) + pairs_.slot(place) * bytes;
        std::memcpy(s.taken.at(place), x, static_cast<size_t>(bytes));
      }
    });
    product_.run(team, pairs_.starts(), s.taken, s.results, s.product);
    split_rows(team, rows, int64_t{y_.cols} * pairs_.slots(), [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const float* weights = weighted_ ? weights_.floats(view, row) : nullptr;
        add_slots(pairs_, s.results, weights, bias_, row, y_.floats(view, row), y_.cols);
      }
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {pairs_.taken_experts() * product_.matrix_bytes() + rows * (x_.row_bytes() + y_.row_bytes()),
            pairs_.expected(rows) * product_.operations()};
  }

  // The other half counts the rows.
  ExpertUse expert_use() const override {
    return {pairs_.experts(), pairs_.total(), pairs_.slots(), product_.matrix_bytes(), nullptr};
  }

 private:
  Scratch scratch(char* data, int64_t pairs) const {
    return cut_scratch(data, pairs, x_.dtype, product_, y_.cols);
  }

  BufferRef x_, weights_, y_;
  const float* bias_;  // [experts, cols of y], or nullptr
  SortedPairs pairs_;
  GroupedProduct product_;
  bool weighted_;
};

// No size of scratch overflows then, for a step has less than 2^31 rows.
void check_widths(const InstructionCheck& c, uint64_t narrow, uint64_t wide) {
  c.require((narrow + wide) * c.in(1)->cols <= (uint64_t{1} << 28),
            "the cols of x and y are too many for the cols of index");
}

// Checks that a row has as many runs of the same width as `index` has cols. Returns the width.
uint64_t check_runs(const InstructionCheck& c, const char* what, const BufferRecord* rows) {
  const uint32_t slots = c.in(1)->cols;
  c.require(rows->cols % slots == 0, what, " must have a run of cols for each of the ", slots,
            " cols of index, has ", rows->cols);
  return rows->cols / slots;
}

}  // namespace

void check_experts_up(const InstructionCheck& c) {
  const Gate gate = gate_of(c.instruction);
  const BufferRecord *x = c.in(0), *y = c.out(0);
  check_index(c, 0, c.instruction.ints[5], c.instruction.ints[6]);
  c.require(gate.activation >= 0 && gate.activation < TW_ACTIVATIONS, "activation must be below ",
            int{TW_ACTIVATIONS}, ", is ", gate.activation);
  for (int i : {2, 3, 4}) {
    c.require(c.instruction.ints[i] == 0 || c.instruction.ints[i] == 1, "ints[", i, "] must be 0 or 1, is ",
              c.instruction.ints[i]);
  }
  c.require(std::isfinite(gate.slope) && std::isfinite(gate.up_offset), "slope and up_offset must be finite");
  c.require(gate.limit > 0.0f, "limit must be positive, is ", gate.limit);
  c.require(y->dtype == x->dtype, "y must have x's dtype ", x->dtype, ", has ", y->dtype);
  const uint64_t inner = check_runs(c, "y", y), halves = gate.gated ? 2 : 1;
  const uint64_t panels = halves * static_cast<uint64_t>(panels_of(static_cast<int64_t>(inner)));
  check_widths(c, x->cols, panels * TW_LANES);
  check_expert_matrices(c, "up", 0, static_cast<uint64_t>(c.instruction.ints[0]) * panels, x->cols);
  c.require_raw("bias", c.weight(1), static_cast<uint64_t>(c.instruction.ints[0]) * halves * inner);
}

std::unique_ptr<Operation> make_experts_up(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<ExpertsUp>(instruction, context);
}

void check_experts_down(const InstructionCheck& c) {
  const BufferRecord *x = c.in(0), *y = c.out(0);
  check_index(c, 0, c.instruction.ints[1], c.instruction.ints[2]);
  const uint64_t inner = check_runs(c, "x", x), experts = static_cast<uint64_t>(c.instruction.ints[0]);
  check_widths(c, inner, y->cols);
  c.require_float32("y", y);
  check_expert_matrices(c, "down", 0, experts * static_cast<uint64_t>(panels_of(y->cols)), inner);
  c.require_raw("bias", c.weight(1), experts * y->cols);
}

std::unique_ptr<Operation> make_experts_down(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<ExpertsDown>(instruction, context);
}

}  // namespace tensorwright
