// elementwise: y = program(x0 .. x3, w). The program is in the instruction: ints hold its bytes, floats its
// constants.
#include <cstring>

#include "plugins/elementwise/kernels.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {
namespace {

class Elementwise : public Operation {
 public:
  Elementwise(const Instruction& instruction, const OpContext& context)
      : y_(context.buffer(instruction.out[0])),
        w_(context.weight_floats(instruction.weight[0])),
        kernel_(choose("elementwise", elementwise_kernels(), context.isa)) {
    static_assert(sizeof instruction.ints == TW_EW_BYTES && sizeof instruction.floats == sizeof constants_);
    std::memcpy(code_, instruction.ints, sizeof code_);
    std::memcpy(constants_, instruction.floats, sizeof constants_);
    for (; inputs_ < TW_EW_INPUTS && instruction.in[inputs_] >= 0; ++inputs_) {
      x_[inputs_] = context.buffer(instruction.in[inputs_]);
    }
  }

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), int64_t{kWork} * y_.cols, [&](int32_t begin, int32_t end) {
      tw_elementwise_args args{};
      args.rows = end - begin;
      args.width = y_.cols;
      args.code = code_;
      args.constants = constants_;
      for (int i = 0; i < inputs_; ++i) {
        args.x[i] = x_[i].floats(view, begin);
        args.x_stride[i] = x_[i].stride;
      }
      args.w = w_;
      args.y_dtype = y_.dtype;
      args.y = y_.at(view, begin);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    return {rows * (inputs_ * y_.cols * int64_t{4} + y_.row_bytes()), rows * y_.cols * kWork};
  }

 private:
  static constexpr int kWork = 4;  // a program costs about as much as so many plain operations

  BufferRef x_[TW_EW_INPUTS], y_;
  int inputs_ = 0;
  const float* w_;
  uint8_t code_[TW_EW_BYTES];
  float constants_[TW_EW_CONSTANTS];
  tw_elementwise_fn kernel_;
};

}  // namespace

std::unique_ptr<Operation> make_elementwise(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Elementwise>(instruction, context);
}

}  // namespace tensorwright
