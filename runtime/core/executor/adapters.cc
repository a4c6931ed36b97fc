#include "runtime/core/executor/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/common/bf16.h"
#include "plugins/matmul/kernels.h"
#include "plugins/matmul/pack.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/executor/products.h"

namespace tensorwright {
namespace {

// Any cut gives the same bits. A task has so many rows and so many panels at most.
constexpr int32_t kTileRows = 32, kTilePanels = 32;
// Products of fewer multiply-adds take less time than to wake the other threads.
constexpr int64_t kFewProducts = 1 << 16;
constexpr int64_t kFewElements = 16384;

template <typename... Parts>
void require(bool holds, const Parts&... fault) {
  if (!holds) throw Error("InvalidOptionError", concat("adapter: ", fault...));
}

float widened(float value) { return value; }
float widened(uint16_t bits) { return tw_bf16_to_f32(bits); }

template <typename T>
void require_finite(const T* values, int64_t count, const char* what) {
  for (int64_t i = 0; i < count; ++i)
    require(std::isfinite(widened(values[i])), what, " holds a number that is not finite");
}

void require_finite(int dtype, const void* values, int64_t count, const char* what) {
  dtype == TW_BF16 ? require_finite(static_cast<const uint16_t*>(values), count, what)
                   : require_finite(static_cast<const float*>(values), count, what);
}

size_t packed_bytes(int dtype, int32_t rows, int32_t k) {
  return static_cast<size_t>(panels_of(rows)) * tw_panel_bytes(dtype, static_cast<size_t>(k));
}

// Packs rows [rows, k] into panels, as plugins/matmul/pack.h says. The memory of the panels is zero.
template <typename T>
void pack_rows(const T* from, int32_t rows, int32_t k, size_t panel_bytes, char* panels) {
  constexpr auto group = static_cast<int32_t>(4 / sizeof(T));
  for (int32_t row = 0; row < rows; ++row) {
    T* to = reinterpret_cast<T*>(panels + static_cast<size_t>(row / TW_LANES) * panel_bytes) +
            row % TW_LANES * group;
    for (int32_t i = 0; i < k; ++i)
      to[int64_t{i / group} * TW_LANES * group + i % group] = from[int64_t{row} * k + i];
  }
}

void pack(int dtype, const void* from, int32_t rows, int32_t k, char* panels) {
  const size_t bytes = tw_panel_bytes(dtype, static_cast<size_t>(k));
  dtype == TW_BF16 ? pack_rows(static_cast<const uint16_t*>(from), rows, k, bytes, panels)
                   : pack_rows(static_cast<const float*>(from), rows, k, bytes, panels);
}

}  // namespace

struct AdapterProducts::Weights : Adapter {
  struct Part {
    int32_t first, rank, column, columns;
    const char* b;  // panels, of `columns` rows of `rank` columns
  };
  struct Product {
    int32_t rank;
    bool covers;    // whether the parts have all columns of the addend
    const char* a;  // panels, of `rank` rows of k columns
    std::vector<Part> parts;
    int dtype;                  // of the panels
    std::vector<float> scales;  // [rank], or empty: all are 1
  };

  Weights(std::string adapter_key, std::shared_ptr<std::atomic<int32_t>> counter)
      : Adapter(std::move(adapter_key)), live(std::move(counter)) {
    ++*live;
  }
  ~Weights() override { --*live; }

  const Product* of(int32_t instruction) const {
    const int32_t at = product_of[static_cast<size_t>(instruction)];
    return at < 0 ? nullptr : &products[static_cast<size_t>(at)];
  }

