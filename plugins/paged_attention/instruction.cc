// paged_attention: every query of the step attends to the pages of its sequence.
//
// The queries of a sequence are cut into tiles; a unit is a tile of one KV head, and its rows are (query,
// head of the group). The heads of a latent layer, which all share one KV head, are cut into parts that a
// tile can hold, and V is unpacked from the K panels into a thread's scratch, once for all rows of a unit and
// a split. With enough units, a task is a unit: all its splits in turn, then the combination. With few
// (decode of few sequences), a task is one split of a unit, and the thread that finishes a unit's last split
// combines the unit. In both cases each split is computed alone and splits are combined in ascending order,
// so the result is the same.
//
// In a cache group with a budget (ops/kept_blocks.h) the splits of which a sequence keeps nothing are left
// out, and whoever combines a unit adds its rows' shares to the scores of the sequence's blocks.
//
// With sparse_prefill, queries of a prompt see what their block of queries has chosen (instruction_choice.h):
// a tile lies within one such block, and attends over a block table that the choice made for each KV head.
// The plan reader admits no budget beside it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "plugins/paged_attention/block_shares.h"
#include "plugins/paged_attention/instruction_choice.h"
#include "plugins/paged_attention/kernels.h"
#include "plugins/paged_attention/visible.h"
#include "runtime/core/ops/kept_blocks.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {
namespace {

constexpr int32_t kRowsPerTile = 64;    // rows whose accumulators fit a core's L1 cache with a tile of K
constexpr int32_t kUnitsPerThread = 4;  // with fewer units than this, splits are run in parallel

// Consecutive queries of one sequence.
struct QueryTile {
  int32_t seq, token, queries, position;  // token: index in the step; position: of the first query
  // The splits that it sees: split 0 where sink tokens lie apart from the window, then those of the window.
  int32_t first_split, splits;
  bool sinks_apart;
  const int32_t* kept = nullptr;  // [splits]: with a budget, the splits that it sees
  // The number of its block of queries among those that choose, -1 if it sees everything. `position` then
  // counts in what the block chose.
  int32_t chosen = -1;

  // Returns the index of the i-th split in the sequence.
  int32_t split(int32_t i) const {
    if (kept) return kept[i];
    return sinks_apart ? (i == 0 ? 0 : first_split + i - 1) : first_split + i;
  }
};

// A tile for the query heads of a part: a KV head, or a part of its query heads.
struct Unit {
  int32_t tile, part;
};

struct SplitTask {
  int32_t unit, split;  // split counts from the tile's first
};

// Returns into how many equal parts the query heads of one KV head are cut. The part changes no bit of a row.
int32_t parts_of(const KvLayerRecord& layer, int32_t heads) {
  const int32_t shared = heads / static_cast<int32_t>(layer.kv_heads);
  int32_t parts = 1;
  while (layer.v_dim > 0 && (shared % parts != 0 || shared / parts > kRowsPerTile)) ++parts;
  return parts;
}

class PagedAttention : public Operation {
 public:
  PagedAttention(const Instruction& instruction, const OpContext& context)
      : q_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        kv_(context.kv),
        states_(context.states),
        budget_(budget_of(instruction)),
        max_blocks_(context.plan.max_blocks()),
        layer_index_(static_cast<size_t>(instruction.ints[0])),
        layer_(context.plan.kv_layers[layer_index_]),
        kv_heads_(static_cast<int32_t>(layer_.kv_heads)),
        parts_(parts_of(layer_, instruction.ints[1])),
        units_per_tile_(kv_heads_ * parts_),
        head_dim_(static_cast<int32_t>(layer_.head_dim)),
        v_dim_(static_cast<int32_t>(layer_.v_dim > 0 ? layer_.v_dim : layer_.head_dim)),
        group_(instruction.ints[1] / units_per_tile_),
        tile_queries_(std::max(1, kRowsPerTile / group_)),
        block_size_(static_cast<int32_t>(context.plan.header.block_size)),
        max_splits_(static_cast<int32_t>((context.plan.header.max_seq_len - 1) / TW_ATTENTION_SPLIT + 1)),
        scale_(instruction.floats[0]),
        softcap_(instruction.floats[1]),
        sinks_(context.weight_floats(instruction.weight[0])),
        slopes_(context.weight_floats(instruction.weight[1])),
        attend_(choose("attention", attention_kernels(kv_dtype()), context.isa)),
        combine_(choose("attention_combine", attention_combine_kernels(), context.isa)),
        latent_values_(choose("latent_values", latent_values_kernels(), context.isa)) {
    if (layer_.v_dim > 0) value_bytes_ = size_t{TW_ATTENTION_SPLIT} * v_row_bytes();
    if (const int32_t budget = sparse_prefill_of(instruction); budget > 0) {
      const int32_t max_blocks =
          (static_cast<int32_t>(context.plan.header.max_seq_len) - 1) / block_size_ + 1;
      choice_.emplace(BlockChoice::Shape{kv_heads_, group_, head_dim_, block_size_, budget / block_size_,
                                         max_blocks, kv_dtype()},
                      attend_, choose("attention_shares", attention_shares_kernels(), context.isa), scale_,
                      softcap_);
    }
  }

