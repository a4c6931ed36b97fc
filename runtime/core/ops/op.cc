#include "runtime/core/ops/op.h"

#include "runtime/core/base/concat.h"

namespace tensorwright {

BufferRef::BufferRef(const BufferRecord& record)
    : kind(static_cast<int>(record.kind)),
      dtype(static_cast<int>(record.dtype)),
      cols(static_cast<int32_t>(record.cols)),
      stride(static_cast<int64_t>(record.stride_bytes / tw_dtype_bytes(static_cast<int>(record.dtype)))),
      stride_bytes(record.stride_bytes),
      offset(record.offset) {}

std::unique_ptr<Operation> make_operation(const Instruction& instruction, const OpContext& context) {
  switch (static_cast<Op>(instruction.op)) {
    case Op::kEmbedding:
      return make_embedding(instruction, context);
    case Op::kRmsNorm:
      return make_rms_norm(instruction, context);
    case Op::kMatmul:
      return make_matmul(instruction, context);
    case Op::kRotaryTable:
      return make_rotary_table(instruction, context);
    case Op::kRotaryKvWrite:
      return make_rotary_kv_write(instruction, context);
    case Op::kPagedAttention:
      return make_paged_attention(instruction, context);
    case Op::kGatherRows:
      return make_gather_rows(instruction, context);
    case Op::kSwiglu:
      return make_swiglu(instruction, context);
    case Op::kAdd:
      return make_add(instruction, context);
    case Op::kRmsNormColumns:
      return make_rms_norm_columns(instruction, context);
    case Op::kQuantizedMatmul:
      return make_quantized_matmul(instruction, context);
    case Op::kElementwise:
      return make_elementwise(instruction, context);
    case Op::kLayerNorm:
      return make_layer_norm(instruction, context);
  }
  refuse_plan(concat("op ", instruction.op, " is unknown"));
}

}  // namespace tensorwright
