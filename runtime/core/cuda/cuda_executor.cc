// Opens an engine of target cuda on a device and runs its steps. It has more than 500 lines because memory,
// steps and copies of blocks and states are the parts of one class, which share its stream and its members.
#include "runtime/core/cuda/cuda_executor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <variant>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

constexpr size_t kUpload = size_t{32} << 20;  // bytes of weights that are read while others travel
constexpr size_t kMostGraphs = 64;

size_t aligned(size_t bytes) { return (bytes + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error("InvalidRequestError", concat("[cuda] ", what));
}

// Returns the columns of the widest block table.
int32_t most_blocks(const ModelFacts& facts) {
  return (facts.max_seq_len + facts.block_size - 1) / facts.block_size;
}

// Returns the size of the graph that takes a step of so many sequences: few sizes, and at most a seventh of
// the rows are padding from 8 sequences on.
int32_t bucket_of(int32_t seqs) {
  if (seqs <= 8) return seqs;
  const auto whole = static_cast<uint32_t>(seqs - 1);
  const auto unit = static_cast<int32_t>(std::bit_floor(whole) / 8);
  return (seqs + unit - 1) / unit * unit;
}

// A file that is closed when this goes.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) fail(std::strerror(errno));
  }
  ~OpenFile() { close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t bytes() const {
    struct stat facts = {};
    if (fstat(file_, &facts) != 0) fail(std::strerror(errno));
    return static_cast<uint64_t>(facts.st_size);
  }
  void read(char* to, size_t bytes, uint64_t from) const {
    while (bytes > 0) {
      const ssize_t got = pread(file_, to, bytes, static_cast<off_t>(from));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(got == 0 ? "it is truncated" : std::strerror(errno));
      to += got;
      from += static_cast<uint64_t>(got);
      bytes -= static_cast<size_t>(got);
    }
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error("EngineError", concat(path_, ": cannot be read: ", why));
  }

 private:
  const std::string path_;
  const int file_;
};

}  // namespace

// A captured step.
class CudaExecutor::Graph {
 public:
  // Captures what `start` starts on the stream.
  template <typename Start>
  Graph(const Driver& driver, const Stream& stream, Start start) : driver_(driver) {
    constexpr int kThreadLocal = 1;
    driver.check(driver.stream_begin_capture(stream.get(), kThreadLocal), "cuStreamBeginCapture");
    CudaGraph* graph = nullptr;
    try {
      start();
    } catch (...) {
      driver.stream_end_capture(stream.get(), &graph);
      if (graph) driver.graph_destroy(graph);
      throw;
    }
    driver.check(driver.stream_end_capture(stream.get(), &graph), "cuStreamEndCapture");
    const int result = driver.graph_instantiate(&graph_, graph, 0);
    driver.graph_destroy(graph);
    driver.check(result, "cuGraphInstantiate");
  }
  ~Graph() {
    if (graph_) driver_.graph_exec_destroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Stream& stream) const {
    driver_.check(driver_.graph_launch(graph_, stream.get()), "cuGraphLaunch");
  }

 private:
  const Driver& driver_;
  CudaGraphExec* graph_ = nullptr;
};

namespace {

// Makes the device's context the calling thread's, before anything else uses it.
const Driver& bound(const Driver& driver) {
  driver.bind();
  return driver;
}

// Returns a plan whose code runs on the device.
const CudaPlan& fitting(const CudaPlan& plan, const DeviceFacts& device, const std::string& path) {
  const auto sm = static_cast<int>(plan.sm);
  // As engine_format/gpu_code.py says, which chooses the plan.
  const bool runs = sm == device.sm || (sm < 90 && sm / 10 == device.sm / 10 && sm < device.sm);
  if (runs) return plan;
  throw Error("EngineError", concat(path, ": has code for SM ", sm, ", and ", device.name, " has SM ",
                                    device.sm, "; build the model with --sm ", device.sm));
}

}  // namespace

CudaExecutor::CudaExecutor(const std::string& plan_path, const std::string& weights_path,
                           const CudaExecutorOptions& options)
    : plan_(read_cuda_plan(plan_path)),
      facts_(plan_.facts()),
      graphs_wanted_(options.graphs),
      draws_wanted_(options.draws),
      team_(options.threads),
      driver_(options.device),
      stream_(bound(driver_)),
      kernels_(driver_, fitting(plan_, driver_.facts(), plan_path)),
      products_(driver_, options.cublaslt),
      graphs_(kMostGraphs) {
  for (const CudaPlan::KvLayer& layer : plan_.layers) {
    first_page_.push_back(pages_.size());
    for (const uint64_t bytes : layer.page_bytes) pages_.push_back({layer.group, bytes, {}});
  }
  uint64_t offset = 0;
  for (const uint64_t bytes : plan_.states) {
    state_offsets_.push_back(offset);
    offset += bytes;
  }
  load_weights(weights_path);
}

