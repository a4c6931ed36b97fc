// The norm of columns that several ranks have.
//
// square_sums: y[i] = the sum of the squares of this rank's columns of run i, in 16 lanes. rms_norm_by_sums:
// y = x * 1 / sqrt(sums / size + eps) * (w + weight_offset), where `sums` are those of all ranks. A row is
// computed alone. The sums take no FMA, so that the compiler's code has the same bits on every processor.
#include "plugins/rms_norm/instruction.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tensorwright {
namespace {

// Where columns of a rank lie among the runs: calls body(run, first column, end) for each run that they
// touch.
template <typename Body>
void each_run(int32_t columns, int32_t offset, int32_t size, Body&& body) {
  for (int32_t at = 0; at < columns;) {
    const int32_t run = (offset + at) / size;
    const auto end = static_cast<int32_t>(std::min<int64_t>(columns, (int64_t{run} + 1) * size - offset));
    body(run, at, end);
    at = end;
  }
}

// Lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
float sum_of_squares(const float* x, int32_t count) {
  float lanes[TW_LANES] = {0};
  int32_t c = 0;
  for (; c + TW_LANES <= count; c += TW_LANES) {
    for (int32_t lane = 0; lane < TW_LANES; ++lane) lanes[lane] += x[c + lane] * x[c + lane];
  }
  for (int32_t lane = 0; c + lane < count; ++lane) lanes[lane] += x[c + lane] * x[c + lane];
  for (int step = TW_LANES / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

class SquareSums : public Operation {
 public:
  SquareSums(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        start_(instruction.ints[0]),
        columns_(instruction.ints[1]),
        offset_(instruction.ints[2]),
        size_(instruction.ints[3]) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, x_.rows(view), columns_, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const float* x = x_.floats(view, row) + start_;
        float* y = y_.floats(view, row);
        std::fill(y, y + y_.cols, 0.0f);
        each_run(columns_, offset_, size_, [&](int32_t run, int32_t from, int32_t to) {
          y[run] = sum_of_squares(x + from, to - from);
        });
      }
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {rows * (int64_t{columns_} * 4 + y_.row_bytes()), rows * columns_ * 2};
  }

 private:
  BufferRef x_, y_;
  int32_t start_, columns_, offset_, size_;
};

class RmsNormBySums : public Operation {
 public:
  RmsNormBySums(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        sums_(context.buffer(instruction.in[1])),
        y_(context.buffer(instruction.out[0])),
        w_(context.weight_floats(instruction.weight[0])),
        columns_(static_cast<int32_t>(context.weight(instruction.weight[0]).k)),
        start_(instruction.ints[0]),
        offset_(instruction.ints[1]),
        size_(instruction.ints[2]),
        first_(instruction.ints[3]),
        eps_(instruction.floats[0]),
        weight_offset_(instruction.floats[1]) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, x_.rows(view), x_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row)
        run_row(x_.floats(view, row), sums_.floats(view, row), y_.floats(view, row));
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {2 * rows * columns_ * 4, rows * columns_ * 3};
  }

 private:
  void run_row(const float* x, const float* sums, float* y) const {
    if (x != y) std::memcpy(y, x, static_cast<size_t>(x_.row_bytes()));
    each_run(columns_, offset_, size_, [&](int32_t run, int32_t from, int32_t to) {
      const float inverse = 1.0f / std::sqrt(sums[first_ + run] / static_cast<float>(size_) + eps_);
      for (int32_t c = from; c < to; ++c)
        y[start_ + c] = (x[start_ + c] * inverse) * (w_[c] + weight_offset_);
    });
  }

  BufferRef x_, sums_, y_;
  const float* w_;  // [columns]
  int32_t columns_, start_, offset_, size_, first_;
  float eps_, weight_offset_;
};

// Checks which columns of x a rank has, and returns how many runs of `size` columns end with them.
uint64_t require_columns(const InstructionCheck& c, int32_t start, uint64_t columns, int32_t offset,
                         int32_t size) {
  c.require(start >= 0 && offset >= 0, "start and offset must not be negative, are ", start, " and ", offset);
  c.require(size >= 1, "size must be positive, is ", size);
  const uint64_t end = static_cast<uint64_t>(start) + columns;
  c.require(end <= c.in(0)->cols, "the columns must end by column ", c.in(0)->cols, ", they end at ", end);
  const uint64_t last = static_cast<uint64_t>(offset) + columns;
  c.require(last <= (uint64_t{1} << 31) - 1, "the runs end at column ", last, ", which is too many");
  return (last + static_cast<uint64_t>(size) - 1) / static_cast<uint64_t>(size);
}

}  // namespace

void check_square_sums(const InstructionCheck& c) {
  const int32_t* ints = c.instruction.ints;
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_float32("y", c.out(0));
  c.require(ints[1] >= 0, "columns must not be negative, are ", ints[1]);
  const uint64_t runs = require_columns(c, ints[0], static_cast<uint64_t>(ints[1]), ints[2], ints[3]);
  c.require(ints[4] >= 1 && runs <= static_cast<uint64_t>(ints[4]), "runs must be at least ", runs, ", are ",
            ints[4]);
  c.require_cols("y", c.out(0), static_cast<uint64_t>(ints[4]));
}

void check_rms_norm_by_sums(const InstructionCheck& c) {
  const int32_t* ints = c.instruction.ints;
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_float32("sums", c.in(1));
  c.require_float32("y", c.out(0));
  c.require_cols("y", c.out(0), c.in(0)->cols);
  const uint64_t columns = c.weight(0)->k;
  c.require_raw("w", c.weight(0), columns);
  const uint64_t runs = require_columns(c, ints[0], columns, ints[1], ints[2]);
  c.require(ints[3] >= 0 && static_cast<uint64_t>(ints[3]) + runs <= c.in(1)->cols, "sums must have ", runs,
            " cols from ", ints[3], " on, has ", c.in(1)->cols);
  require_norm_floats(c);
}

std::unique_ptr<Operation> make_square_sums(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<SquareSums>(instruction, context);
}

std::unique_ptr<Operation> make_rms_norm_by_sums(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RmsNormBySums>(instruction, context);
}

}  // namespace tensorwright
