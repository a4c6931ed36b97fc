// experts: y = sum over slots of weights[slot] * expert index[slot] of x. Experts whose numbers come behind
// those of the matrices are identities: they give x.
//
// The pairs (row, slot) of a step are sorted by expert, stably, and their rows of x are copied side by side,
// so that both products of an expert read its matrices once. A product gives a row the same bits in any
// company, and the slots of a row are summed in their own order: a row's bits depend on no other row.
#include "plugins/experts/instruction.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/experts/instruction_pairs.h"
#include "plugins/matmul/kernels.h"
#include "plugins/matmul/pack.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/quantized_matmul/layout.h"
#include "plugins/weight_only_matmul/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

GroupedProduct::GroupedProduct(const WeightRecord& w, const char* data, int32_t experts, int32_t n,
                               int32_t epilogue, int x_dtype, Isa isa)
    : data_(data),
      k_(static_cast<int32_t>(w.k)),
      n_(n),
      panels_(static_cast<int32_t>(w.n / TW_LANES / static_cast<uint32_t>(experts))),
      epilogue_(epilogue),
      group_(static_cast<int32_t>(w.group)),
      w_dtype_(static_cast<int>(w.dtype)),
      panel_bytes_(static_cast<int64_t>(w.bytes / (w.n / TW_LANES))),
      groups_(0),
      row_(0),
      tilings_(static_cast<size_t>(experts)),
      tasks_(static_cast<size_t>(experts) + 1) {
  if (!is_quantized(w)) {
    kernel_ = choose("matmul", matmul_kernels(x_dtype), isa);
    return;
  }
  if (keeps_activations(w)) {
    weight_only_kernel_ = choose("weight_only_matmul", weight_only_matmul_kernels(x_dtype), isa);
    return;
  }
  groups_ = tw_activation_groups(w_dtype_, k_, group_);
  row_ = tw_quantized_row(k_, group_);
  quantize_ = choose("quantize_rows", quantize_rows_kernels(), isa);
  quantized_kernel_ = choose("quantized_matmul", quantized_matmul_kernels(w_dtype_), isa);
}

int64_t GroupedProduct::scratch_bytes(int64_t rows) const {
  return rounds_x() ? align64(rows * row_) + 2 * align64(rows * groups_ * 4) : 0;
}

GroupedProduct::Quantized GroupedProduct::quantized(char* scratch, int64_t rows) const {
  char* scales = scratch + align64(rows * row_);
  char* sums = scales + align64(rows * groups_ * 4);
  return {reinterpret_cast<int8_t*>(scratch), reinterpret_cast<float*>(scales),
          reinterpret_cast<int32_t*>(sums)};
}

void GroupedProduct::quantize(ThreadTeam& team, const PaddedRows& x, int32_t rows,
                              const Quantized& to) const {
  split_rows(team, rows, x.cols, [&](int32_t begin, int32_t end) {
    const tw_quantize_rows_args args = {end - begin,
                                        k_,
                                        static_cast<int32_t>(row_ / groups_),
                                        x.dtype,
                                        x.at(begin),
                                        x.stride(),
                                        to.values + begin * row_,
                                        row_,
                                        to.scales + begin,
                                        to.sums + begin,
                                        rows,
                                        tw_sum_factor(w_dtype_)};
    quantize_(&args);
  });
}

void GroupedProduct::run(ThreadTeam& team, const std::vector<int32_t>& starts, const PaddedRows& x,
                         const PaddedRows& y, char* scratch) {
  const int32_t all = starts.back();
  const Quantized q = rounds_x() ? quantized(scratch, all) : Quantized{};
  if (rounds_x()) quantize(team, x, all, q);
  const int64_t x_row_bytes = rounds_x() ? row_ : x.row_bytes();
  tasks_[0] = 0;
  for (size_t expert = 0; expert < tilings_.size(); ++expert) {
    const int32_t rows = starts[expert + 1] - starts[expert];
    if (rows > 0)
      tilings_[expert] = tile_matmul(rows, panels_, x_row_bytes, panel_bytes_, team.threads(), team.cut());
    tasks_[expert + 1] = tasks_[expert] + (rows > 0 ? tilings_[expert].tasks() : 0);
  }
  team.run(tasks_.back(), [&](int task, int) {
    const auto after = std::upper_bound(tasks_.begin(), tasks_.end(), task);
    const auto expert = static_cast<size_t>(after - tasks_.begin()) - 1;
    run_tile(starts, expert, task - tasks_[expert], x, y, q);
  });
}

void GroupedProduct::run_tile(const std::vector<int32_t>& starts, size_t expert, int task,
                              const PaddedRows& x, const PaddedRows& y, const Quantized& q) const {
  const MatmulTiling& t = tilings_[expert];
  const int32_t first = starts[expert] + t.row(task), panel = t.panel(task);
  tw_matmul_args args{};
  args.rows = std::min(t.row_tile, starts[expert + 1] - first);
  args.k = k_;
  args.n = n_;
  args.panel_begin = panel;
  args.panel_end = std::min(panel + t.panel_block, panels_);
  args.epilogue = epilogue_;
  args.y_dtype = y.dtype;
  args.w = data_ + static_cast<int64_t>(expert) * matrix_bytes();
  args.y = y.at(first);
  args.y_stride = y.stride();
  if (!rounds_x()) {
    args.x = x.at(first);
    args.x_stride = x.stride();
    if (weight_only_kernel_ != nullptr) {
      const tw_weight_only_matmul_args more = {args, w_dtype_, group_};
      weight_only_kernel_(&more);
    } else {
      kernel_(&args);
    }
    return;
  }
  args.x = q.values + first * row_;
  args.x_stride = row_;
  const tw_quantized_matmul_args more = {args, group_, q.scales + first, q.sums + first, starts.back()};
  quantized_kernel_(&more);
}