CudaExecutor::~CudaExecutor() {
  try {
    driver_.bind();  // what is freed belongs to the context
    settle();
  } catch (const DeviceError&) {
    // The context is gone, and everything in it: the driver refuses what follows, and nobody is harmed.
  }
}

// Waits for what was started: nobody may free or write over what the device still reads.
void CudaExecutor::settle() const noexcept { driver_.stream_synchronize(stream_.get()); }

// Reads a piece of the file while the one before it travels.
void CudaExecutor::load_weights(const std::string& path) {
  const OpenFile file(path);
  if (file.bytes() != plan_.weights_bytes) {
    file.fail(concat("it has ", file.bytes(), " bytes, the plan names ", plan_.weights_bytes,
                     "; rebuild the engine with build-engine"));
  }
  weights_ = DeviceMemory(driver_, plan_.weights_bytes, "weights");
  const size_t piece = std::min<size_t>(kUpload, plan_.weights_bytes);
  const PinnedMemory halves(driver_, 2 * piece, "upload of weights");
  size_t half = 0;
  for (uint64_t at = 0; at < plan_.weights_bytes; half = 1 - half) {
    const size_t bytes = std::min<uint64_t>(piece, plan_.weights_bytes - at);
    char* from = halves.data() + half * piece;
    file.read(from, bytes, at);
    stream_.synchronize();  // the other half has arrived
    driver_.check(driver_.copy_to_device_async(weights_.address() + at, from, bytes, stream_.get()),
                  "cuMemcpyHtoD");
    at += bytes;
  }
  stream_.synchronize();
}

size_t CudaExecutor::free_memory() const { return bound(driver_).free_memory(); }