  size_t reserve(const StepLimits& limits, int threads) override {
    threads_ = threads;
    int64_t tiles = int64_t{limits.tokens} / tile_queries_ + limits.seqs;
    // A tile ends with its block of queries, and where these begin.
    if (choice_) tiles += limits.tokens / block_size_ + limits.seqs;
    tiles = std::min<int64_t>(limits.tokens, tiles);
    tiles_.reserve(static_cast<size_t>(tiles));
    units_.reserve(static_cast<size_t>(tiles * units_per_tile_));
    const size_t units = static_cast<size_t>(threads) * kUnitsPerThread;
    split_tasks_.reserve(units * static_cast<size_t>(max_splits_));
    unit_scratch_.resize(units);
    remaining_ = std::make_unique<std::atomic<int32_t>[]>(units);
    if (budget_.kept > 0)
      kept_splits_.reserve(static_cast<size_t>(limits.seqs) * static_cast<size_t>(max_splits_));
    y_offsets_.resize(static_cast<size_t>(tile_queries_ * group_));
    for (int32_t row = 0; row < tile_queries_ * group_; ++row) {
      y_offsets_[static_cast<size_t>(row)] = row / group_ * y_.stride + int64_t{row % group_} * v_dim_;
    }
    if (sinks_) place_sinks();
    thread_floats_ = unit_floats(max_splits_, tile_queries_);
    values_at_ = (thread_floats_ * sizeof(float) * static_cast<size_t>(threads) + 63) / 64 * 64;
    choice_at_ = (values_at_ + value_bytes_ * static_cast<size_t>(threads) + 63) / 64 * 64;
    return choice_at_ + (choice_ ? choice_->reserve(limits, threads) : 0);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    choose_keys(view, team);
    make_tiles(view);
    const auto units = static_cast<int64_t>(units_.size());
    if (split_in_parallel(units)) {
      run_splits(view, team);
    } else {
      team.run(static_cast<int>(units), [&](int unit, int thread) {
        float* scratch =
            reinterpret_cast<float*>(view.scratch) + thread_floats_ * static_cast<size_t>(thread);
        for (int32_t split = 0; split < tile_of(unit).splits; ++split)
          attend(view, unit, split, thread, scratch);
        combine(view, unit, scratch);
      });
    }
  }

  Cost cost(const StepView& view) const override {
    Cost cost;
    const int64_t kv_rows = layer_.v_dim > 0 ? 1 : 2 * kv_heads_;
    const int64_t position_bytes = kv_rows * tw_kv_position_bytes(kv_dtype(), head_dim_);
    for (int32_t seq = 0; seq < view.step.seqs(); ++seq) {
      const int64_t queries = queries_of(view, seq);
      const int64_t context = view.step.context_lens[static_cast<size_t>(seq)];
      const int64_t first = first_seen(context - queries);
      int64_t seen = context - first + std::min<int64_t>(first, layer_.sink_tokens);
      if (budget_.kept > 0)
        seen = std::min<int64_t>(seen, int64_t{budget_.kept} * block_size_ + budget_.interval);
      cost.bytes += queries > 0 ? seen * position_bytes : 0;
      int64_t scores = queries * std::max<int64_t>(0, seen - queries / 2);
      if (choice_) scores = count_scores(context - queries, context, choice_->end(view, seq));
      cost.operations += 2 * scores * units_per_tile_ * group_ * (head_dim_ + v_dim_);
    }
    cost.bytes += view.step.tokens() * (q_.row_bytes() + y_.row_bytes());
    return cost;
  }

