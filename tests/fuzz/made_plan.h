// A plan whose records agree with each other, made of decisions: which ops, on which buffers, in which
// shapes, types and places. It knows the rules of plan_format.h and no bounds: those are for the plan's
// reader to draw.
#ifndef TENSORWRIGHT_TESTS_FUZZ_MADE_PLAN_H_
#define TENSORWRIGHT_TESTS_FUZZ_MADE_PLAN_H_

#include <algorithm>
#include <functional>
#include <optional>

#include "plugins/elementwise/kernel.h"
#include "plugins/embedding/kernel.h"
#include "plugins/matmul/kernel.h"
#include "plugins/quantized_matmul/layout.h"
#include "runtime/core/plan/plan_check.h"
#include "tests/cpp/plan_writer.h"
#include "tests/fuzz/choices.h"

namespace tw_fuzz {

using namespace tensorwright;

// Bytes of weights.bin: some of the plans have large matrices. All plans of a size share one file.
inline constexpr uint64_t kSmallWeights = uint64_t{1} << 20, kLargeWeights = uint64_t{64} << 20;

class MadePlan : public tw_test::PlanWriter {
 public:
  explicit MadePlan(Choices& choices) : c_(choices), large_(choices.one_in(16)) {
    make_header();
    for (uint32_t layers = c_.below(4); layers > 0; --layers) add_kv_layer();
    embedding();
    for (uint32_t ops = c_.below(24); ops > 0 && !c_.empty(); --ops) add_op();
    logits();
  }

  uint64_t weights_bytes() const { return large_ ? kLargeWeights : kSmallWeights; }
  // False: a matrix was too large for the file.
  bool fits() const { return fits_; }

 private:
  using Kind = BufferKind;
  static constexpr int32_t kNone = -1;

  void make_header() {
    header.vocab_size = c_.of<uint32_t>({37, 1, 16, 17, 64, 300});
    header.max_seq_len = c_.of<uint32_t>({1200, 20, 64, 513, 1024});
    header.block_size = c_.of<uint32_t>({16, 32, 64, 128, 256, 512});
    header.act_dtype = c_.below(2);
    if (header.vocab_size == 17)
      states = {{64}, {192}};  // takes no choice, so old inputs make what they made
  }

  uint32_t width() {
    switch (c_.below(large_ ? 4 : 3)) {
      case 0:
        return c_.between(1, 40);
      case 1:
        return c_.of<uint32_t>({15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 95, 96, 97, 127, 128, 129});
      case 2:
        return c_.between(1, 300);
      default:
        return c_.of<uint32_t>({511, 512, 513, 1000, 1024, 1025, 2048, 4097});
    }
  }

  uint32_t head_dim() {
    if (large_ && c_.one_in(2))
      return c_.of<uint32_t>({255, 256, 512, 1023, 1024, 1025, 4096, 4097, 400000, 20000});
    if (c_.one_in(4)) return c_.between(1, 80);
    return c_.of<uint32_t>({8, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 96, 128});
  }

  // A layer joins a group, with its window, or begins one. Windows of odd groups are chunked.
  void add_kv_layer() {
    const uint32_t group = c_.below(header.cache_groups + 1);
    if (group == header.cache_groups) {
      const uint32_t window = c_.of<uint32_t>({0, 1, 15, 16, 17, 100, 600});
      windows_.push_back(window);
      chunked_.push_back(window > 0 && group % 2 == 1);
      const bool slides = window > 0 && group % 2 == 0;
      sink_tokens_.push_back(slides ? c_.of<uint32_t>({0, 1, 4, 16, 33, 512}) : 0);
      ++header.cache_groups;
    }
    const uint32_t integers = kv_layers.size() % 2 == 1 ? TW_I4 : TW_I8;
    const auto dtype = static_cast<uint16_t>(c_.one_in(3) ? integers : header.act_dtype);
    kv_layers.push_back({group, c_.between(1, 3), head_dim(), dtype, uint16_t{chunked_[group]},
                         windows_[group], 0, sink_tokens_[group]});
  }

  // --- operands

