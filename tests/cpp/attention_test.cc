// The attention, rotary and rms_norm kernels on exactly sized heap buffers, for the sanitizers; every
// instruction set must agree bit for bit with the scalar one, whatever lies in unused slots.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/common/dispatch.h"
#include "plugins/latent_attention/kernels.h"
#include "plugins/layer_norm/kernels.h"
#include "plugins/paged_attention/kernels.h"
#include "plugins/paged_attention/layout.h"
#include "plugins/paged_attention/visible.h"
#include "plugins/rms_norm/kernels.h"
#include "plugins/rotary/kernels.h"
#include "tests/cpp/check.h"
#include "tests/cpp/normal_numbers.h"

using namespace tensorwright;

namespace {

using tw_test::normal;

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename Fn>
bool runnable(const KernelEntry<Fn>& entry) {
  return refusal(entry.isa, entry.extra, kEveryIsa).empty();
}

struct Shape {
  int heads, kv_heads, head_dim, rotary_dim, block_size, length, dtype;
  int blocks() const { return (length + block_size - 1) / block_size; }
  int q_dtype() const { return tw_kv_is_quantized(dtype) ? TW_BF16 : dtype; }
  size_t block_bytes() const { return tw_kv_block_bytes(dtype, kv_heads, head_dim, block_size); }
};

const Shape kShapes[] = {
    {7, 1, 64, 64, 32, 70, TW_F32},  {7, 1, 64, 64, 32, 70, TW_BF16}, {3, 3, 40, 20, 16, 33, TW_F32},
    {3, 3, 40, 20, 16, 33, TW_BF16}, {8, 2, 18, 10, 64, 520, TW_F32}, {8, 2, 18, 10, 64, 520, TW_BF16},
    {2, 1, 2, 2, 32, 1, TW_F32},     {2, 1, 2, 2, 32, 1, TW_BF16},    {4, 4, 26, 0, 32, 40, TW_F32},
    {4, 4, 26, 0, 32, 40, TW_BF16},  {7, 1, 64, 64, 32, 70, TW_I8},   {8, 2, 18, 10, 64, 520, TW_I8},
    {3, 3, 41, 20, 16, 33, TW_I8},   {2, 1, 1, 0, 32, 1, TW_I8},      {9, 1, 17, 10, 16, 70, TW_BF16},
    {3, 3, 63, 62, 16, 33, TW_BF16}, {2, 1, 1, 0, 32, 1, TW_BF16},    {9, 1, 17, 10, 16, 70, TW_F32},
    {7, 1, 64, 64, 32, 70, TW_I4},   {8, 2, 18, 10, 64, 520, TW_I4},  {3, 3, 41, 20, 16, 33, TW_I4},
    {2, 1, 1, 0, 32, 1, TW_I4},      {5, 1, 97, 96, 16, 40, TW_I4},   {4, 2, 128, 128, 32, 50, TW_I4},
};

struct Written {
  std::vector<char> q, pages;
};

// Blocks in reverse order; all bytes start as 0xff, which is NaN in both types.
Written write(const Shape& s, const KernelEntry<tw_rotary_kv_write_fn>& entry) {
  const int width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const std::vector<float> qkv = normal(static_cast<size_t>(s.length) * width, 1);
  const std::vector<float> table = normal(static_cast<size_t>(s.length) * s.rotary_dim, 2);
  std::vector<int32_t> slots;
  for (int p = 0; p < s.length; ++p) {
    slots.push_back((s.blocks() - 1 - p / s.block_size) * s.block_size + p % s.block_size);
  }
  Written out;
  out.q.resize(static_cast<size_t>(s.length) * s.heads * s.head_dim * tw_dtype_bytes(s.q_dtype()));
  out.pages.assign(s.blocks() * s.block_bytes(), static_cast<char>(0xff));
  const tw_rotary_kv_write_args args = {
      s.length,
      s.heads,
      s.kv_heads,
      s.head_dim,
      s.rotary_dim,
      s.block_size,
      s.q_dtype(),
      s.dtype,
      qkv.data(),
      width,
      table.data(),
      s.rotary_dim,
      slots.data(),
      out.q.data(),
      s.heads * s.head_dim,
      out.pages.data(),
      static_cast<int64_t>(s.block_bytes()),
  };
  entry.fn(&args);
  return out;
}

// The first v_dim columns of V of a split, one position after the other.
std::vector<char> values_of(const Shape& s, const Written& w, int kv_head, int split, int v_dim) {
  const size_t row = static_cast<size_t>(v_dim) * tw_dtype_bytes(s.dtype);
  std::vector<char> rows(TW_ATTENTION_SPLIT * row);
  for (int at = 0; at < TW_ATTENTION_SPLIT && split * TW_ATTENTION_SPLIT + at < s.length; ++at) {
    const int p = split * TW_ATTENTION_SPLIT + at, block = s.blocks() - 1 - p / s.block_size;
    const char* page = w.pages.data() + block * s.block_bytes() +
                       kv_head * tw_kv_head_bytes(s.dtype, s.head_dim, s.block_size);
    std::memcpy(rows.data() + at * row,
                page + tw_kv_v_offset(s.dtype, s.head_dim, s.block_size, p % s.block_size, 0), row);
  }
  return rows;
}

// acc, max and sum of every KV head and split, for the last `queries` positions. v_dim: 0, or the columns of
// V that are read, from rows beside the pages. forgets: every other block but the last is gone, and what is
// noted of tiles follows.
std::vector<float> attend(const Shape& s, const Written& w, tw_attention_fn fn, int queries, int window,
                          int v_dim = 0, bool chunked = false, int sinks = 0, bool forgets = false) {
  std::vector<int32_t> block_table;
  for (int b = s.blocks() - 1; b >= 0; --b) block_table.push_back(b);
  const int group = s.heads / s.kv_heads, bytes = static_cast<int>(tw_dtype_bytes(s.q_dtype()));
  const size_t rows = static_cast<size_t>(queries) * group;
  std::vector<uint8_t> gone(block_table.size());
  for (size_t block = 0; block + 1 < gone.size(); block += 2) gone[block] = 1;
  std::vector<float> all;
  for (int kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
    for (int split = 0; split * TW_ATTENTION_SPLIT < s.length; ++split) {
      const std::vector<char> values = v_dim ? values_of(s, w, kv_head, split, v_dim) : std::vector<char>();
      std::vector<float> acc(rows * (v_dim ? v_dim : s.head_dim)), max(rows), sum(rows);
      tw_attention_args a = {};
      a.queries = queries;
      a.group = group;
      a.head_dim = s.head_dim;
      a.v_dim = v_dim ? v_dim : s.head_dim;
      if (v_dim) a.v_rows = values.data();
      a.block_size = s.block_size;
      a.first_position = s.length - queries;
      a.window = window;
      a.chunked = chunked;
      a.sink_tokens = sinks;
      a.split = split;
      a.scale = 0.25f;
      a.q_dtype = s.q_dtype();
      a.softcap = window ? 4.0f : 0.0f;
      const int64_t first = static_cast<int64_t>(a.first_position) * s.heads + kv_head * group;
      a.q = w.q.data() + first * s.head_dim * bytes;
      a.q_stride = s.heads * s.head_dim;
      a.pages = w.pages.data() + kv_head * tw_kv_head_bytes(s.dtype, s.head_dim, s.block_size);
      a.page_bytes = static_cast<int64_t>(s.block_bytes());
      a.block_table = block_table.data();
      a.acc = acc.data();
      a.max = max.data();
      a.sum = sum.data();
      std::vector<float> tile_max(forgets ? rows * TW_SPLIT_TILES : 0), tile_sum(tile_max);
      if (forgets) a.gone = gone.data(), a.tile_max = tile_max.data(), a.tile_sum = tile_sum.data();
      fn(&a);
      for (const auto* part : {&acc, &max, &sum, &tile_max, &tile_sum})
        all.insert(all.end(), part->begin(), part->end());
    }
  }
  return all;
}

TW_TEST(rows_of_v_may_lie_beside_the_pages_and_be_fewer_columns) {
  for (const Shape& shape : kShapes) {
    if (tw_kv_is_quantized(shape.dtype)) continue;
    const Written written = write(shape, rotary_kv_write_kernels().back());
    const int queries = std::min(shape.length, 5), v_dim = (shape.head_dim + 1) / 2;
    const auto rows = static_cast<size_t>(queries) * static_cast<size_t>(shape.heads / shape.kv_heads);
    for (const auto& entry : attention_kernels(shape.dtype)) {
      if (!runnable(entry)) continue;
      const std::vector<float> whole = attend(shape, written, entry.fn, queries, 0);
      const std::vector<float> part = attend(shape, written, entry.fn, queries, 0, v_dim);
      const float *from = whole.data(), *to = part.data();
      while (to < part.data() + part.size()) {
        for (size_t row = 0; row < rows; ++row, from += shape.head_dim, to += v_dim) {
          TW_CHECK(std::memcmp(from, to, static_cast<size_t>(v_dim) * sizeof(float)) == 0);
        }
        TW_CHECK(std::memcmp(from, to, 2 * rows * sizeof(float)) == 0);
        from += 2 * rows, to += 2 * rows;
      }
    }
  }
}

TW_TEST(latent_values_are_columns_of_the_panel) {
  for (const auto& entry : latent_values_kernels()) {
    if (!runnable(entry)) continue;
    for (int words : {1, 7, 8, 9, 33}) {
      const std::vector<float> panel = normal(static_cast<size_t>(words) * TW_LANES, 1);
      std::vector<float> rows(panel.size());
      const tw_latent_values_args args = {words, panel.data(), rows.data()};
      entry.fn(&args);
      for (int i = 0; i < words * TW_LANES; ++i) {
        TW_CHECK(rows[static_cast<size_t>(i % TW_LANES * words + i / TW_LANES)] ==
                 panel[static_cast<size_t>(i)]);
      }
    }
  }
}

TW_TEST(latent_kv_write_gives_the_same_bits) {
  const int tokens = 21, heads = 3, block_size = 16;
  for (int dtype : {TW_F32, TW_BF16}) {
    for (int latent : {2, 16, 34}) {
      for (int rope : {0, 6, 32}) {
        const int width = latent + rope, q_head = rope + 5, bytes = static_cast<int>(tw_dtype_bytes(dtype));
        const auto count = [&](int columns) {
          return static_cast<size_t>(tokens) * static_cast<size_t>(columns);
        };
        const std::vector<float> q_latent = normal(count(heads * latent), 1),
                                 q = normal(count(heads * q_head), 2);
        const std::vector<float> kv = normal(count(width), 3), table = normal(count(rope), 4);
        std::vector<int32_t> slots;
        for (int t = 0; t < tokens; ++t) slots.push_back(tokens + 10 - t);
        std::vector<char> first;
        for (const auto& entry : latent_kv_write_kernels()) {
          if (!runnable(entry)) continue;
          const size_t page = tw_kv_k_bytes(dtype, width, block_size);
          const size_t y_bytes = count(heads * width) * static_cast<size_t>(bytes);
          std::vector<char> out(2 * page + y_bytes);
          tw_latent_kv_write_args a = {};
          a.tokens = tokens;
          a.heads = heads;
          a.latent = latent;
          a.rope = rope;
          a.q_head = q_head;
          a.block_size = block_size;
          a.y_dtype = a.kv_dtype = dtype;
          a.q_latent = q_latent.data();
          a.q_latent_stride = heads * latent;
          a.q = q.data();
          a.q_stride = heads * q_head;
          a.kv = kv.data();
          a.kv_stride = width;
          a.table = rope ? table.data() : nullptr;
          a.table_stride = rope;
          a.slots = slots.data();
          a.y = out.data() + 2 * page;
          a.y_stride = heads * width;
          a.pages = out.data();
          a.page_bytes = static_cast<int64_t>(page);
          entry.fn(&a);
          if (first.empty()) first = out;
          TW_CHECK(first == out);
        }
      }
    }
  }
}

TW_TEST(rotary_kv_write_gives_the_same_bits) {
  const auto table = rotary_kv_write_kernels();
  for (const Shape& shape : kShapes) {
    const Written expected = write(shape, table.back());
    for (const auto& entry : table) {
      if (!runnable(entry)) continue;
      const Written got = write(shape, entry);
      TW_CHECK(same_bits(got.q, expected.q));
      TW_CHECK(same_bits(got.pages, expected.pages));
    }
  }
}

TW_TEST(attention_reads_no_unused_slot) {
  for (const Shape& shape : kShapes) {
    const Written written = write(shape, rotary_kv_write_kernels().back());
    // A negative number is of sink tokens beside a window of 20, which leave holes between the tiles.
    for (const auto& [seen, chunked] :
         {std::pair{0, false}, {1, false}, {20, false}, {20, true}, {-5, false}}) {
      const int sinks = std::max(0, -seen), window = seen < 0 ? 20 : seen;
      for (int queries : {1, 2, 9, 33}) {
        if (queries > shape.length) continue;
        // One and several rows of queries, with and without a window, in one and two splits run all code
        // there is.
        const bool repeats = window == 1 || queries == 2 || queries * shape.length > 1100;
        if (tw_test::emulated() && repeats) continue;
        const auto table = attention_kernels(shape.dtype);
        const bool forgets = queries == 9;
        const std::vector<float> expected =
            attend(shape, written, table.back().fn, queries, window, 0, chunked, sinks, forgets);
        for (const auto& entry : table) {
          if (!runnable(entry)) continue;
          const std::vector<float> got =
              attend(shape, written, entry.fn, queries, window, 0, chunked, sinks, forgets);
          for (float value : got) TW_CHECK(!std::isnan(value));
          if (!rounds_otherwise(entry.extra)) TW_CHECK(same_bits(got, expected));
        }
      }
    }
  }
}

// The first whole blocks of the shape's sequence, of which nothing else is read.
TW_TEST(the_softmax_alone_gives_the_same_bits) {
  for (const Shape& s : kShapes) {
    const Written w = write(s, rotary_kv_write_kernels().back());
    const int whole = s.length / s.block_size * s.block_size, group = s.heads / s.kv_heads;
    std::vector<int32_t> block_table;
    for (int b = s.blocks() - 1; b >= 0; --b) block_table.push_back(b);
    for (int split = 0; split * TW_ATTENTION_SPLIT < whole; ++split) {
      const int end = std::min<int>(whole, (split + 1) * TW_ATTENTION_SPLIT);
      std::vector<float> expected;
      const auto table = attention_kernels(s.dtype);
      for (size_t i = table.size(); i-- > 0;) {
        if (!runnable(table[i])) continue;
        const auto rows = static_cast<size_t>(group);
        std::vector<float> max(rows), sum(rows), tile_max(rows * TW_SPLIT_TILES), tile_sum(tile_max);
        tw_attention_args a = {};
        a.queries = 1;
        a.group = group;
        a.head_dim = s.head_dim;
        a.block_size = s.block_size;
        a.first_position = end - 1;
        a.split = split;
        a.scale = 0.25f;
        a.q_dtype = s.q_dtype();
        a.q = w.q.data();
        a.q_stride = s.heads * s.head_dim;
        a.pages = w.pages.data();
        a.page_bytes = static_cast<int64_t>(s.block_bytes());
        a.block_table = block_table.data();
        a.acc = sum.data();  // of no columns
        a.max = max.data();
        a.sum = sum.data();
        a.tile_max = tile_max.data();
        a.tile_sum = tile_sum.data();
        table[i].fn(&a);
        for (const auto* part : {&sum, &tile_max, &tile_sum})
          max.insert(max.end(), part->begin(), part->end());
        for (float value : max) TW_CHECK(!std::isnan(value));
        if (expected.empty()) expected = max;
        if (table[i].extra != Extra::bf16) TW_CHECK(same_bits(max, expected));
      }
    }
  }
}

TW_TEST(shares_of_tiles_give_the_same_bits) {
  for (int rows : {1, 7, 8, 17}) {
    const int tiles = 9, stride = rows + 3;
    std::vector<float> max = normal(static_cast<size_t>(tiles) * stride, 6);
    max.resize(max.size() - 3);  // of the last tile only the rows
    const std::vector<float> sum = normal(max.size(), 7);
    std::vector<float> expected;
    const auto table = attention_shares_kernels();
    for (size_t i = table.size(); i-- > 0;) {
      if (!runnable(table[i])) continue;
      std::vector<float> shares = sum, total(static_cast<size_t>(rows));
      const tw_attention_shares_args args = {rows, tiles, stride, max.data(), shares.data(), total.data()};
      table[i].fn(&args);
      shares.insert(shares.end(), total.begin(), total.end());
      if (expected.empty()) expected = shares;
      TW_CHECK(same_bits(shares, expected));
    }
  }
}

TW_TEST(combine_gives_the_same_bits) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int head_dim : {2, 18, 64, 130}) {
    const int rows = 3, splits = 3;
    std::vector<float> acc = normal(static_cast<size_t>(splits) * rows * head_dim, 3);
    const std::vector<float> max = {kNothing, 1, 2, 3, kNothing, 1.3f, -2, 2.1f, kNothing};
    std::vector<float> sum = normal(max.size(), 4);
    for (size_t i = 0; i < max.size(); ++i) {
      if (max[i] != kNothing) continue;
      // Where a row sees nothing, its acc may not be read.
      sum[i] = 0;
      std::fill_n(acc.begin() + static_cast<std::ptrdiff_t>(i) * head_dim, head_dim, NAN);
    }
    const std::vector<int64_t> offsets = {2 * head_dim, 0, head_dim};
    const std::vector<float> logits = normal(static_cast<size_t>(rows), 5);
    for (const float* sinks : {static_cast<const float*>(nullptr), logits.data()}) {
      for (int dtype : {TW_F32, TW_BF16}) {
        std::vector<char> expected;
        const auto table = attention_combine_kernels();
        for (size_t i = table.size(); i-- > 0;) {
          if (!runnable(table[i])) continue;
          std::vector<char> y(static_cast<size_t>(rows) * head_dim * tw_dtype_bytes(dtype));
          const tw_attention_combine_args args = {rows,           splits,     head_dim,   dtype,
                                                  acc.data(),     max.data(), sum.data(), y.data(),
                                                  offsets.data(), sinks};
          table[i].fn(&args);
          if (expected.empty()) expected = y;
          TW_CHECK(same_bits(y, expected));
          if (dtype == TW_F32) TW_CHECK(!std::isnan(*reinterpret_cast<const float*>(y.data())));
        }
      }
    }
  }
}

