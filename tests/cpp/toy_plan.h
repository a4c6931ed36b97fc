// A one-layer float32 llama as the bytes of plan.bin and weights.bin, for tests of the plan reader and the
// executor.
#ifndef TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_
#define TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "plugins/common/kernel_types.h"
#include "runtime/core/plan_format.h"

namespace tw_test {

using namespace tensorwright;

// The same numbers everywhere: a 64-bit linear congruential generator, its high bits.
struct Random {
  uint64_t state;
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  uint32_t below(uint32_t end) { return next() % end; }
  float uniform() { return static_cast<float>(next()) / static_cast<float>(1u << 30) - 1.0f; }
};

struct ToyPlan {
  static constexpr uint32_t kHidden = 20, kHeads = 2, kHeadDim = 8, kInter = 24, kVocab = 37, kMaxLen = 1200;
  static constexpr uint32_t kBlock = 16, kQkv = 3 * kHeads * kHeadDim;

  PlanHeader header{};
  std::vector<KvLayerRecord> kv_layers;
  std::vector<BufferRecord> buffers;
  std::vector<WeightRecord> weights;
  std::vector<Instruction> instructions;
  std::string names = std::string(1, '\0');
  std::vector<char> data;  // weights.bin
  Random random{1};

  ToyPlan();

  int32_t buffer(BufferKind kind, uint32_t cols) {
    uint64_t& arena = kind == BufferKind::kRows ? header.row_arena_bytes : header.token_arena_bytes;
    const uint32_t stride = (cols * 4 + 63) / 64 * 64;
    buffers.push_back({static_cast<uint32_t>(kind), TW_F32, cols, stride, arena});
    arena += stride;
    return static_cast<int32_t>(buffers.size()) - 1;
  }

  int32_t weight(WeightLayout layout, uint32_t n, uint32_t k, float scale) {
    data.resize((data.size() + 63) / 64 * 64);
    const uint64_t offset = data.size(), bytes = uint64_t{n} * k * 4;
    data.resize(offset + bytes);
    for (uint64_t at = offset; at < data.size(); at += 4) {
      const float value = random.uniform() * scale;
      std::memcpy(&data[at], &value, 4);
    }
    weights.push_back({TW_F32, static_cast<uint32_t>(layout), n, k, offset, bytes, 0, 0});
    return static_cast<int32_t>(weights.size()) - 1;
  }
  int32_t matrix(uint32_t n, uint32_t k) {
    return weight(WeightLayout::kPanels, (n + 15) / 16 * 16, k, 0.5f);
  }
  int32_t vector(uint32_t k) { return weight(WeightLayout::kRaw, 1, k, 1.0f); }

  struct Operands {
    std::vector<int32_t> in, out, weight, ints;
    std::vector<float> floats;
  };
  void op(Op op, const Operands& operands);

  // plan.bin, with the header's counts filled in.
  std::vector<std::byte> bytes();
};

inline void ToyPlan::op(Op op, const Operands& o) {
  Instruction i{static_cast<uint32_t>(op), 0, {-1, -1, -1, -1}, {-1, -1}, {-1, -1}, {}, {}};
  std::copy(o.in.begin(), o.in.end(), i.in);
  std::copy(o.out.begin(), o.out.end(), i.out);
  std::copy(o.weight.begin(), o.weight.end(), i.weight);
  std::copy(o.ints.begin(), o.ints.end(), i.ints);
  std::copy(o.floats.begin(), o.floats.end(), i.floats);
  instructions.push_back(i);
}

inline ToyPlan::ToyPlan() {
  constexpr auto kTokens = BufferKind::kTokens;
  constexpr auto kRows = BufferKind::kRows;
  std::memcpy(header.magic, kPlanMagic, sizeof(kPlanMagic));
  header.version = kPlanVersion;
  header.header_bytes = sizeof(PlanHeader);
  header.vocab_size = kVocab;
  header.max_seq_len = kMaxLen;
  header.block_size = kBlock;
  header.cache_groups = 1;
  kv_layers.push_back({0, kHeads, kHeadDim, TW_F32, 0, 0});
  const int32_t table = matrix(kVocab, kHidden);
  const int32_t x = buffer(kTokens, kHidden), a = buffer(kTokens, kHidden),
                angles = buffer(kTokens, kHeadDim);
  const int32_t qkv = buffer(kTokens, kQkv), q = buffer(kTokens, kHeads * kHeadDim);
  const int32_t y = buffer(kTokens, kHeads * kHeadDim), o = buffer(kTokens, kHidden),
                b = buffer(kTokens, kHidden);
  const int32_t h = buffer(kTokens, kInter), down = buffer(kTokens, kHidden);
  const int32_t last = buffer(kRows, kHidden), normed = buffer(kRows, kHidden),
                logits = buffer(kRows, kVocab);
  op(Op::kEmbedding, {{}, {x}, {table}, {}, {1.0f}});
  op(Op::kRotaryTable, {{}, {angles}, {vector(kHeadDim / 2)}, {}, {1.0f}});
  op(Op::kRmsNorm, {{x}, {a}, {vector(kHidden)}, {}, {1e-5f, 0.0f}});
  op(Op::kMatmul, {{a}, {qkv}, {matrix(kQkv, kHidden), vector(kQkv)}, {0, kQkv}, {}});
  op(Op::kRotaryKvWrite, {{qkv, angles}, {q}, {}, {0, kHeads, kHeadDim}, {}});
  op(Op::kPagedAttention, {{q}, {y}, {}, {0, kHeads}, {0.35f, 0.0f}});
  op(Op::kMatmul, {{y}, {o}, {matrix(kHidden, kHeads * kHeadDim)}, {0, kHidden}, {}});
  op(Op::kRmsNorm, {{o, x}, {b, x}, {vector(kHidden)}, {}, {1e-5f, 0.0f}});
  op(Op::kMatmul, {{b}, {h}, {matrix(2 * ((kInter + 15) / 16 * 16), kHidden)}, {1, kInter}, {}});
  op(Op::kMatmul, {{h, x}, {down}, {matrix(kHidden, kInter)}, {0, kHidden}, {}});
  op(Op::kGatherRows, {{down}, {last}, {}, {}, {}});
  op(Op::kRmsNorm, {{last}, {normed}, {vector(kHidden)}, {}, {1e-5f, 0.0f}});
  op(Op::kMatmul, {{normed}, {logits}, {table}, {0, kVocab}, {}});
  header.logits_buffer = logits;
}

inline std::vector<std::byte> ToyPlan::bytes() {
  header.kv_layers = static_cast<uint32_t>(kv_layers.size());
  header.buffers = static_cast<uint32_t>(buffers.size());
  header.weights = static_cast<uint32_t>(weights.size());
  header.instructions = static_cast<uint32_t>(instructions.size());
  header.names_bytes = static_cast<uint32_t>(names.size());
  header.weights_bytes = data.size();
  std::vector<std::byte> out(sizeof(header));
  const auto append = [&](const void* from, size_t bytes) {
    const size_t at = out.size();
    out.resize(at + bytes);
    std::memcpy(out.data() + at, from, bytes);
  };
  append(kv_layers.data(), kv_layers.size() * sizeof(KvLayerRecord));
  append(buffers.data(), buffers.size() * sizeof(BufferRecord));
  append(weights.data(), weights.size() * sizeof(WeightRecord));
  append(instructions.data(), instructions.size() * sizeof(Instruction));
  append(names.data(), names.size());
  header.file_bytes = out.size();
  std::memcpy(out.data(), &header, sizeof(header));
  return out;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_