  const BufferRecord& at(int32_t buffer) const { return buffers[static_cast<size_t>(buffer)]; }
  Kind kind(int32_t buffer) const { return static_cast<Kind>(at(buffer).kind); }

  // One of the written buffers that `wanted` admits, the newest first; kNone if there is none.
  template <typename Wanted>
  int32_t find(Wanted&& wanted) {
    std::vector<int32_t> good;
    for (size_t i = written_.size(); i-- > 0;) {
      if (wanted(at(written_[i]))) good.push_back(written_[i]);
    }
    if (good.empty()) return kNone;
    return good[c_.below(static_cast<uint32_t>(good.size()))];
  }
  int32_t find_floats(std::optional<Kind> kind, std::optional<uint32_t> cols = {}) {
    return find([&](const BufferRecord& b) {
      return b.dtype == TW_F32 && (!kind || b.kind == static_cast<uint32_t>(*kind)) &&
             (!cols || b.cols == *cols);
    });
  }
  int32_t find_any() {
    return find([](const BufferRecord& b) { return b.dtype != TW_I32; });
  }
  int32_t find_tokens() {
    return find([](const BufferRecord& b) {
      return b.kind == static_cast<uint32_t>(Kind::kTokens) && b.dtype != TW_I32;
    });
  }
  // Sometimes one, sometimes none.
  template <typename Find>
  int32_t maybe(Find&& find) {
    return c_.one_in(2) ? find() : kNone;
  }
  uint32_t float_dtype() { return c_.one_in(3) ? TW_BF16 : TW_F32; }

  // Memory for an output of the op in the making, whose inputs and earlier outputs are `others`: new, or an
  // earlier buffer's, or an input's own where the op may work in place.
  int32_t output(Kind kind, uint32_t cols, uint32_t dtype, const std::vector<int32_t>& others,
                 int32_t in_place = kNone) {
    const int32_t made = buffer(kind, cols, dtype, c_.one_in(3) ? 64 * c_.below(3) : 0);
    BufferRecord& record = buffers.back();
    if (in_place != kNone && at(in_place).dtype == dtype &&
        at(in_place).stride_bytes >= cols * tw_dtype_bytes(static_cast<int>(dtype)) && c_.one_in(2)) {
      arena(kind) -= record.stride_bytes;
      record.offset = at(in_place).offset, record.stride_bytes = at(in_place).stride_bytes;
      return made;
    }
    if (c_.one_in(3)) move_into_the_arena(record, others);
    return made;
  }

  void move_into_the_arena(BufferRecord& record, const std::vector<int32_t>& others) {
    const auto kind = static_cast<Kind>(record.kind);
    const uint64_t offset = uint64_t{64} * c_.below(static_cast<uint32_t>(record.offset / 64 + 1));
    for (int32_t other : others) {
      if (other == kNone || at(other).kind != record.kind) continue;
      const BufferRecord& b = at(other);
      if (b.offset < offset + record.stride_bytes && offset < b.offset + b.stride_bytes) return;
    }
    arena(kind) = std::max(record.offset, offset + record.stride_bytes);
    record.offset = offset;
  }