void CudaExecutor::check_limits(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const {
  const auto check = [](const char* option, int32_t asked, uint32_t built) {
    if (asked < 1 || static_cast<uint32_t>(asked) > built) {
      throw Error("InvalidOptionError",
                  concat(option, ": the engine was built for steps of at most ", built, ", got ", asked,
                         "; ask for less, or build it with a larger --", option));
    }
  };
  check("max-num-tokens", max_tokens, plan_.max_tokens);
  check("max-batch-size", max_seqs, plan_.max_seqs);
  if (max_rows < 1 || static_cast<uint32_t>(max_rows) > plan_.max_rows) {
    throw Error("InvalidOptionError",
                concat("the engine was built for logits of at most ", plan_.max_rows,
                       " tokens of a step, got ", max_rows,
                       "; ask for a smaller max-batch-size or max-prompt-logprob-rows, or for fewer rows of "
                       "speculative"));
  }
}

size_t CudaExecutor::step_bytes(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const {
  size_t bytes = plan_.workspace_bytes;
  for (const CudaPlan::Slot& slot : plan_.slots) {
    const int32_t rows = slot.kind == RowKind::kTokens ? max_tokens
                         : slot.kind == RowKind::kRows ? max_rows
                                                       : max_seqs;
    bytes += aligned(slot.row_bytes * static_cast<size_t>(rows));
  }
  return bytes + MetadataLayout(largest_shape(max_tokens, max_rows, max_seqs)).bytes;
}

StepShape CudaExecutor::largest_shape(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const {
  const std::vector<int32_t> blocks(plan_.groups.size(), most_blocks(facts_));
  StepShape shape{max_tokens, max_rows, max_seqs, blocks, !plan_.states.empty()};
  shape.feature_group = facts_.feature_group;
  return shape;
}

// Returns the most rows of the heads: a sequence has one.
size_t CudaExecutor::draft_rows(int32_t max_rows, int32_t max_seqs) const {
  return static_cast<size_t>(std::min(max_rows, max_seqs));
}

void CudaExecutor::allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                            int32_t max_seqs, int32_t state_slots) {
  if (checker_) refuse("allocate: may be called once only");
  if (blocks.size() != plan_.groups.size()) refuse("allocate: every cache group needs its number of blocks");
  if (plan_.states.empty() ? state_slots != 0 : state_slots < 1) {
    refuse(concat("allocate: state_slots must be ", plan_.states.empty() ? "0" : "positive",
                  " for a model with ", facts_.state_bytes, " bytes of states, are ", state_slots));
  }
  check_limits(max_tokens, max_rows, max_seqs);
  bound(driver_);
  limits_ = {max_tokens, max_rows, max_seqs, state_slots};
  size_t bytes = 0;
  std::vector<size_t> offsets;
  for (const CudaPlan::Slot& slot : plan_.slots) {
    const int32_t rows = slot.kind == RowKind::kTokens ? max_tokens
                         : slot.kind == RowKind::kRows ? max_rows
                                                       : max_seqs;
    offsets.push_back(bytes);
    bytes += aligned(slot.row_bytes * static_cast<size_t>(rows));
  }
  activations_ = DeviceMemory(driver_, bytes, "activations");
  for (const size_t offset : offsets) slots_.push_back(activations_.address() + offset);
  workspace_ = DeviceMemory(driver_, plan_.workspace_bytes, "workspace of kernels");
  const size_t packed = MetadataLayout(largest_shape(max_tokens, max_rows, max_seqs)).bytes;
  metadata_ = DeviceMemory(driver_, packed, "metadata of steps");
  packed_ = PinnedMemory(driver_, packed, "metadata of steps");
  logits_ = PinnedMemory(driver_, plan_.slots[plan_.logits_slot].row_bytes * static_cast<size_t>(max_rows),
                         "logits");
  tokens_ = PinnedMemory(driver_, sizeof(int32_t) * static_cast<size_t>(max_rows), "tokens");
  if (plan_.heads()) {
    draft_logits_ =
        PinnedMemory(driver_, plan_.slots[plan_.draft_logits_slot].row_bytes * draft_rows(max_rows, max_seqs),
                     "logits of heads");
  }
  blocks_ = blocks;
  for (const int32_t count : blocks) spare_.push_back(count);  // one block more than the scheduler knows of
  for (PageTensor& tensor : pages_) {
    tensor.memory = DeviceMemory(
        driver_, tensor.block_bytes * (static_cast<size_t>(blocks[tensor.group]) + 1), "KV cache");
    // Attention multiplies the value of a masked position by 0, so the value must not be NaN.
    driver_.check(driver_.set_bytes_async(tensor.memory.address(), 0, tensor.memory.bytes(), stream_.get()),
                  "cuMemsetD8Async");
  }
  if (state_slots > 0) {
    states_ = DeviceMemory(driver_, plan_.state_bytes() * (static_cast<size_t>(state_slots) + 1), "states");
  }
  stream_.synchronize();
  checker_ = std::make_unique<StepChecker>(facts_, limits_, blocks);
  if (!plan_.heads()) return;
  const auto none = static_cast<int32_t>(blocks.size());  // heads without attention write to no group
  const StepLimits limits{max_tokens, static_cast<int32_t>(draft_rows(max_rows, max_seqs)), max_seqs, 0};
  draft_checker_ = std::make_unique<StepChecker>(facts_, limits, blocks, 0,
                                                 facts_.draft_group < 0 ? none : facts_.draft_group);
}

// The tasks compute with denormals, as threads outside of the team do.
void CudaExecutor::run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) {
  team_.run(tasks, [&](int task, int thread) {
    const DenormalGuard guard(false);
    fn(task, thread);
  });
}

bool CudaExecutor::decodes(const Step& step) const {
  return graphs_wanted_ && step.tokens() == step.seqs() && step.rows() == step.seqs();
}

StepShape CudaExecutor::shape_of(const Step& step, bool bucket) const {
  StepShape shape{step.tokens(), step.rows(), step.seqs(), {}, !plan_.states.empty(), !step.draws.empty()};
  shape.feature_group = facts_.feature_group;
  for (const GroupTables& group : step.groups) shape.max_blocks.push_back(group.max_blocks);
  if (!bucket) return shape;
  shape.seqs = std::min({bucket_of(step.seqs()), limits_.seqs, limits_.tokens, limits_.rows});
  shape.tokens = shape.rows = shape.seqs;
  const int32_t most = most_blocks(facts_);
  for (int32_t& blocks : shape.max_blocks)
    blocks =
        std::max(blocks, std::min(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(blocks))), most));
  return shape;
}

CudaExecutor::Prepared CudaExecutor::prepare(const StepShape& shape) const {
  std::vector<int64_t> variables{shape.tokens, shape.rows, shape.seqs};
  variables.insert(variables.end(), shape.max_blocks.begin(), shape.max_blocks.end());
  for (const int32_t count : blocks_) variables.push_back(int64_t{count} + 1);
  return {shape, MetadataLayout(shape), {plan_.expressions, variables}};
}