GroupedProduct make_product(const OpContext& context, int32_t weight, int32_t experts, int32_t n,
                            int32_t epilogue, int x_dtype) {
  return GroupedProduct(context.weight(weight), context.weight_data(weight), experts, n, epilogue, x_dtype,
                        context.isa);
}

namespace {

// Copies a row, in float32 or bfloat16, to a row of float32.
void copy_floats(const PaddedRows& from, const PaddedRows& to, int32_t row) {
  auto* y = reinterpret_cast<float*>(to.at(row));
  if (from.dtype == TW_F32) {
    std::memcpy(y, from.at(row), static_cast<size_t>(from.row_bytes()));
    return;
  }
  const auto* x = reinterpret_cast<const uint16_t*>(from.at(row));
  for (int64_t c = 0; c < from.cols; ++c) y[c] = tw_bf16_to_f32(x[c]);
}

class Experts : public Operation {
 public:
  Experts(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        weights_(context.buffer(instruction.in[2])),
        y_(context.buffer(instruction.out[0])),
        experts_(instruction.ints[0]),
        pairs_(context.buffer(instruction.in[1]), experts_, instruction.ints[2], instruction.ints[3],
               instruction.ints[4]),
        down_(make_product(context, instruction.weight[1], experts_, y_.cols, TW_EPILOGUE_NONE, x_.dtype)),
        gate_up_(make_product(context, instruction.weight[0], experts_, down_.k(),
                              TW_EPILOGUE_GATED + instruction.ints[1], x_.dtype)) {}

  size_t reserve(const StepLimits& limits, int) override {
    return static_cast<size_t>(scratch(nullptr, pairs_.reserve(limits)).bytes);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t rows = x_.rows(view);
    pairs_.sort(view);
    if (rows == 0) return;
    const int32_t pairs = pairs_.count();
    const Scratch s = scratch(view.scratch, pairs);
    split_rows(team, pairs, x_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t i = begin; i < end; ++i) {
        std::memcpy(s.taken.at(i), x_.at(view, pairs_.row(i)), static_cast<size_t>(s.taken.row_bytes()));
      }
    });
    gate_up_.run(team, pairs_.starts(), s.taken, s.inner, s.product);
    down_.run(team, pairs_.starts(), s.inner, s.results, s.product);
    const int32_t first = pairs_.first_identity();
    split_rows(team, pairs - first, x_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t i = first + begin; i < first + end; ++i) copy_floats(s.taken, s.results, i);
    });
    split_rows(team, rows, int64_t{y_.cols} * pairs_.slots(), [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        add_slots(pairs_, s.results, weights_.floats(view, row), nullptr, row, y_.floats(view, row), y_.cols);
      }
    });
  }

  // The matrices of the experts that the last step took were read, and no others.
  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view), pairs = pairs_.expected(rows);
    return {pairs_.taken_experts() * (gate_up_.matrix_bytes() + down_.matrix_bytes()) +
                rows * (x_.row_bytes() + y_.row_bytes()),
            pairs * (gate_up_.operations() + down_.operations())};
  }

  ExpertUse expert_use() const override {
    return {experts_, pairs_.total(), pairs_.slots(), gate_up_.matrix_bytes() + down_.matrix_bytes(),
            &pairs_.starts()};
  }

 private:
  // The rows of the pairs in scratch: of x, between the two products, and after them; then what a product
  // needs for itself. bytes: what all take.
  struct Scratch {
    PaddedRows taken, inner, results;
    char* product;
    int64_t bytes;
  };

  Scratch scratch(char* data, int64_t pairs) const {
    Scratch s{
        {data, x_.dtype, x_.cols}, {nullptr, x_.dtype, down_.k()}, {nullptr, TW_F32, y_.cols}, nullptr, 0};
    const int64_t inner = pairs * s.taken.stride_bytes();
    const int64_t results = inner + pairs * s.inner.stride_bytes();
    const int64_t product = results + pairs * s.results.stride_bytes();
    s.bytes = product + std::max(gate_up_.scratch_bytes(pairs), down_.scratch_bytes(pairs));
    if (data) s.inner.data = data + inner, s.results.data = data + results, s.product = data + product;
    return s;
  }

  BufferRef x_, weights_, y_;
  int32_t experts_;
  SortedPairs pairs_;
  GroupedProduct down_, gate_up_;
};

}  // namespace

void check_experts(const InstructionCheck& c) {
  const int32_t experts = c.instruction.ints[0], activation = c.instruction.ints[1];
  const BufferRecord *x = c.in(0), *index = c.in(1);
  const WeightRecord* down = c.weight(1);
  check_index(c, c.instruction.ints[2], c.instruction.ints[3], c.instruction.ints[4]);
  c.require(activation >= 0 && activation < TW_ACTIVATIONS, "activation must be below ", int{TW_ACTIVATIONS},
            ", is ", activation);
  c.require_float32("y", c.out(0));
  c.require_cols("y", c.out(0), x->cols);
  // No size of scratch overflows then, for a step has less than 2^31 rows.
  c.require((uint64_t{x->cols} * 2 + down->k) * index->cols <= (uint64_t{1} << 28),
            "the cols of x and of down are too many for the cols of index");
  const auto count = static_cast<uint64_t>(experts);
  check_expert_matrices(c, "gate_up", 0, 2 * count * static_cast<uint64_t>(panels_of(down->k)), x->cols);
  check_expert_matrices(c, "down", 1, count * static_cast<uint64_t>(panels_of(x->cols)), down->k);
}

std::unique_ptr<Operation> make_experts(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Experts>(instruction, context);
}

}  // namespace tensorwright