  // Anywhere in the file; often where it ends.
  int32_t weight(WeightLayout layout, uint32_t dtype, uint64_t n, uint64_t k, uint32_t group = 0) {
    uint64_t bytes = n * k * tw_dtype_bytes(static_cast<int>(dtype));
    if (layout == WeightLayout::kPanels) bytes = n / TW_LANES * tw_panel_bytes(static_cast<int>(dtype), k);
    if (layout == WeightLayout::kQuantized || layout == WeightLayout::kWeightOnly) {
      bytes = n / TW_LANES *
              static_cast<uint64_t>(
                  tw_quantized_panel_bytes(static_cast<int>(dtype), static_cast<int64_t>(k), group));
    }
    uint64_t offset = 0;
    if (bytes > weights_bytes()) {
      fits_ = false;
    } else {
      const uint64_t room = (weights_bytes() - bytes) / 64;
      offset = 64 * (c_.one_in(2) ? room : std::min<uint64_t>(room, c_.below(1000)));
    }
    weights.push_back({dtype, static_cast<uint32_t>(layout), static_cast<uint32_t>(n),
                       static_cast<uint32_t>(k), offset, bytes, 0, group});
    return static_cast<int32_t>(weights.size()) - 1;
  }
  int32_t vector(uint64_t k) { return weight(WeightLayout::kRaw, TW_F32, 1, k); }
  int32_t maybe_vector(uint64_t k) { return c_.one_in(2) ? vector(k) : kNone; }
  int32_t quantized(uint64_t n, uint64_t k) {
    const auto dtype =
        c_.of<uint32_t>({TW_I8,     TW_I4,     TW_MXFP4,  TW_U8,   TW_U4,        TW_I8_F16,   TW_I4_F16,
                         TW_U8_F16, TW_U4_F16, TW_I3,     TW_I2,   TW_U3,        TW_U2,       TW_I3_F16,
                         TW_I2_F16, TW_U3_F16, TW_U2_F16, TW_W4A8, TW_I8_SPARSE, TW_I4_SPARSE});
    const uint32_t group = dtype == TW_I8      ? c_.of<uint32_t>({0, 32, 64, 128})
                           : dtype == TW_MXFP4 ? 32
                                               : c_.of<uint32_t>({32, 64, 128});
    return weight(WeightLayout::kQuantized, dtype, n, k, group);
  }
  // A matrix beside which activations are not rounded.
  int32_t weight_only(uint64_t n, uint64_t k) {
    const auto dtype = c_.of<uint32_t>({TW_FP8, TW_I8, TW_I4, TW_U8_F16});
    const uint32_t group = dtype == TW_FP8 ? c_.of<uint32_t>({0, 32, 128}) : c_.of<uint32_t>({32, 64, 128});
    return weight(WeightLayout::kWeightOnly, dtype, n, k, group);
  }
  static uint64_t panels(uint64_t columns) { return (columns + TW_LANES - 1) / TW_LANES * TW_LANES; }

  void write(Op which, const Operands& operands) {
    op(which, operands);
    for (int32_t out : operands.out) {
      if (out != kNone) written_.push_back(out);
    }
  }

  // --- ops; each does nothing where it finds no operands

  void add_op() {
    using Maker = void (MadePlan::*)();
    static constexpr Maker kMakers[] = {
        &MadePlan::matmul,          &MadePlan::quantized_matmul, &MadePlan::weight_only_matmul,
        &MadePlan::attention_layer, &MadePlan::attention,        &MadePlan::rms_norm,
        &MadePlan::layer_norm,      &MadePlan::column_norm,      &MadePlan::elementwise,
        &MadePlan::gather_rows,     &MadePlan::swiglu,           &MadePlan::add,
        &MadePlan::embedding,       &MadePlan::rotary_table,
    };
    // The bytes that are left over make mixtures, so that other ops have the bytes that they had before there
    // were any.
    constexpr uint32_t kOthers = 256 / std::size(kMakers) * std::size(kMakers);
    const uint32_t number = c_.below(256);
    if (number >= kOthers) return mixture();
    (this->*kMakers[number % std::size(kMakers)])();
  }

  void embedding() {
    const bool positions = c_.one_in(4);
    const uint64_t rows = panels(positions ? header.max_seq_len : header.vocab_size), k = width();
    const int32_t table =
        c_.one_in(3) ? quantized(rows, k) : weight(WeightLayout::kPanels, c_.below(2), rows, k);
    const int32_t y = output(Kind::kTokens, static_cast<uint32_t>(k), TW_F32, {});
    write(Op::kEmbedding, {{}, {y}, {table}, {positions ? TW_IDS_POSITIONS : TW_IDS_TOKENS}, {1.5f}});
  }

  void rms_norm() { norm(Op::kRmsNorm, {}); }