 private:
  int kv_dtype() const { return static_cast<int>(layer_.dtype); }
  int64_t first_seen(int64_t position) const {
    return tw_first_seen(position, layer_.window, layer_.chunked);
  }
  size_t v_row_bytes() const { return static_cast<size_t>(v_dim_) * tw_dtype_bytes(kv_dtype()); }

  static int32_t queries_of(const StepView& view, int32_t seq) {
    const int32_t* start = view.step.seq_starts.data() + seq;
    return start[1] - start[0];
  }

  const QueryTile& tile_of(int32_t unit) const {
    return tiles_[static_cast<size_t>(units_[static_cast<size_t>(unit)].tile)];
  }
  int32_t part_of(int32_t unit) const { return units_[static_cast<size_t>(unit)].part; }

  // Returns how many scores the queries at [first, end) of a sequence take for each head where those below
  // `chosen` choose. Scores of a block's mean, with no V behind them, count half.
  int64_t count_scores(int64_t first, int64_t end, int64_t chosen) const {
    const auto all = [](int64_t from, int64_t to) { return from < to ? (to - from) * (from + to) / 2 : 0; };
    const int64_t from = std::max<int64_t>(first, choice_->begin()), to = std::min(end, chosen);
    if (from >= to) return all(first, end);
    return all(first, from) + (to - from) * choice_->begin() + all(to, end) + all(from, to) / block_size_ / 2;
  }

  // Lists the blocks of queries of the step that choose, and lets them choose.
  void choose_keys(const StepView& view, ThreadTeam& team) {
    if (!choice_) return;
    choice_->list(view);
    if (choice_->none()) return;
    choice_->choose(view, team, q_, view.step.groups[layer_.group], kv_.pages(layer_index_),
                    static_cast<int64_t>(kv_.block_bytes(layer_index_)), view.scratch + choice_at_);
  }

  size_t unit_floats(int32_t splits, int32_t queries) const {
    return static_cast<size_t>(splits) * static_cast<size_t>(queries * group_) *
           (static_cast<size_t>(v_dim_) + 2 + (budget_.kept > 0 ? size_t{2} * TW_SPLIT_TILES : 0));
  }

  // Repeats the sinks of each unit's heads for every query, because the rows of a tile are (query, head of
  // the group).
  void place_sinks() {
    const int32_t rows = tile_queries_ * group_;
    sink_rows_.resize(static_cast<size_t>(units_per_tile_) * static_cast<size_t>(rows));
    for (int32_t i = 0; i < units_per_tile_ * rows; ++i) {
      sink_rows_[static_cast<size_t>(i)] = sinks_[i / rows * group_ + i % rows % group_];
    }
  }

  // The tiles of a sequence are together for each part, since they read the same K and V, which then stay in
  // the L2 cache. The last see the most positions and go first, so that no thread waits for a long task.
  void make_tiles(const StepView& view) {
    tiles_.clear();
    units_.clear();
    kept_splits_.clear();
    for (int32_t seq = 0; seq < view.step.seqs(); ++seq) {
      const int32_t queries = queries_of(view, seq);
      const int32_t start = view.step.seq_starts[static_cast<size_t>(seq)];
      const int32_t first = view.step.context_lens[static_cast<size_t>(seq)] - queries;
      const size_t kept = budget_.kept > 0 ? find_kept_splits(view, seq) : 0;
      const auto before = static_cast<int32_t>(tiles_.size());
      for (int32_t i = 0; i < queries; i += tiles_.back().queries) {
        QueryTile tile{seq, start + i, std::min(tile_queries_, queries - i), first + i, 0, 0, false};
        if (choice_) choose_for(view, tile);
        tile.first_split = static_cast<int32_t>(first_seen(tile.position) / TW_ATTENTION_SPLIT);
        tile.sinks_apart = layer_.sink_tokens > 0 && tile.first_split > 0;
        tile.splits =
            (tile.position + tile.queries - 1) / TW_ATTENTION_SPLIT + 1 - tile.first_split + tile.sinks_apart;
        if (budget_.kept > 0) show_kept_splits(kept, &tile);
        tiles_.push_back(tile);
      }
      const auto end = static_cast<int32_t>(tiles_.size());
      for (int32_t part = 0; part < units_per_tile_; ++part) {
        for (int32_t tile = end - 1; tile >= before; --tile) units_.push_back({tile, part});
      }
    }
  }