TW_TEST(rms_norm_gives_the_same_bits) {
  for (int width : {1, 15, 16, 17, 33, 896}) {
    const std::vector<float> x = normal(2 * width, 4), residual = normal(2 * width, 5), w = normal(width, 6);
    for (int dtype : {TW_F32, TW_BF16}) {
      std::vector<char> expected;
      const auto table = rms_norm_kernels();
      for (size_t i = table.size(); i-- > 0;) {
        if (!runnable(table[i])) continue;
        std::vector<char> y(2 * width * tw_dtype_bytes(dtype));
        std::vector<float> sum = residual;  // in place
        const tw_rms_norm_args args = {2,        width,      1e-6f,    1.0f,  dtype, x.data(), sum.data(),
                                       w.data(), sum.data(), y.data(), width, width, width,    width};
        table[i].fn(&args);
        if (expected.empty()) expected = y;
        TW_CHECK(same_bits(y, expected));
      }
    }
  }
}

TW_TEST(layer_norm_gives_the_same_bits) {
  for (int width : {1, 15, 16, 17, 33, 896}) {
    const std::vector<float> x = normal(2 * width, 4), residual = normal(2 * width, 5), w = normal(width, 6),
                             b = normal(width, 7);
    for (int dtype : {TW_F32, TW_BF16}) {
      std::vector<char> expected;
      const auto table = layer_norm_kernels();
      for (size_t i = table.size(); i-- > 0;) {
        if (!runnable(table[i])) continue;
        std::vector<char> y(2 * width * tw_dtype_bytes(dtype));
        std::vector<float> sum = residual;  // in place
        const tw_layer_norm_args args = {2,        width,      1e-6f,    1.0f,     dtype,
                                         x.data(), sum.data(), w.data(), b.data(), sum.data(),
                                         y.data(), width,      width,    width,    width};
        table[i].fn(&args);
        if (expected.empty()) expected = y;
        TW_CHECK(same_bits(y, expected));
      }
    }
  }
}

}  // namespace

TW_TEST_MAIN()