  // Of whole rows; with a residual or without.
  void norm(Op which, const std::vector<int32_t>& ints) {
    const int32_t x = find_floats({});
    if (x == kNone) return;
    const uint32_t cols = at(x).cols;
    const int32_t residual = maybe([&] { return find_floats(kind(x), cols); });
    const bool layer = which == Op::kLayerNorm;
    const int32_t y =
        output(kind(x), cols, float_dtype(), {x, residual}, layer && residual == kNone ? x : kNone);
    std::vector<int32_t> outs = {y};
    if (residual != kNone)
      outs.push_back(output(kind(x), cols, TW_F32, {x, residual, y}, c_.one_in(2) ? x : residual));
    std::vector<int32_t> norm_ints = ints;
    if (layer) norm_ints = {0, 1, static_cast<int32_t>(cols)};
    write(
        which,
        {{x, residual}, outs, {vector(cols), layer ? maybe_vector(cols) : kNone}, norm_ints, {1e-5f, 1.0f}});
  }

  // `heads` runs of `width` columns of x.
  struct Runs {
    int32_t start, heads, width;
  };
  Runs runs_in(uint32_t cols) {
    const uint32_t width = c_.between(1, cols), heads = c_.between(1, cols / width);
    return {static_cast<int32_t>(c_.below(cols - width * heads + 1)), static_cast<int32_t>(heads),
            static_cast<int32_t>(width)};
  }

  void layer_norm() {
    if (c_.one_in(2)) return norm(Op::kLayerNorm, {});
    const int32_t x = find_floats({});
    if (x == kNone) return;
    const Runs r = runs_in(at(x).cols);
    const uint32_t length = c_.one_in(2) ? r.width : r.width * r.heads;
    const int32_t y = output(kind(x), at(x).cols, TW_F32, {x}, x);
    const int32_t b = maybe_vector(length);
    write(Op::kLayerNorm, {{x}, {y}, {vector(length), b}, {r.start, r.heads, r.width}, {1e-5f, 0.0f}});
  }

  void column_norm() {
    const int32_t x = find_floats({});
    if (x == kNone) return;
    const Runs r = runs_in(at(x).cols);
    const int32_t y = output(kind(x), at(x).cols, TW_F32, {x}, x);
    write(Op::kRmsNormColumns, {{x}, {y}, {vector(r.width)}, {r.start, r.heads}, {1e-6f, 0.0f}});
  }

  // y = epilogue(x w + bias) + residual, w of `weight`(rows, k).
  template <typename Weight>
  int32_t product(Op which, int32_t x, uint32_t n, Weight&& weight) {
    const int32_t epilogue = static_cast<int32_t>(c_.one_in(3) ? c_.between(1, TW_EPILOGUE_LAST) : 0);
    const uint64_t rows = panels(n) * static_cast<uint64_t>(tw_epilogue_panels(epilogue));
    const int32_t residual = maybe([&] { return find_floats(kind(x), n); });
    const int32_t y = output(kind(x), n, float_dtype(), {x, residual}, residual);
    const int32_t w = weight(rows, at(x).cols);
    write(which, {{x, residual}, {y}, {w, maybe_vector(rows)}, {epilogue, static_cast<int32_t>(n)}, {}});
    return y;
  }
  void matmul() {
    const int32_t x = find_any();
    product(Op::kMatmul, x, width(),
            [&](uint64_t n, uint64_t k) { return weight(WeightLayout::kPanels, at(x).dtype, n, k); });
  }
  void quantized_matmul() {
    product(Op::kQuantizedMatmul, find_any(), width(),
            [&](uint64_t n, uint64_t k) { return quantized(n, k); });
  }
  void weight_only_matmul() {
    product(Op::kWeightOnlyMatmul, find_any(), width(),
            [&](uint64_t n, uint64_t k) { return weight_only(n, k); });
  }
  // A plain product in float32.
  int32_t projected(int32_t x, uint32_t n) {
    const int32_t y = output(kind(x), n, TW_F32, {x});
    const int32_t w = weight(WeightLayout::kPanels, at(x).dtype, panels(n), at(x).cols);
    write(Op::kMatmul, {{x}, {y}, {w}, {0, static_cast<int32_t>(n)}, {}});
    return y;
  }

