// One case of the plan's fuzzing: bytes make a plan (made_plan.h), may damage it, and make some steps. A plan
// that the reader takes runs on every instruction set that the processor has, with the same logits; one that
// it refuses is refused with an EngineError. Anything else ends the process, as does what a sanitizer or a
// guard page finds.
#ifndef TENSORWRIGHT_TESTS_FUZZ_PLAN_CASE_H_
#define TENSORWRIGHT_TESTS_FUZZ_PLAN_CASE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/core/base/error.h"
#include "runtime/core/executor/cpu_executor.h"
#include "tests/fuzz/made_plan.h"

namespace tw_fuzz {

[[noreturn]] inline void found(const std::string& what) {
  std::fprintf(stderr, "plan case: %s\n", what.c_str());
  std::abort();
}

// A file without a name, and a path to it.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("tensorwright", MFD_CLOEXEC)) {
    if (descriptor_ < 0) found("no memory for a file");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void write(const void* data, size_t bytes) const {
    if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, data, bytes, 0) != static_cast<ssize_t>(bytes))
      found("no memory for a file's bytes");
  }

 private:
  int descriptor_;
};

// weights.bin of so many bytes: read as float32 or as bfloat16 its numbers lie in (-1, 1), as 8 and 4 bits
// anywhere.
inline const MemoryFile& weights_file(uint64_t bytes) {
  static const auto make = [](uint64_t size) {
    auto* file = new MemoryFile;
    std::vector<uint16_t> halves(size / 2);
    uint64_t state = 1;
    for (uint16_t& half : halves) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      half = static_cast<uint16_t>((state >> 33 & 0x81ff) | 0x3e00);
    }
    file->write(halves.data(), size);
    return file;
  };
  static const MemoryFile* small = make(kSmallWeights);
  if (bytes == kSmallWeights) return *small;
  static const MemoryFile* large = make(kLargeWeights);
  return *large;
}

inline constexpr int32_t kMaxTokens = 40, kMaxSeqs = 3, kMaxContext = 1300;

// What a token costs: elements read, written and multiplied, each attention over all positions.
inline uint64_t work_of_a_token(const Plan& plan) {
  const auto context = static_cast<uint64_t>(std::min<int64_t>(plan.header.max_seq_len, kMaxContext));
  uint64_t work = 1;
  for (const Instruction& i : plan.instructions) {
    for (int32_t out : i.out) work += out < 0 ? 0 : plan.buffers[static_cast<size_t>(out)].cols;
    if (i.op == static_cast<uint32_t>(Op::kMatmul) || i.op == static_cast<uint32_t>(Op::kQuantizedMatmul)) {
      const WeightRecord& w = plan.weights[static_cast<size_t>(i.weight[0])];
      work += uint64_t{w.n} * w.k;
    }
    if (i.op == static_cast<uint32_t>(Op::kExperts)) {
      const uint64_t slots = plan.buffers[static_cast<size_t>(i.in[1])].cols;
      for (int matrix : {0, 1}) {
        const WeightRecord& w = plan.weights[static_cast<size_t>(i.weight[matrix])];
        work += slots * (uint64_t{w.n} / static_cast<uint64_t>(i.ints[0]) * w.k);
      }
    }
    if (i.op == static_cast<uint32_t>(Op::kPagedAttention))
      work += uint64_t{plan.buffers[static_cast<size_t>(i.out[0])].cols} * context;
  }
  return work;
}

// The most tokens of a step that the case may take, 0 for a plan that is too large to run.
inline int32_t affordable_tokens(const Plan& plan) {
  constexpr uint64_t kMaxWork = 60'000'000, kMaxBytes = uint64_t{256} << 20;
  uint64_t block_bytes = 0;
  for (const KvLayerRecord& layer : plan.kv_layers) block_bytes += plan.kv_block_bytes(layer);
  const uint64_t bytes = plan.header.token_arena_bytes + plan.header.row_arena_bytes;
  uint64_t state_bytes = 0;
  for (const StateRecord& state : plan.states) state_bytes += state.bytes;
  if (block_bytes > 4 * kMaxBytes || state_bytes > kMaxBytes || bytes > kMaxBytes) return 0;
  const uint64_t tokens =
      std::min(kMaxWork / work_of_a_token(plan), kMaxBytes / std::max<uint64_t>(bytes, 1));
  return static_cast<int32_t>(std::min<uint64_t>(tokens, kMaxTokens));
}

// Sequences of a plan's cache: each has blocks of its own, as many as its longest context needs.
class Steps {
 public:
  Steps(const ModelFacts& facts, int32_t max_tokens)
      : facts_(facts),
        max_tokens_(max_tokens),
        max_context_(std::min(facts.max_seq_len, kMaxContext)),
        blocks_((max_context_ - 1) / facts.block_size + 1) {}

  std::vector<int32_t> blocks() const {
    return std::vector<int32_t>(facts_.group_windows.size(), kMaxSeqs * blocks_ + 1);
  }

  Step make(Choices& c) const {
    Step step;
    step.seq_starts = {0};
    step.groups.resize(facts_.group_windows.size());
    for (GroupTables& group : step.groups) group.max_blocks = blocks_;
    const auto seqs = static_cast<int32_t>(c.between(1, kMaxSeqs));
    for (int32_t seq = 0; seq < seqs; ++seq) {
      add_sequence(step, seq, c);
      if (facts_.state_bytes > 0 && step.seqs() > seq) step.state_slots.push_back(kMaxSeqs - 1 - seq);
    }
    for (int32_t token = 0; token < step.tokens(); ++token) {
      if (c.one_in(2) || token + 1 == step.tokens()) step.logit_rows.push_back(token);
    }
    return step;
  }