LogitRows CudaExecutor::run(const Step& step) {
  if (!checker_) refuse("run: allocate() must be called first");
  checker_->check(step);
  check_draws("run", step, draws_tokens());
  features_there_ = false;
  if (step.tokens() == 0) return {};
  const bool graph = decodes(step);
  StepShape shape = shape_of(step, graph);
  shape.features = features_wanted_ && plan_.heads();
  const Prepared prepared = prepare(shape);
  run_parts(step, prepared, graph);
  features_there_ = shape.features;
  return take_tokens(step, results_of(false));
}

void CudaExecutor::check_draws(const char* call, const Step& step, bool able) const {
  if (step.draws.empty() || (able && step.draws.size() == static_cast<size_t>(step.rows()))) return;
  refuse(concat(call, ": an engine that draws tokens takes how for each of ", step.rows(), " rows, got ",
                step.draws.size()));
}

CudaExecutor::Results CudaExecutor::results_of(bool heads) const {
  if (heads) return {plan_.draft_logits_slot, plan_.draft_tokens_slot, draft_logits_, facts_.draft_vocab};
  return {plan_.logits_slot, plan_.tokens_slot, logits_, facts_.vocab_size};
}

// Starts the parts of a step's shape, and waits for the results.
void CudaExecutor::run_parts(const Step& step, const Prepared& prepared, bool graph) {
  if (prepared.layout.bytes > packed_.bytes())
    refuse("run: the block tables are wider than the longest sequence");
  try {
    start_step(step, prepared, graph);
  } catch (...) {
    settle();
    throw;
  }
  stream_.synchronize();
}

DraftRows CudaExecutor::run_draft(const Step& step, const float* /*features*/) {
  if (!plan_.heads()) refuse("run_draft: the plan has no heads");
  if (!draft_checker_) refuse("run_draft: allocate() must be called first");
  check_draft(step);
  check_draws("run_draft", step, draws_drafts());
  features_there_ = false;
  if (step.tokens() == 0) return {};
  const bool graph = decodes(step);
  StepShape shape = shape_of(step, graph);
  shape.heads = true;
  run_parts(step, prepare(shape), graph);
  ++counters_.head_steps;
  return {take_tokens(step, results_of(true)), {nullptr, 0, true}};
}

// Heads without attention have slots alone, from which they read: several sequences may share them.
void CudaExecutor::check_draft(const Step& step) {
  draft_checker_->check(step);
  if (plan_.heads_attend) return;
  const auto group = static_cast<size_t>(facts_.feature_group);
  const std::vector<int32_t>& slots = step.groups[group].slots;
  const int64_t most = int64_t{blocks_[group]} * facts_.block_size;
  const auto there = [&](int32_t slot) { return slot >= 0 && slot < most; };
  if (slots.size() != step.token_ids.size() || !std::ranges::all_of(slots, there)) {
    refuse(concat("run_draft: each of ", step.tokens(), " tokens must have a slot of 0 to ", most - 1,
                  " in cache group ", group));
  }
}

// Returns the rows of a step that was computed. Fetches the logits of the rows of which the device does not
// know the token.
LogitRows CudaExecutor::take_tokens(const Step& step, const Results& from) {
  const LogitRows rows{reinterpret_cast<const float*>(from.logits.data()), from.columns, step.rows()};
  if (step.draws.empty()) return rows;
  const auto* tokens = reinterpret_cast<const int32_t*>(tokens_.data());
  int64_t wanted = 0, undecided = 0;
  for (size_t row = 0; row < step.draws.size(); ++row) {
    if (tokens[row] < -1 || tokens[row] >= from.columns) {
      throw DeviceError(concat("[cuda] the kernels that draw tokens gave ", tokens[row],
                               ", and the model has ", from.columns, " tokens; this is a bug of theirs"));
    }
    wanted += step.draws[row].wanted;
    undecided += step.draws[row].wanted && tokens[row] < 0;
  }
  counters_.drawn += wanted - undecided;
  counters_.undecided += undecided;
  const auto unknown = [&](size_t row) { return step.draws[row].wanted && tokens[row] < 0; };
  if (copy_rows(step.rows(), from, unknown)) stream_.synchronize();
  return {rows.data, rows.stride, rows.rows, tokens};
}

