// A one-layer float32 llama as the bytes of plan.bin and weights.bin, for tests of the plan reader and the
// executor.
#ifndef TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_
#define TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_

#include "tests/cpp/plan_writer.h"

namespace tw_test {

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

struct ToyPlan : PlanWriter {
  static constexpr uint32_t kHidden = 20, kHeads = 2, kHeadDim = 8, kInter = 24, kVocab = 37, kMaxLen = 1200;
  static constexpr uint32_t kBlock = 16, kQkv = 3 * kHeads * kHeadDim;

  std::vector<char> data;  // weights.bin
  Random random{1};

  ToyPlan();

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

  std::vector<std::byte> bytes() { return PlanWriter::bytes(data.size()); }
};

inline ToyPlan::ToyPlan() {
  constexpr auto kTokens = BufferKind::kTokens;
  constexpr auto kRows = BufferKind::kRows;
  header.vocab_size = kVocab;
  header.max_seq_len = kMaxLen;
  header.block_size = kBlock;
  header.cache_groups = 1;
  kv_layers.push_back({0, kHeads, kHeadDim, TW_F32, 0, 0, 0});
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

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_TOY_PLAN_H_