 private:
  void add_sequence(Step& step, int32_t seq, Choices& c) const {
    const int32_t room = std::min(max_tokens_ - step.tokens(), max_context_);
    if (room < 1) return;  // every sequence of a step has tokens
    const auto queries = static_cast<int32_t>(c.one_in(2) ? 1 + c.below(static_cast<uint32_t>(room)) : 1);
    const auto past = static_cast<uint32_t>(max_context_ - queries);
    const uint32_t wanted =
        c.of<uint32_t>({0, c.below(40), 511, 512, 500 + c.below(40), 1024 + c.below(200)});
    const int32_t context = static_cast<int32_t>(std::min(wanted, past)) + queries;
    for (GroupTables& group : step.groups) {
      for (int32_t i = 0; i < blocks_; ++i)
        group.block_tables.push_back(1 + seq * blocks_ + (blocks_ - 1 - i));
    }
    for (int32_t position = context - queries; position < context; ++position) {
      step.token_ids.push_back(static_cast<int32_t>(c.below(static_cast<uint32_t>(facts_.vocab_size))));
      step.positions.push_back(position);
      for (GroupTables& group : step.groups) {
        const auto entry = group.block_tables.end() - blocks_ + position / facts_.block_size;
        group.slots.push_back(*entry * facts_.block_size + position % facts_.block_size);
      }
    }
    step.seq_starts.push_back(step.tokens());
    step.context_lens.push_back(context);
    // Rows that choose what they see come in whole blocks.
    if (facts_.sparse_prefill > 0)
      step.prompt_lens.push_back((context - queries) % facts_.block_size == 0 ? context : 1);
  }

  const ModelFacts& facts_;
  const int32_t max_tokens_, max_context_, blocks_;
};

using Logits = std::vector<std::vector<float>>;  // [rows of all steps][vocabulary]

inline Logits run(const MemoryFile& plan, const MemoryFile& weights, const char* isa, int threads,
                  const std::vector<Step>& steps, const std::vector<int32_t>& blocks) {
  setenv("TENSORWRIGHT_ISA", isa, 1);
  CpuExecutor executor(plan.path(), weights.path(), {threads, LoadMode::map});
  executor.allocate(blocks, kMaxTokens, kMaxTokens, kMaxSeqs,
                    executor.facts().state_bytes > 0 ? kMaxSeqs : 0);
  Logits logits;
  for (const Step& step : steps) {
    const LogitRows rows = executor.run(step);
    for (int32_t row = 0; row < rows.rows; ++row) {
      const float* from = rows.data + row * rows.stride;
      logits.emplace_back(from, from + executor.facts().vocab_size);
    }
  }
  return logits;
}

// Rows with a number that is not finite say nothing: the sign of a NaN is nobody's promise.
inline void require_same(const Logits& a, const Logits& b, const char* isa) {
  for (size_t row = 0; row < a.size(); ++row) {
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::ranges::all_of(a[row], finite) && !std::ranges::all_of(b[row], finite)) continue;
    if (std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)) != 0)
      found(std::string("the logits of row ") + std::to_string(row) + " are others on " + isa);
  }
}

inline void damage(std::vector<std::byte>& bytes, Choices& c) {
  for (uint32_t i = c.one_in(2) ? c.below(4) : 0; i > 0; --i) {
    bytes[c.below(static_cast<uint32_t>(bytes.size()))] ^= static_cast<std::byte>(1u << c.below(8));
  }
}

// Whether the plan was taken and run.
inline bool run_plan_case(const uint8_t* data, size_t size) {
  // Its dot products are rounded in an order of their own.
  static const bool without = setenv("TENSORWRIGHT_CPU_WITHOUT", "avx512_bf16", 1) == 0;
  if (!without) found("no environment");
  Choices choices(data, size);
  MadePlan made(choices);
  if (!made.fits()) return false;
  std::vector<std::byte> bytes = made.bytes(made.weights_bytes());
  damage(bytes, choices);
  static const MemoryFile file;
  try {
    const Plan plan = Plan::parse(bytes);
    const int32_t tokens = affordable_tokens(plan);
    if (tokens == 0 || plan.header.weights_bytes != made.weights_bytes()) return false;
    const ModelFacts facts = plan.facts();
    const Steps sequences(facts, tokens);
    std::vector<Step> steps;
    for (uint32_t i = choices.between(1, 3); i > 0; --i) steps.push_back(sequences.make(choices));
    file.write(bytes.data(), bytes.size());
    const int threads = choices.one_in(16) ? 2 : 1;
    const MemoryFile& weights = weights_file(made.weights_bytes());
    const Logits expected = run(file, weights, "scalar", threads, steps, sequences.blocks());
    for (Isa isa : {Isa::avx2, Isa::avx512}) {
      const CpuFeatures& f = cpu_features();
      if (isa == Isa::avx512 ? !f.avx512 : !(f.avx2 && f.fma)) continue;
      require_same(expected, run(file, weights, isa_name(isa), threads, steps, sequences.blocks()),
                   isa_name(isa));
    }
    return true;
  } catch (const Error& error) {
    if (error.type() != "EngineError") found(error.type() + ": " + error.what());
    return false;
  }
}

}  // namespace tw_fuzz

#endif  // TENSORWRIGHT_TESTS_FUZZ_PLAN_CASE_H_