// Starts copies of some rows of logits, one for each run of them. Returns whether there are any.
template <typename Wanted>
bool CudaExecutor::copy_rows(int32_t rows, const Results& from, const Wanted& wanted) {
  const size_t row_bytes = plan_.slots[from.logits_slot].row_bytes, end = static_cast<size_t>(rows);
  bool any = false;
  for (size_t first = 0; first < end;) {
    size_t last = first;
    while (last < end && wanted(last)) ++last;
    if (last > first) {
      driver_.check(driver_.copy_to_host_async(from.logits.data() + first * row_bytes,
                                               slots_[from.logits_slot] + first * row_bytes,
                                               (last - first) * row_bytes, stream_.get()),
                    "cuMemcpyDtoHAsync");
      any = true;
    }
    first = last + 1;
  }
  return any;
}

void CudaExecutor::start_step(const Step& step, const Prepared& prepared, bool graph) {
  pack_step(step, prepared.shape, spare_, limits_.state_slots, facts_.block_size, prepared.layout,
            packed_.data());
  driver_.check(
      driver_.copy_to_device_async(metadata_.address(), packed_.data(), prepared.layout.bytes, stream_.get()),
      "cuMemcpyHtoDAsync");
  if (graph) {
    replay(prepared);
  } else {
    start_all(prepared);
    ++counters_.eager;
  }
  const Results from = results_of(prepared.shape.heads);
  copy_rows(step.rows(), from, [&](size_t row) { return step.draws.empty() || !step.draws[row].wanted; });
  if (!step.draws.empty()) {
    driver_.check(
        driver_.copy_to_host_async(tokens_.data(), slots_[from.tokens_slot],
                                   sizeof(int32_t) * static_cast<size_t>(step.rows()), stream_.get()),
        "cuMemcpyDtoHAsync");
  }
}

// The first step of a shape runs as it is: it makes the libraries choose their kernels, which a capture may
// not see. The second is captured. A new shape takes the place of the one that was used least recently; run()
// has waited for every step of it.
void CudaExecutor::replay(const Prepared& step) {
  std::unique_ptr<Graph>* graph = graphs_.find(step.shape);
  if (!graph) {
    start_all(step);
    graphs_.add(step.shape, nullptr);
    ++counters_.eager;
    return;
  }
  if (!*graph) {
    *graph = std::make_unique<Graph>(driver_, stream_, [&] { start_all(step); });
    ++counters_.captured;
  }
  (*graph)->launch(stream_);
  ++counters_.replayed;
}

void CudaExecutor::start_all(const Prepared& step) {
  if (step.shape.heads) {
    start_range(plan_.first_head, plan_.heads_end(), step);
    if (step.shape.draws) start_range(plan_.heads_end(), plan_.instructions.size(), step);
    return;
  }
  start_range(0, plan_.model_end(), step);
  if (step.shape.draws) start_range(plan_.first_draw, plan_.draws_end(), step);
  if (step.shape.features) start_range(plan_.first_feature, plan_.first_head, step);
}

void CudaExecutor::start_range(size_t begin, size_t end, const Prepared& step) {
  for (size_t i = begin; i < end; ++i) {
    const CudaInstruction& instruction = plan_.instructions[i];
    try {
      start(instruction, step);
    } catch (const DeviceError& error) {
      throw DeviceError(concat(error.what(), ", in ", instruction.name));
    } catch (const Error& error) {
      throw Error(error.type(), concat(error.what(), ", in ", instruction.name));
    }
  }
}

void CudaExecutor::start(const CudaInstruction& instruction, const Prepared& step) {
  const DecisionNode* node = instruction.decisions.data();
  while (node->type == DecisionNode::kBranch)
    node = &instruction.decisions[step.values[node->condition] ? node->yes : node->no];
  if (node->type == DecisionNode::kRefused) refuse(concat("a step of this size is refused: ", node->why));
  for (const WorkRecord& work : node->work) std::visit([&](const auto& one) { start(one, step); }, work);
}

void CudaExecutor::start(const ProductRecord& record, const Prepared& step) {
  const auto optional = [&](const Place& place) { return place.absent() ? 0 : address(place, step); };
  const Product product{step.values[record.m],
                        record.n,
                        record.k,
                        record.stride,
                        record.dtype,
                        record.out_dtype,
                        address(record.x, step),
                        address(record.w, step),
                        optional(record.bias),
                        optional(record.c),
                        address(record.d, step)};
  if (product.m > 0) products_.start(product, stream_.get());
}