  // Returns the scores of a sequence's blocks, and which are gone.
  BlockScores scores_of(const StepView& view, int32_t seq) const {
    const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
    return block_scores(states_.at(static_cast<size_t>(budget_.state), slot), max_blocks_);
  }

  // Lists the splits of which a sequence keeps a block, up to its last position. Returns where the list
  // begins.
  size_t find_kept_splits(const StepView& view, int32_t seq) {
    const size_t begin = kept_splits_.size();
    const uint8_t* gone = scores_of(view, seq).gone;
    const int32_t blocks = (view.step.context_lens[static_cast<size_t>(seq)] - 1) / block_size_ + 1;
    const int32_t each = TW_ATTENTION_SPLIT / block_size_;
    for (int32_t first = 0; first < blocks; first += each) {
      const uint8_t* end = gone + std::min(first + each, blocks);
      if (std::find(gone + first, end, uint8_t{0}) != end) kept_splits_.push_back(first / each);
    }
    return begin;
  }

  // Gives a tile the splits of its sequence's list, which ends with that of the sequence's last position, up
  // to that of its own.
  void show_kept_splits(size_t begin, QueryTile* tile) const {
    const int32_t last = (tile->position + tile->queries - 1) / TW_ATTENTION_SPLIT;
    tile->kept = kept_splits_.data() + begin;
    const auto end =
        std::upper_bound(kept_splits_.begin() + static_cast<std::ptrdiff_t>(begin), kept_splits_.end(), last);
    tile->splits = static_cast<int32_t>(end - kept_splits_.begin()) - static_cast<int32_t>(begin);
  }

  // Cuts a tile where its block of queries ends, or where queries begin to choose, and says what it sees if
  // they do.
  void choose_for(const StepView& view, QueryTile& tile) const {
    const int32_t begin = choice_->begin(), end = choice_->end(view, tile.seq);
    if (tile.position >= end || begin >= end) return;
    if (tile.position < begin) {
      tile.queries = std::min(tile.queries, begin - tile.position);
      return;
    }
    const int32_t offset = tile.position % block_size_;
    // Parts of equal size: a small rest would use the kernels badly.
    const int32_t parts = (block_size_ + tile_queries_ - 1) / tile_queries_;
    tile.queries = std::min({tile.queries, (block_size_ + parts - 1) / parts, block_size_ - offset});
    tile.chosen = choice_->number(tile.seq, tile.position);
    tile.position = begin - block_size_ + offset;
  }

  // Places each unit in the scratch and lists the tasks. Returns false if there are enough units, or if they
  // do not fit the scratch.
  bool split_in_parallel(int64_t units) {
    if (threads_ == 1 || units >= static_cast<int64_t>(unit_scratch_.size())) return false;
    size_t used = 0;
    split_tasks_.clear();
    for (int32_t unit = 0; unit < units; ++unit) {
      const QueryTile& tile = tile_of(unit);
      unit_scratch_[static_cast<size_t>(unit)] = used;
      remaining_[static_cast<size_t>(unit)].store(tile.splits, std::memory_order_relaxed);
      used += unit_floats(tile.splits, tile.queries);
      for (int32_t split = 0; split < tile.splits; ++split) split_tasks_.push_back({unit, split});
    }
    return used <= thread_floats_ * static_cast<size_t>(threads_);
  }