  // A router and its experts; sometimes nobody reads what the router chose.
  void mixture() {
    const int32_t x = find_any();
    const auto cols = static_cast<uint64_t>(at(x).cols);
    const uint32_t experts = c_.of<uint32_t>({4, 1, 2, 7, 16, 33}), slots = c_.between(1, experts);
    const int32_t logits = projected(x, experts);
    const int32_t index = output(kind(x), slots, TW_I32, {logits});
    const int32_t shares = output(kind(x), slots, TW_F32, {logits, index});
    write(Op::kRoute, {{logits},
                       {index, shares},
                       {},
                       {static_cast<int32_t>(slots), static_cast<int32_t>(c_.below(2))},
                       {}});
    if (c_.one_in(8)) return;
    const uint64_t inner = c_.one_in(4) ? width() : c_.between(1, 40);
    const bool floats = c_.one_in(2);
    const auto matrices = [&](uint64_t n, uint64_t k) {
      return floats ? weight(WeightLayout::kPanels, at(x).dtype, n, k) : quantized(n, k);
    };
    const int32_t gate_up = matrices(experts * 2 * panels(inner), cols);
    const int32_t down = matrices(experts * panels(cols), inner);
    const int32_t y = output(kind(x), at(x).cols, TW_F32, {x, index, shares});
    const auto activation = static_cast<int32_t>(c_.below(TW_ACTIVATIONS));
    write(Op::kExperts,
          {{x, index, shares}, {y}, {gate_up, down}, {static_cast<int32_t>(experts), activation}, {}});
  }

  void rotary_table() { table_of(2 * c_.between(1, 40)); }
  int32_t table_of(uint32_t cols) {
    const int32_t y = output(Kind::kTokens, cols, TW_F32, {});
    write(Op::kRotaryTable, {{}, {y}, {vector(cols / 2)}, {}, {1.0f}});
    return y;
  }

  // qkv, what turns it, its cache and the attention over that.
  void attention_layer() {
    if (kv_layers.empty()) return;
    const uint32_t index = c_.below(static_cast<uint32_t>(kv_layers.size()));
    const KvLayerRecord layer = kv_layers[index];
    const uint32_t heads = layer.kv_heads * c_.of<uint32_t>({1, 2, 3, 4, 5, 7, 8, 9, 70});
    const uint32_t rotary = c_.one_in(2) ? c_.below(layer.head_dim / 2 + 1) * 2 : 0;
    const int32_t x = find_tokens(), table = rotary > 0 ? table_of(rotary) : kNone;
    const int32_t qkv = projected(x, (heads + 2 * layer.kv_heads) * layer.head_dim);
    const int32_t q = output(Kind::kTokens, heads * layer.head_dim, header.act_dtype, {qkv, table});
    const auto number = static_cast<int32_t>(index), count = static_cast<int32_t>(heads);
    write(Op::kRotaryKvWrite, {{qkv, table}, {q}, {}, {number, count, static_cast<int32_t>(rotary)}, {}});
    if (!c_.one_in(4)) attend(q, index, heads);
  }
  void attend(int32_t q, uint32_t layer, uint32_t heads) {
    const int32_t y = output(Kind::kTokens, at(q).cols, float_dtype(), {q});
    const float softcap = c_.one_in(3) ? 5.0f : 0.0f;
    write(Op::kPagedAttention,
          {{q},
           {y},
           {maybe_vector(heads)},
           {static_cast<int32_t>(layer), static_cast<int32_t>(heads), 0, 0, 0, 0, 0, sparse_prefill()},
           {0.35f, softcap}});
  }
  // How many positions a block of a prompt's queries chooses. It takes no choice either.
  int32_t sparse_prefill() const {
    const bool sparse = header.vocab_size == 300 && std::ranges::count(windows_, 0u) == std::ssize(windows_);
    return sparse && 4 * header.block_size <= header.max_seq_len ? static_cast<int32_t>(4 * header.block_size)
                                                                 : 0;
  }
  // Over a cache that another op of the plan may have written. If none has, the reader refuses the plan.
  void attention() {
    if (kv_layers.empty()) return;
    const uint32_t layer = c_.below(static_cast<uint32_t>(kv_layers.size()));
    const uint32_t unit = kv_layers[layer].head_dim * kv_layers[layer].kv_heads;
    const int32_t q = find([&](const BufferRecord& b) {
      return b.kind == 0 && b.dtype == header.act_dtype && b.cols % unit == 0;
    });
    if (q != kNone) attend(q, layer, at(q).cols / kv_layers[layer].head_dim);
  }