void CudaExecutor::start(const LaunchRecord& launch, const Prepared& step) {
  const int64_t grid[] = {step.values[launch.grid[0]], step.values[launch.grid[1]],
                          step.values[launch.grid[2]]};
  uint64_t values[kMostParameters];
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    const LaunchArgument& argument = launch.arguments[i];
    switch (argument.kind) {
      case LaunchArgument::kPlace:
        values[i] = address(argument.place, step);
        break;
      case LaunchArgument::kInteger:
        values[i] = static_cast<uint64_t>(step.values[argument.expression]);
        break;
      case LaunchArgument::kFloat:
        values[i] = std::bit_cast<uint32_t>(argument.number);
        break;
    }
  }
  kernels_.start(launch.kernel, grid, values, launch.arguments.size(), stream_.get());
}

DevicePointer CudaExecutor::address(const Place& place, const Prepared& step) const {
  const auto index = static_cast<size_t>(place.index);
  switch (place.kind) {
    case Place::kSlot:
      return slots_[index] + place.offset;
    case Place::kWeight:
      return weights_.address() + plan_.weights[index].offset + place.offset;
    case Place::kMetadata:
      return metadata_.address() + step.layout.offsets[index];
    case Place::kPages:
      return pages_[first_page_[index / kPagesOfALayer] + index % kPagesOfALayer].memory.address();
    case Place::kWorkspace:
      return workspace_.address() + place.offset;
    case Place::kStates:
      return states_.address() + state_offsets_[index];
    case Place::kAbsent:
      break;
  }
  return 0;
}

void CudaExecutor::check_blocks(const char* call, int32_t group,
                                std::initializer_list<int32_t> blocks) const {
  if (group < 0 || static_cast<size_t>(group) >= blocks_.size())
    refuse(concat(call, ": there is no cache group ", group));
  for (const int32_t block : blocks) {
    if (block < 0 || block >= blocks_[static_cast<size_t>(group)])
      refuse(concat(call, ": there is no block ", block, " in cache group ", group));
  }
}

void CudaExecutor::copy_block(int32_t group, int32_t from, int32_t to) {
  check_blocks("copy_block", group, {from, to});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    const auto at = [&](int32_t block) {
      return tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block);
    };
    driver_.check(driver_.copy_on_device_async(at(to), at(from), tensor.block_bytes, stream_.get()),
                  "cuMemcpyDtoDAsync");
  }
}

void CudaExecutor::check_slots(const char* call, std::initializer_list<int32_t> slots) const {
  for (const int32_t slot : slots) {
    if (slot < 0 || slot >= limits_.state_slots)
      refuse(concat(call, ": slot must be 0 to ", limits_.state_slots - 1, ", is ", slot));
  }
}

DevicePointer CudaExecutor::state_at(int32_t slot) const {
  return states_.address() + plan_.state_bytes() * static_cast<size_t>(slot);
}

void CudaExecutor::copy_state(int32_t from, int32_t to) {
  check_slots("copy_state", {from, to});
  if (from == to) return;
  driver_.check(
      driver_.copy_on_device_async(state_at(to), state_at(from), plan_.state_bytes(), stream_.get()),
      "cuMemcpyDtoDAsync");
}

void CudaExecutor::read_state(int32_t slot, char* to) const {
  check_slots("read_state", {slot});
  driver_.check(driver_.copy_to_host_async(to, state_at(slot), plan_.state_bytes(), stream_.get()),
                "cuMemcpyDtoHAsync");
  stream_.synchronize();
}

void CudaExecutor::write_state(int32_t slot, const char* from) {
  check_slots("write_state", {slot});
  driver_.check(driver_.copy_to_device_async(state_at(slot), from, plan_.state_bytes(), stream_.get()),
                "cuMemcpyHtoDAsync");
  stream_.synchronize();
}

void CudaExecutor::read_block(int32_t group, int32_t block, char* to) const {
  check_blocks("read_block", group, {block});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    driver_.check(driver_.copy_to_host_async(
                      to, tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block),
                      tensor.block_bytes, stream_.get()),
                  "cuMemcpyDtoHAsync");
    to += tensor.block_bytes;
  }
  stream_.synchronize();
}

void CudaExecutor::write_block(int32_t group, int32_t block, const char* from) {
  check_blocks("write_block", group, {block});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    driver_.check(driver_.copy_to_device_async(
                      tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block), from,
                      tensor.block_bytes, stream_.get()),
                  "cuMemcpyHtoDAsync");
    from += tensor.block_bytes;
  }
  stream_.synchronize();
}

}  // namespace tensorwright