  void run_splits(const StepView& view, ThreadTeam& team) {
    team.run(static_cast<int>(split_tasks_.size()), [&](int index, int thread) {
      const SplitTask task = split_tasks_[static_cast<size_t>(index)];
      const auto unit = static_cast<size_t>(task.unit);
      float* scratch = reinterpret_cast<float*>(view.scratch) + unit_scratch_[unit];
      attend(view, task.unit, task.split, thread, scratch);
      if (remaining_[unit].fetch_sub(1, std::memory_order_acq_rel) == 1) combine(view, task.unit, scratch);
    });
  }

  // Unpacks V of the positions of a split that the tile's queries see. Returns the rows, of position 0 first.
  const char* unpack_values(const StepView& view, const tw_attention_args& args, int thread) const {
    char* rows = view.scratch + values_at_ + value_bytes_ * static_cast<size_t>(thread);
    for (int32_t tile = 0; tile < TW_SPLIT_TILES; ++tile) {
      if (!tw_tile_exists(&args, tile)) continue;
      int32_t position;
      const char* page = tw_split_block(&args, tile, &position);
      const tw_latent_values_args values = {static_cast<int32_t>(v_row_bytes() / 4),
                                            page + tw_kv_k_offset(kv_dtype(), head_dim_, position, 0),
                                            rows + static_cast<size_t>(tile) * TW_LANES * v_row_bytes()};
      latent_values_(&values);
    }
    return rows;
  }

  // The scratch of a unit is acc [splits, rows, v_dim], then max [splits, rows], then sum [splits, rows].
  // With a budget, tile_max and tile_sum [splits, TW_SPLIT_TILES, rows] follow.
  void attend(const StepView& view, int32_t unit, int32_t split, int thread, float* scratch) const {
    const QueryTile& tile = tile_of(unit);
    const GroupTables& tables = view.step.groups[layer_.group];
    const int32_t part = part_of(unit), kv_head = part / parts_;
    const auto rows = static_cast<size_t>(tile.queries * group_), v_dim = static_cast<size_t>(v_dim_);
    float* max = scratch + static_cast<size_t>(tile.splits) * rows * v_dim;
    float* sum = max + static_cast<size_t>(tile.splits) * rows;
    tw_attention_args args{};
    args.queries = tile.queries;
    args.group = group_;
    args.head_dim = head_dim_;
    args.v_dim = v_dim_;
    args.block_size = block_size_;
    args.first_position = tile.position;
    args.window = static_cast<int32_t>(layer_.window);
    args.chunked = layer_.chunked;
    args.sink_tokens = static_cast<int32_t>(layer_.sink_tokens);
    args.split = tile.split(split);
    args.scale = scale_;
    args.softcap = softcap_;
    args.slopes = slopes_ ? slopes_ + part * group_ : nullptr;
    args.q_dtype = q_.dtype;
    args.q = q_.at(view, tile.token) +
             static_cast<size_t>(part * group_) * static_cast<size_t>(head_dim_) * tw_dtype_bytes(q_.dtype);
    args.q_stride = q_.stride;
    args.pages = kv_.pages(layer_index_) +
                 static_cast<size_t>(kv_head) * tw_kv_head_bytes(kv_dtype(), head_dim_, block_size_);
    args.page_bytes = static_cast<int64_t>(kv_.block_bytes(layer_index_));
    args.block_table = tile.chosen < 0 ? tables.block_tables.data() + int64_t{tile.seq} * tables.max_blocks
                                       : choice_->table(tile.chosen, kv_head, view.scratch + choice_at_);
    if (value_bytes_ > 0) args.v_rows = unpack_values(view, args, thread);
    args.acc = scratch + static_cast<size_t>(split) * rows * v_dim;
    args.max = max + static_cast<size_t>(split) * rows;
    args.sum = sum + static_cast<size_t>(split) * rows;
    if (budget_.kept > 0) {
      const size_t noted = rows * TW_SPLIT_TILES, splits = static_cast<size_t>(tile.splits);
      args.gone = scores_of(view, tile.seq).gone;
      args.tile_max = sum + splits * rows + static_cast<size_t>(split) * noted;
      args.tile_sum = args.tile_max + splits * noted;
      std::fill_n(args.tile_sum, noted, 0.0f);
    }
    attend_(&args);
  }