  void gather_rows() {
    const int32_t x = find_tokens();
    write(Op::kGatherRows, {{x}, {output(Kind::kRows, at(x).cols, at(x).dtype, {})}, {}, {}, {}});
  }

  void swiglu() {
    const int32_t x = find([](const BufferRecord& b) { return b.dtype == TW_F32 && b.cols % 2 == 0; });
    if (x == kNone) return;
    const int32_t y = output(kind(x), at(x).cols / 2, float_dtype(), {x});
    write(Op::kSwiglu, {{x}, {y}, {}, {static_cast<int32_t>(c_.below(TW_ACTIVATIONS))}, {}});
  }

  void add() {
    const int32_t a = find_floats({});
    if (a == kNone) return;
    const int32_t b = find_floats(kind(a), at(a).cols);
    write(Op::kAdd,
          {{a, b}, {output(kind(a), at(a).cols, TW_F32, {a, b}, c_.one_in(2) ? a : b)}, {}, {}, {}});
  }

  void elementwise() {
    std::vector<int32_t> x = {find_floats({})};
    if (x[0] == kNone) return;
    const uint32_t cols = at(x[0]).cols;
    while (x.size() < TW_EW_INPUTS && c_.one_in(2)) x.push_back(find_floats(kind(x[0]), cols));
    const int32_t w = maybe_vector(cols);
    const int32_t y =
        output(kind(x[0]), cols, float_dtype(), x, x[c_.below(static_cast<uint32_t>(x.size()))]);
    write(Op::kElementwise,
          {x, {y}, {w}, program(static_cast<int>(x.size()), w != kNone), {0.5f, -2.0f, 3.0f, 0.01f}});
  }

  // Random code that leaves one value on a stack of at most TW_EW_STACK.
  std::vector<int32_t> program(int inputs, bool with_w) {
    uint8_t code[TW_EW_BYTES] = {};
    int depth = 0, length = 0;
    for (uint32_t steps = c_.below(TW_EW_BYTES - TW_EW_STACK); length <= static_cast<int>(steps);) {
      const uint32_t turn = depth == 0 ? 0 : c_.below(3);
      if (turn == 0 && depth < TW_EW_STACK) {
        const auto operand =
            static_cast<int>(c_.below(static_cast<uint32_t>(inputs + with_w + TW_EW_CONSTANTS)));
        code[length++] =
            static_cast<uint8_t>(operand < inputs              ? TW_EW_X0 + operand
                                 : operand == inputs && with_w ? int{TW_EW_W}
                                                               : TW_EW_C0 + operand - inputs - with_w);
        ++depth;
      } else if (turn == 1 && depth >= 2) {
        code[length++] = static_cast<uint8_t>(c_.between(TW_EW_ADD, TW_EW_MIN));
        --depth;
      } else {
        code[length++] = static_cast<uint8_t>(c_.between(TW_EW_NEG, TW_EW_SOFTPLUS));
      }
    }
    for (; depth > 1; --depth) code[length++] = TW_EW_ADD;
    std::vector<int32_t> ints(TW_EW_BYTES / sizeof(int32_t));
    std::memcpy(ints.data(), code, sizeof code);
    return ints;
  }

  void logits() {
    int32_t x = find([](const BufferRecord& b) {
      return b.kind == static_cast<uint32_t>(Kind::kRows) && b.dtype != TW_I32;
    });
    if (x == kNone) {
      gather_rows();
      x = written_.back();
    }
    header.logits_buffer = projected(x, header.vocab_size);
  }

  Choices& c_;
  const bool large_;
  bool fits_ = true;
  std::vector<uint32_t> windows_;      // of the cache groups
  std::vector<uint8_t> chunked_;       // whether these begin at multiples of their lengths
  std::vector<uint32_t> sink_tokens_;  // per group
  std::vector<int32_t> written_;       // buffers, in the order in which the plan writes them
};

}  // namespace tw_fuzz

#endif  // TENSORWRIGHT_TESTS_FUZZ_MADE_PLAN_H_
