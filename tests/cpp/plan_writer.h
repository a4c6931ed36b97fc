// The bytes of plan.bin and weights.bin, record by record, for tests of the plan reader and the executor.
#ifndef TENSORWRIGHT_TESTS_CPP_PLAN_WRITER_H_
#define TENSORWRIGHT_TESTS_CPP_PLAN_WRITER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "plugins/common/kernel_types.h"
#include "runtime/core/plan/plan_format.h"

namespace tw_test {

using namespace tensorwright;

struct PlanWriter {
  PlanHeader header{};
  std::vector<KvLayerRecord> kv_layers;
  std::vector<StateRecord> states;
  std::vector<BufferRecord> buffers;
  std::vector<WeightRecord> weights;
  std::vector<Instruction> instructions;
  std::string names = std::string(1, '\0');

  PlanWriter() {
    std::memcpy(header.magic, kPlanMagic, sizeof(kPlanMagic));
    header.version = kPlanVersion;
    header.header_bytes = sizeof(PlanHeader);
  }

  uint64_t& arena(BufferKind kind) {
    return kind == BufferKind::kRows ? header.row_arena_bytes : header.token_arena_bytes;
  }

  // In memory of its own, `spare` bytes longer than it must be.
  int32_t buffer(BufferKind kind, uint32_t cols, uint32_t dtype = TW_F32, uint32_t spare = 0) {
    const auto bytes = static_cast<uint32_t>(cols * tw_dtype_bytes(static_cast<int>(dtype)));
    const uint32_t stride = (bytes + spare + 63) / 64 * 64;
    buffers.push_back({static_cast<uint32_t>(kind), dtype, cols, stride, arena(kind)});
    arena(kind) += stride;
    return static_cast<int32_t>(buffers.size()) - 1;
  }

  struct Operands {
    std::vector<int32_t> in, out, weight, ints;
    std::vector<float> floats;
  };
  void op(Op op, const Operands& o) {
    Instruction i{static_cast<uint32_t>(op), 0, {-1, -1, -1, -1}, {-1, -1}, {-1, -1}, {}, {}};
    std::copy(o.in.begin(), o.in.end(), i.in);
    std::copy(o.out.begin(), o.out.end(), i.out);
    std::copy(o.weight.begin(), o.weight.end(), i.weight);
    std::copy(o.ints.begin(), o.ints.end(), i.ints);
    std::copy(o.floats.begin(), o.floats.end(), i.floats);
    instructions.push_back(i);
  }

  // plan.bin, with the header's counts filled in.
  std::vector<std::byte> bytes(uint64_t weights_bytes);
};

inline std::vector<std::byte> PlanWriter::bytes(uint64_t weights_bytes) {
  header.kv_layers = static_cast<uint32_t>(kv_layers.size());
  header.states = static_cast<uint32_t>(states.size());
  header.buffers = static_cast<uint32_t>(buffers.size());
  header.weights = static_cast<uint32_t>(weights.size());
  header.instructions = static_cast<uint32_t>(instructions.size());
  header.names_bytes = static_cast<uint32_t>(names.size());
  header.weights_bytes = weights_bytes;
  std::vector<std::byte> out(sizeof(header));
  const auto append = [&](const void* from, size_t size) {
    const size_t at = out.size();
    out.resize(at + size);
    if (size > 0) std::memcpy(out.data() + at, from, size);
  };
  append(kv_layers.data(), kv_layers.size() * sizeof(KvLayerRecord));
  append(states.data(), states.size() * sizeof(StateRecord));
  append(buffers.data(), buffers.size() * sizeof(BufferRecord));
  append(weights.data(), weights.size() * sizeof(WeightRecord));
  append(instructions.data(), instructions.size() * sizeof(Instruction));
  append(names.data(), names.size());
  header.file_bytes = out.size();
  std::memcpy(out.data(), &header, sizeof(header));
  return out;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_PLAN_WRITER_H_