  void combine(const StepView& view, int32_t unit, float* scratch) const {
    const QueryTile& tile = tile_of(unit);
    const auto rows = static_cast<size_t>(tile.queries * group_), splits = static_cast<size_t>(tile.splits);
    const auto part = static_cast<size_t>(part_of(unit)), first_head = part * static_cast<size_t>(group_);
    tw_attention_combine_args args{};
    args.rows = static_cast<int32_t>(rows);
    args.splits = tile.splits;
    args.v_dim = v_dim_;
    args.y_dtype = y_.dtype;
    args.acc = scratch;
    args.max = scratch + splits * rows * static_cast<size_t>(v_dim_);
    args.sum = args.max + splits * rows;
    args.y = y_.at(view, tile.token) + first_head * static_cast<size_t>(v_dim_) * tw_dtype_bytes(y_.dtype);
    args.y_offsets = y_offsets_.data();
    if (sinks_) {
      args.sinks = sink_rows_.data() + part * y_offsets_.size();
    }
    combine_(&args);
    if (budget_.kept > 0) add_shares_of(view, tile, args);
  }

  // Adds the shares of a unit's rows to the scores of their sequence's blocks.
  void add_shares_of(const StepView& view, const QueryTile& tile,
                     const tw_attention_combine_args& unit) const {
    const auto rows = static_cast<size_t>(unit.rows), splits = static_cast<size_t>(unit.splits);
    RowShares shares;
    shares.rows = unit.rows;
    shares.splits = unit.splits;
    shares.block_size = block_size_;
    shares.numbers = tile.kept;
    shares.max = unit.max;
    shares.sum = unit.sum;
    shares.tile_max = unit.sum + splits * rows;
    shares.tile_sum = shares.tile_max + splits * rows * TW_SPLIT_TILES;
    shares.sinks = unit.sinks;
    add_shares(shares, scores_of(view, tile.seq).scores);
  }

  BufferRef q_, y_;
  KvStorage& kv_;
  StateStorage& states_;  // of the scores, if there is a budget
  BlockBudget budget_;
  int32_t max_blocks_;  // of a sequence
  size_t layer_index_;
  KvLayerRecord layer_;
  int32_t kv_heads_;
  int32_t parts_;           // of the query heads of one KV head
  int32_t units_per_tile_;  // kv_heads_ * parts_
  int32_t head_dim_, v_dim_;
  int32_t group_;  // query heads of a unit
  int32_t tile_queries_, block_size_, max_splits_;
  float scale_, softcap_;
  const float* sinks_;   // [heads], or null
  const float* slopes_;  // [heads], or null
  tw_attention_fn attend_;
  tw_attention_combine_fn combine_;
  tw_latent_values_fn latent_values_;

  int threads_ = 1;
  size_t thread_floats_ = 0;            // scratch of a thread: a full tile with all splits
  size_t value_bytes_ = 0;              // unpacked V of a thread and split; 0 if V has rows
  size_t values_at_ = 0;                // where these begin in the scratch
  size_t choice_at_ = 0;                // where the scratch of the choice begins
  std::optional<BlockChoice> choice_;   // with sparse_prefill
  std::vector<int64_t> y_offsets_;      // [tile_queries * group]
  std::vector<float> sink_rows_;        // [units_per_tile, tile_queries * group], if there are sinks
  std::vector<QueryTile> tiles_;        // of this step
  std::vector<Unit> units_;             // of this step
  std::vector<int32_t> kept_splits_;    // of this step's sequences, one behind the other
  std::vector<SplitTask> split_tasks_;  // of this step
  std::vector<size_t> unit_scratch_;    // per unit, where its scratch begins
  std::unique_ptr<std::atomic<int32_t>[]> remaining_;  // per unit, splits not yet done
};

}  // namespace

std::unique_ptr<Operation> make_paged_attention(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<PagedAttention>(instruction, context);
}

}  // namespace tensorwright