  const std::shared_ptr<std::atomic<int32_t>> live;
  std::vector<int32_t> product_of;  // [instructions]: an index into products, -1 for none
  std::vector<Product> products;
  Arena panels;  // of all products
};

AdapterProducts::AdapterProducts(const Plan& plan, int32_t max_adapters, int32_t max_rank, Isa isa)
    : linear_of_(plan.instructions.size(), -1),
      max_adapters_(max_adapters),
      max_rank_(max_rank),
      kernel_(choose("matmul", matmul_kernels(TW_F32), isa)),
      bf16_kernel_(choose("matmul", matmul_by_bf16_kernels(), isa)),
      live_(std::make_shared<std::atomic<int32_t>>(0)) {
  for (size_t i = 0; i < plan.model_instructions(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (!is_product(instruction)) continue;
    const BufferRef x(plan.buffers[static_cast<size_t>(instruction.in[0])]);
    const int32_t pair = tw_epilogue_panels(instruction.ints[0]), n = instruction.ints[1];
    const auto width = static_cast<int32_t>(panels_of(n) * pair * TW_LANES);
    linear_of_[i] = static_cast<int32_t>(linears_.size());
    linears_.push_back({static_cast<int32_t>(i), x, n * pair, width});
  }
}

void AdapterProducts::allocate(const StepLimits& limits) {
  if (max_adapters_ == 0) return;
  const auto most = [this](auto size) {
    int64_t largest = 0;
    for (const Linear& linear : linears_) largest = std::max<int64_t>(largest, size(linear));
    return static_cast<size_t>(largest) * sizeof(float);
  };
  const auto rows = static_cast<size_t>(std::max(limits.tokens, limits.rows));
  x_ = Arena(rows * most([](const Linear& linear) { return linear.x.cols; }), "the rows of adapters");
  h_ = Arena(rows * static_cast<size_t>(max_rank_) * sizeof(float), "the products of adapters");
  addends_ = Arena(rows * most([](const Linear& linear) { return linear.width; }), "the sums of adapters");
  pointers_.resize(rows);
  for (RowGroups& groups : rows_) {
    groups.order.reserve(rows);
    groups.groups.reserve(static_cast<size_t>(max_adapters_));
  }
}

const AdapterProducts::Linear* AdapterProducts::linear_of(size_t instruction) const {
  if (instruction >= linear_of_.size() || linear_of_[instruction] < 0) return nullptr;
  return &linears_[static_cast<size_t>(linear_of_[instruction])];
}

void AdapterProducts::check(const AdapterWeights::Product& product) const {
  const Linear* linear =
      product.instruction < 0 ? nullptr : linear_of(static_cast<size_t>(product.instruction));
  require(linear, "instruction ", product.instruction, " is no product of the plan");
  require(product.k == linear->x.cols, "instruction ", product.instruction, " has ", linear->x.cols,
          " columns, the adapter's matrix has ", product.k);
  require(product.rank >= 1 && product.rank <= max_rank_, "instruction ", product.instruction,
          ": the ranks of all parts must be 1 to ", max_rank_, " together, are ", product.rank);
  require(product.dtype == TW_F32 || product.dtype == TW_BF16,
          "matrices must be float32 or bfloat16, for which there are kernels; are of number ", product.dtype);
  require_finite(product.dtype, product.a, int64_t{product.rank} * product.k, "a matrix");
  if (product.scales) require_finite(product.scales, product.rank, "a factor");
  int32_t end = 0;
  for (const AdapterWeights::Part& part : product.parts) {
    require(part.rank >= 1 && part.first >= 0 && part.first <= product.rank - part.rank, "a part has rows ",
            part.first, " to ", int64_t{part.first} + part.rank, " of ", product.rank);
    require(part.columns >= 1 && part.column >= end && part.column <= linear->width - part.columns,
            "a part has columns ", part.column, " to ", int64_t{part.column} + part.columns, " of ",
            linear->width, ", behind ", end);
    end = part.column + part.columns;
    require_finite(product.dtype, part.b, int64_t{part.columns} * part.rank, "a matrix");
  }
}

SharedAdapter AdapterProducts::make(const AdapterWeights& weights) const {
  require(max_adapters_ > 0, "this engine was opened without room for adapters");
  require(!weights.key.empty() && weights.key.find('\0') == std::string::npos,
          "a key must have characters, none of them 0");
  size_t bytes = 0;
  for (const AdapterWeights::Product& product : weights.products) {
    check(product);
    bytes += packed_bytes(product.dtype, product.rank, product.k);
    for (const AdapterWeights::Part& part : product.parts)
      bytes += packed_bytes(product.dtype, part.columns, part.rank);
  }
  const auto made = std::make_shared<Weights>(weights.key, live_);
  if (live() > max_adapters_) {
    throw Error("AdapterError",
                concat("at most ", max_adapters_,
                       " adapters may be loaded at once, those counted that requests still use; "
                       "unload one, or raise max_loras"));
  }
  made->panels = Arena(bytes, "the weights of an adapter");
  char* next = made->panels.data();
  const auto place = [&next](int dtype, const void* from, int32_t rows, int32_t k) {
    char* at = next;
    pack(dtype, from, rows, k, at);
    next += packed_bytes(dtype, rows, k);
    return at;
  };
  made->product_of.assign(linear_of_.size(), -1);
  for (const AdapterWeights::Product& product : weights.products) {
    int32_t& at = made->product_of[static_cast<size_t>(product.instruction)];
    require(at < 0, "instruction ", product.instruction, " has two products");
    at = static_cast<int32_t>(made->products.size());
    const int dtype = product.dtype;
    Weights::Product own{product.rank, false, place(dtype, product.a, product.rank, product.k),
                         {},           dtype, {}};
    if (product.scales) own.scales.assign(product.scales, product.scales + product.rank);
    int32_t columns = 0;
    for (const AdapterWeights::Part& part : product.parts) {
      own.parts.push_back(
          {part.first, part.rank, part.column, part.columns, place(dtype, part.b, part.columns, part.rank)});
      columns += part.columns;
    }
    own.covers = columns == linear_of(static_cast<size_t>(product.instruction))->columns;
    made->products.push_back(std::move(own));
  }
  return made;
}

bool AdapterProducts::owns(const Adapter& adapter) const {
  const auto* weights = dynamic_cast<const Weights*>(&adapter);
  return weights && weights->live == live_;
}

void AdapterProducts::begin(const Step& step) {
  for (RowGroups& groups : rows_) {
    groups.order.clear();
    groups.groups.clear();
  }
  if (step.adapters.empty()) return;
  if (step.adapters.size() != step.context_lens.size()) {
    throw Error("InvalidRequestError", concat("step: adapters must have ", step.context_lens.size(),
                                              " entries, has ", step.adapters.size()));
  }
  for (const Adapter* adapter : step.adapters) {
    if (adapter && !owns(*adapter))
      throw Error("InvalidRequestError",
                  "step: an adapter must be one that this executor has made, one is not");
  }
  group_rows(step, nullptr, &rows_[static_cast<int>(BufferKind::kTokens)]);
  group_rows(step, &step.logit_rows, &rows_[static_cast<int>(BufferKind::kRows)]);
}

// rows: the tokens that are the rows; null: all tokens are. Adapters are in the order of their first
// sequence.
void AdapterProducts::group_rows(const Step& step, const std::vector<int32_t>* rows, RowGroups* into) const {
  const auto sequence_of = [&step](int32_t token) {
    return std::ranges::upper_bound(step.seq_starts, token) - step.seq_starts.begin() - 1;
  };
  const int32_t count = rows ? step.rows() : step.tokens();
  for (size_t first = 0; first < step.adapters.size(); ++first) {
    const Adapter* adapter = step.adapters[first];
    const auto begin = step.adapters.begin();
    if (!adapter || std::find(begin, begin + static_cast<std::ptrdiff_t>(first), adapter) !=
                        begin + static_cast<std::ptrdiff_t>(first))
      continue;
    Group group{static_cast<const Weights*>(adapter), static_cast<int32_t>(into->order.size()), 0};
    if (rows) {
      for (int32_t row = 0; row < count; ++row) {
        const int32_t token = (*rows)[static_cast<size_t>(row)];
        if (step.adapters[static_cast<size_t>(sequence_of(token))] == adapter) into->order.push_back(row);
      }
    } else {
      for (size_t seq = first; seq < step.adapters.size(); ++seq) {
        if (step.adapters[seq] != adapter) continue;
        for (int32_t token = step.seq_starts[seq]; token < step.seq_starts[seq + 1]; ++token)
          into->order.push_back(token);
      }
    }
    group.end = static_cast<int32_t>(into->order.size());
    if (group.end > group.begin) into->groups.push_back(group);
  }
}

const float* const* AdapterProducts::addends(size_t instruction, const StepView& view, ThreadTeam& team) {
  const Linear* linear = linear_of(instruction);
  if (!linear) return nullptr;
  const RowGroups& rows = rows_[linear->x.kind];
  tiles_.clear();
  bool any = false;
  for (const Group& group : rows.groups) any |= group.adapter->of(linear->instruction) != nullptr;
  if (!any) return nullptr;
  gather(*linear, rows, view, team);
  for (const bool expand : {false, true}) {
    tiles_.clear();
    for (const Group& group : rows.groups) {
      const Weights::Product* product = group.adapter->of(linear->instruction);
      if (!product) continue;
      const auto parts = expand ? static_cast<int32_t>(product->parts.size()) : 1;
      for (int32_t part = 0; part < parts; ++part) {
        const int32_t columns = expand ? product->parts[static_cast<size_t>(part)].columns : product->rank;
        const auto panels = static_cast<int32_t>(panels_of(columns));
        for (int32_t panel = 0; panel < panels; panel += kTilePanels) {
          for (int32_t row = group.begin; row < group.end; row += kTileRows) {
            tiles_.push_back({group.adapter, expand ? part : -1, row, std::min(row + kTileRows, group.end),
                              panel, std::min(panel + kTilePanels, panels)});
          }
        }
      }
    }
    multiply(*linear, team, expand);
  }
  return pointers_.data();
}

// Copies the rows of x in the order of their adapters, as float32, and sets the pointers of all rows. Columns
// of an addend that no part has become -0, which changes no number that it is added to.
void AdapterProducts::gather(const Linear& linear, const RowGroups& rows, const StepView& view,
                             ThreadTeam& team) {
  const BufferRef& x = linear.x;
  std::fill_n(pointers_.begin(), x.rows(view), nullptr);
  auto* addends = reinterpret_cast<float*>(addends_.data());
  for (const Group& group : rows.groups) {
    const Weights::Product* product = group.adapter->of(linear.instruction);
    if (!product) continue;
    for (int32_t i = group.begin; i < group.end; ++i) {
      float* addend = addends + int64_t{i} * linear.width;
      pointers_[static_cast<size_t>(rows.order[static_cast<size_t>(i)])] = addend;
      if (!product->covers) std::fill_n(addend, linear.width, -0.0f);
    }
  }
  const auto copy = [&](int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) {
      const int32_t row = rows.order[static_cast<size_t>(i)];
      float* to = reinterpret_cast<float*>(x_.data()) + int64_t{i} * x.cols;
      if (x.dtype == TW_BF16) {
        const auto* from = reinterpret_cast<const uint16_t*>(x.at(view, row));
        for (int32_t k = 0; k < x.cols; ++k) to[k] = tw_bf16_to_f32(from[k]);
      } else {
        std::memcpy(to, x.at(view, row), static_cast<size_t>(x.cols) * sizeof(float));
      }
    }
  };
  const auto count = static_cast<int32_t>(rows.order.size());
  if (int64_t{count} * x.cols <= kFewElements) {
    copy(0, count);
  } else {
    split_rows(team, count, x.cols, copy);
  }
}

// Runs all tiles, on one thread where they are small.
void AdapterProducts::multiply(const Linear& linear, ThreadTeam& team, bool expand) {
  int64_t products = 0;
  for (const Tile& tile : tiles_) {
    const int32_t k = expand
                          ? tile.adapter->of(linear.instruction)->parts[static_cast<size_t>(tile.part)].rank
                          : linear.x.cols;
    products += int64_t{tile.end - tile.begin} * (tile.panel_end - tile.panel_begin) * TW_LANES * k;
  }
  const auto tiles = static_cast<int>(tiles_.size());
  if (products <= kFewProducts) {
    team.run(1, [&](int, int) {
      for (const Tile& tile : tiles_) run_tile(linear, tile);
    });
  } else {
    team.run(tiles, [&](int task, int) { run_tile(linear, tiles_[static_cast<size_t>(task)]); });
  }
}

void AdapterProducts::run_tile(const Linear& linear, const Tile& tile) const {
  const Weights::Product& product = *tile.adapter->of(linear.instruction);
  auto* h = reinterpret_cast<float*>(h_.data()) + int64_t{tile.begin} * max_rank_;
  tw_matmul_args args{};
  args.rows = tile.end - tile.begin;
  args.panel_begin = tile.panel_begin;
  args.panel_end = tile.panel_end;
  args.epilogue = TW_EPILOGUE_NONE;
  args.y_dtype = TW_F32;
  if (tile.part < 0) {
    args.k = linear.x.cols;
    args.n = product.rank;
    args.x = reinterpret_cast<const float*>(x_.data()) + int64_t{tile.begin} * linear.x.cols;
    args.x_stride = linear.x.cols;
    args.w = product.a;
    args.y = h;
    args.y_stride = max_rank_;
  } else {
    const Weights::Part& part = product.parts[static_cast<size_t>(tile.part)];
    args.k = part.rank;
    args.n = part.columns;
    args.x = h + part.first;
    args.x_stride = max_rank_;
    args.w = part.b;
    args.y = reinterpret_cast<float*>(addends_.data()) + int64_t{tile.begin} * linear.width + part.column;
    args.y_stride = linear.width;
  }
  (product.dtype == TW_BF16 ? bf16_kernel_ : kernel_)(&args);
  if (tile.part >= 0 || product.scales.empty()) return;
  const int32_t begin = tile.panel_begin * TW_LANES;
  const int32_t end = std::min(tile.panel_end * TW_LANES, product.rank);
  for (int32_t row = 0; row < args.rows; ++row) {
    for (int32_t column = begin; column < end; ++column)
      h[int64_t{row} * max_rank_ + column] *= product.scales[static_cast<size_t>(column)];
  }
}

}  // namespace tensorwright
