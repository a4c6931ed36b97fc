#include "runtime/core/ops/op.h"

#include "runtime/core/base/concat.h"
#include "runtime/core/plan/plan_check.h"

namespace tensorwright {

BufferRef::BufferRef(const BufferRecord& record)
    : kind(static_cast<int>(record.kind)),
      dtype(static_cast<int>(record.dtype)),
      cols(static_cast<int32_t>(record.cols)),
      stride(static_cast<int64_t>(record.stride_bytes / tw_dtype_bytes(static_cast<int>(record.dtype)))),
      stride_bytes(record.stride_bytes),
      offset(record.offset) {}

std::unique_ptr<Operation> make_operation(const Instruction& instruction, const OpContext& context) {
  if (const OpRow* row = find_op(instruction.op)) return row->make(instruction, context);
  refuse_plan(concat("op ", instruction.op, " is unknown"));
}

}  // namespace tensorwright
