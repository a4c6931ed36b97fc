#include "plugins/paged_attention/instruction_choice.h"

#include <algorithm>
#include <cmath>

#include "plugins/common/bf16.h"
#include "runtime/core/base/sparse_prefill.h"

namespace tensorwright {
namespace {

constexpr int32_t kRowsAtOnce =
    16;  // means of queries that go through the keys together, if a block has fewer

constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

struct BlockChoice::Work {
  char* q;           // [rows of a batch][head_dim]: means of queries, of q's dtype
  float* mean;       // [head_dim]
  float *max, *sum;  // [tiles of max_blocks][rows of a batch]: what is noted of a row's tiles
  float* ends;       // [2][rows of a batch]: the softmax of a row over one split, which nobody wants
  float* total;      // [rows of a block of queries]: of the softmax over all tiles
  float* mass;       // [max_blocks]: of a block of keys, over all rows of a block of queries
  int32_t* order;    // [max_blocks]: blocks of keys
};

BlockChoice::BlockChoice(const Shape& shape, tw_attention_fn attend, tw_attention_shares_fn shares,
                         float scale, float softcap)
    : shape_(shape),
      attend_(attend),
      shares_(shares),
      scale_(scale),
      softcap_(softcap),
      batched_(std::max(1, kRowsAtOnce / shape.group)) {}

// Places the scratch of a thread from `base` on, which may be null. Returns its bytes.
size_t BlockChoice::place(char* base, Work* work) const {
  const auto rows = static_cast<size_t>(batched_ * shape_.group),
             blocks = static_cast<size_t>(shape_.max_blocks);
  const auto dims = static_cast<size_t>(shape_.head_dim);
  size_t at = 0;
  const auto floats = [&](size_t count) {
    float* here = base ? reinterpret_cast<float*>(base + at) : nullptr;
    at += whole_lines(count * sizeof(float));
    return here;
  };
  work->q = reinterpret_cast<char*>(floats(rows * dims));
  work->mean = floats(dims);
  work->max = floats(blocks * tiles_of_block() * rows);
  work->sum = floats(blocks * tiles_of_block() * rows);
  work->ends = floats(2 * rows);
  work->total = floats(static_cast<size_t>(shape_.group));
  work->mass = floats(blocks);
  work->order = reinterpret_cast<int32_t*>(floats(blocks));
  return at;
}

size_t BlockChoice::reserve(const StepLimits& limits, int threads) {
  const int32_t most = limits.tokens / shape_.block_size;
  chosen_.reserve(static_cast<size_t>(most));
  batches_.reserve(static_cast<size_t>(most));
  seq_starts_.reserve(static_cast<size_t>(limits.seqs));
  tables_bytes_ = whole_lines(table_at(most, 0) * sizeof(int32_t));
  Work work{};
  work_bytes_ = place(nullptr, &work);
  return tables_bytes_ + work_bytes_ * static_cast<size_t>(threads);
}

int32_t BlockChoice::end(const StepView& view, int32_t seq) const {
  return view.step.prompt_lens.empty()
             ? 0
             : sparse_end(view.step.prompt_lens[static_cast<size_t>(seq)], shape_.block_size);
}

// The step's check has seen to it that blocks which choose are whole.
void BlockChoice::list(const StepView& view) {
  chosen_.clear();
  batches_.clear();
  seq_starts_.clear();
  for (int32_t seq = 0; seq < view.step.seqs(); ++seq) {
    const auto s = static_cast<size_t>(seq);
    const int32_t first = view.step.first_position(seq), from = std::max(first, begin());
    const int32_t to = std::min(end(view, seq), view.step.context_lens[s]);
    const auto start = static_cast<int32_t>(chosen_.size());
    seq_starts_.push_back(start - from / shape_.block_size);
    for (int32_t position = from; position < to; position += shape_.block_size) {
      const int32_t token = view.step.seq_starts[s] + position - first;
      chosen_.push_back({seq, token, position / shape_.block_size});
    }
    const auto stop = static_cast<int32_t>(chosen_.size());
    for (int32_t i = start; i < stop; i += batched_) batches_.push_back({i, std::min(batched_, stop - i)});
  }
}

int32_t BlockChoice::number(int32_t seq, int32_t position) const {
  return seq_starts_[static_cast<size_t>(seq)] + position / shape_.block_size;
}

// The batches that see the most keys go first, so that no thread waits for a long task.
void BlockChoice::choose(const StepView& view, ThreadTeam& team, const BufferRef& q,
                         const GroupTables& tables, const char* pages, int64_t page_bytes, char* scratch) {
  const auto count = static_cast<int32_t>(batches_.size());
  const size_t head_bytes = tw_kv_head_bytes(shape_.kv_dtype, shape_.head_dim, shape_.block_size);
  team.run(count * shape_.kv_heads, [&](int task, int thread) {
    const Batch& batch = batches_[static_cast<size_t>(count - 1 - task / shape_.kv_heads)];
    const int32_t kv_head = task % shape_.kv_heads, rows = batch.count * shape_.group;
    Work work{};
    place(scratch + tables_bytes_ + work_bytes_ * static_cast<size_t>(thread), &work);
    const int32_t seq = chosen_[static_cast<size_t>(batch.first)].seq;
    const int32_t* table = tables.block_tables.data() + int64_t{seq} * tables.max_blocks;
    pool(view, q, batch, kv_head, work);
    score(batch, table, pages + static_cast<size_t>(kv_head) * head_bytes, page_bytes, q.dtype, work);
    for (int32_t i = 0; i < batch.count; ++i) {
      const int32_t number = batch.first + i;
      const Chosen& chosen = chosen_[static_cast<size_t>(number)];
      weigh(i, chosen.block, rows, work);
      take(chosen, table, work, reinterpret_cast<int32_t*>(scratch) + table_at(number, kv_head));
    }
  });
}

// Row i * group + h is the mean of the queries of the batch's block i, of head h of the group.
void BlockChoice::pool(const StepView& view, const BufferRef& q, const Batch& batch, int32_t kv_head,
                       const Work& work) const {
  const int32_t dims = shape_.head_dim;
  const float share = 1.0f / static_cast<float>(shape_.block_size);
  for (int32_t row = 0; row < batch.count * shape_.group; ++row) {
    const int32_t token = chosen_[static_cast<size_t>(batch.first + row / shape_.group)].token;
    const int64_t column = int64_t{kv_head * shape_.group + row % shape_.group} * dims;
    std::fill_n(work.mean, dims, 0.0f);
    for (int32_t i = 0; i < shape_.block_size; ++i) {
      const char* from = q.at(view, token + i);
      if (q.dtype == TW_BF16) {
        const uint16_t* x = reinterpret_cast<const uint16_t*>(from) + column;
        for (int32_t d = 0; d < dims; ++d) work.mean[d] += tw_bf16_to_f32(x[d]);
      } else {
        const float* x = reinterpret_cast<const float*>(from) + column;
        for (int32_t d = 0; d < dims; ++d) work.mean[d] += x[d];
      }
    }
    if (q.dtype == TW_BF16) {
      uint16_t* to = reinterpret_cast<uint16_t*>(work.q) + int64_t{row} * dims;
      for (int32_t d = 0; d < dims; ++d) to[d] = tw_f32_to_bf16(work.mean[d] * share);
    } else {
      float* to = reinterpret_cast<float*>(work.q) + int64_t{row} * dims;
      for (int32_t d = 0; d < dims; ++d) to[d] = work.mean[d] * share;
    }
  }
}

// Every row sees all keys before the batch's last block. Of a row of an earlier block, weigh() leaves out
// what is not before it.
void BlockChoice::score(const Batch& batch, const int32_t* table, const char* pages, int64_t page_bytes,
                        int q_dtype, const Work& work) const {
  const int32_t rows = batch.count * shape_.group;
  const int32_t keys = chosen_[static_cast<size_t>(batch.first + batch.count - 1)].block * shape_.block_size;
  tw_attention_args args{};
  args.queries = 1;
  args.group = rows;
  args.head_dim = shape_.head_dim;
  args.block_size = shape_.block_size;
  args.scale = scale_;
  args.softcap = softcap_;
  args.q_dtype = q_dtype;
  args.q = work.q;
  args.q_stride = int64_t{rows} * shape_.head_dim;
  args.pages = pages;
  args.page_bytes = page_bytes;
  args.block_table = table;
  args.acc = work.ends;  // of no columns: nothing is written
  args.max = work.ends;
  args.sum = work.ends + rows;
  for (int32_t begin = 0; begin < keys; begin += TW_ATTENTION_SPLIT) {
    args.split = begin / TW_ATTENTION_SPLIT;
    args.first_position = std::min<int32_t>(keys, begin + TW_ATTENTION_SPLIT) - 1;
    args.tile_max = work.max + int64_t{begin / TW_LANES} * rows;
    args.tile_sum = work.sum + int64_t{begin / TW_LANES} * rows;
    attend_(&args);
  }
}

// Sums up what the rows of the batch's `number`th block of queries give each block of keys before it. A row
// of NaN gives nothing.
void BlockChoice::weigh(int32_t number, int32_t keys, int32_t stride, const Work& work) const {
  const int32_t first = number * shape_.group, tiles = static_cast<int32_t>(tiles_of_block());
  const tw_attention_shares_args args = {shape_.group,     keys * tiles,     stride,
                                         work.max + first, work.sum + first, work.total};
  shares_(&args);
  for (int32_t row = 0; row < shape_.group; ++row) {
    const float share = 1.0f / work.total[row];
    work.total[row] = share > 0 && share < INFINITY ? share : 0;
  }
  for (int32_t key = 0; key < keys; ++key) {
    float mass = 0;
    for (int32_t tile = key * tiles; tile < (key + 1) * tiles; ++tile) {
      const float* shares = work.sum + int64_t{tile} * stride + first;
      for (int32_t row = 0; row < shape_.group; ++row) {
        if (work.total[row] > 0) mass += shares[row] * work.total[row];
      }
    }
    work.mass[key] = mass;
  }
}

// Of blocks with the same mass the first is taken. Masses are no NaN: weigh() adds none.
void BlockChoice::take(const Chosen& chosen, const int32_t* table, const Work& work, int32_t* out) const {
  const int32_t others = chosen.block - 2, wanted = shape_.blocks - kKept;
  for (int32_t i = 0; i < others; ++i) work.order[i] = i + 1;
  const auto before = [&](int32_t a, int32_t b) {
    return work.mass[a] != work.mass[b] ? work.mass[a] > work.mass[b] : a < b;
  };
  std::nth_element(work.order, work.order + wanted, work.order + others, before);
  std::sort(work.order, work.order + wanted);
  *out++ = table[0];
  for (int32_t i = 0; i < wanted; ++i) *out++ = table[work.order[i]];
  *out++ = table[chosen.block - 1];
  *out = table[chosen.block];
}

}  // namespace tensorwright
