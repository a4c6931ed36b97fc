// Runs steps of target cuda: what a step starts on the stream, as a CUDA graph or kernel by kernel, and what
// comes back.
#include <algorithm>
#include <bit>
#include <utility>
#include <variant>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/cuda/cuda_executor.h"

namespace tensorwright {

namespace {

// Returns the size of the graph that takes a step of so many sequences: few sizes, and at most a seventh of
// the rows are padding from 8 sequences on.
int32_t bucket_of(int32_t seqs) {
  if (seqs <= 8) return seqs;
  const auto whole = static_cast<uint32_t>(seqs - 1);
  const auto unit = static_cast<int32_t>(std::bit_floor(whole) / 8);
  return (seqs + unit - 1) / unit * unit;
}

}  // namespace

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
  const int32_t most = most_blocks();
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
  if (underway_ > 0) refuse("run: another step is underway");
  begin(step);
  return step.tokens() == 0 ? LogitRows{} : finish();
}

void CudaExecutor::start(const Step& step) {
  if (!runs_ahead()) refuse("start: this engine computes one step after the other");
  if (step.tokens() == 0) refuse("start: a step must have tokens");
  begin(step);
}

// Starts a step, behind the one that is underway. If it throws, the step has had no effect but on
// activations.
void CudaExecutor::begin(const Step& step) {
  if (!checker_) refuse("run: allocate() must be called first");
  if (underway_ == buffers_.size()) refuse("start: no more steps may be underway");
  checker_->check(step, underway_ > 0 ? buffers_[first_underway()].rows : 0);
  check_draws("run", step, draws_tokens());
  check_references(step);
  features_there_ = false;
  if (step.tokens() == 0) return;
  const bool graph = decodes(step);
  StepShape shape = shape_of(step, graph);
  shape.features = features_wanted_ && plan_.heads();
  begin_parts(step, prepare(shape), graph);
  features_there_ = shape.features;
}

// Starts the parts of the plan that the shape names.
void CudaExecutor::begin_parts(const Step& step, const Prepared& prepared, bool graph) {
  StepBuffers& own = buffers_[next_buffers_];
  if (prepared.layout.bytes > own.metadata.bytes())
    refuse("run: the block tables are wider than the longest sequence");
  own.rows = step.rows();
  own.draws = step.draws;
  try {
    if (underway_ > 0) keep_logits(buffers_[first_underway()]);
    start_step(step, prepared, graph, own);
    own.done.record(stream_);
  } catch (...) {
    settle();
    throw;
  }
  next_buffers_ = (next_buffers_ + 1) % buffers_.size();
  counters_.ahead += underway_ > 0;
  ++underway_;
}

// Requires that the step says of each row how to draw, or of none.
void CudaExecutor::check_draws(const char* call, const Step& step, bool able) const {
  if (step.draws.empty() || (able && step.draws.size() == static_cast<size_t>(step.rows()))) return;
  refuse(concat(call, ": an engine that draws tokens takes how for each of ", step.rows(), " rows, got ",
                step.draws.size()));
}

// Requires that tokens of the step that is underway are of rows that it draws from.
void CudaExecutor::check_references(const Step& step) const {
  for (const int32_t token : step.token_ids) {
    if (token >= 0) continue;
    const auto row = static_cast<size_t>(-1 - token);
    const std::vector<RowDraw>& draws = buffers_[first_underway()].draws;
    if (draws.empty() || !draws[row].wanted)
      refuse(concat("start: a token must be that of a row that is drawn, row ", row, " is not"));
  }
}

// Copies the logits of a step that is underway before another one writes over them: the host wants those of
// rows of which the device is not sure.
void CudaExecutor::keep_logits(const StepBuffers& last) {
  if (last.draws.empty()) return;
  const size_t bytes = plan_.slots[plan_.logits_slot].row_bytes * static_cast<size_t>(last.rows);
  driver_.check(
      driver_.copy_on_device_async(kept_.address(), slots_[plan_.logits_slot], bytes, stream_.get()),
      "cuMemcpyDtoDAsync");
  has_kept_ = true;
}

LogitRows CudaExecutor::finish() {
  if (underway_ == 0) refuse("finish: no step is underway");
  return collect(false);
}

// Returns where the results of the model's parts of a step are, or of the heads'.
CudaExecutor::Results CudaExecutor::results_of(const StepBuffers& buffers, bool heads) const {
  const uint32_t logits = heads ? plan_.draft_logits_slot : plan_.logits_slot;
  const uint32_t tokens = heads ? plan_.draft_tokens_slot : plan_.tokens_slot;
  return {slots_[logits], plan_.slots[logits].row_bytes, plan_.draws() ? slots_[tokens] : 0,
          heads ? draft_logits_ : buffers.logits, heads ? facts_.draft_vocab : facts_.vocab_size};
}

// Waits for the step that was started first, and returns its rows.
LogitRows CudaExecutor::collect(bool heads) {
  const StepBuffers& own = buffers_[first_underway()];
  own.done.synchronize();
  --underway_;
  Results from = results_of(own, heads);
  if (std::exchange(has_kept_, false)) from.logits = kept_.address();
  LogitRows rows{reinterpret_cast<const float*>(from.host_logits.data()), from.columns, own.rows};
  if (own.draws.empty()) return rows;
  take_tokens(own, from);
  rows.tokens = own.drawn();
  return rows;
}

DraftRows CudaExecutor::run_draft(const Step& step, const float* /*features*/) {
  if (!plan_.heads()) refuse("run_draft: the plan has no heads");
  if (!draft_checker_) refuse("run_draft: allocate() must be called first");
  if (underway_ > 0) refuse("run_draft: another step is underway");
  check_draft(step);
  check_draws("run_draft", step, draws_drafts());
  features_there_ = false;
  if (step.tokens() == 0) return {};
  const bool graph = decodes(step);
  StepShape shape = shape_of(step, graph);
  shape.heads = true;
  begin_parts(step, prepare(shape), graph);
  ++counters_.head_steps;
  return {collect(true), {nullptr, 0, true}};
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

// Fetches the logits of the rows of which the device does not know the token.
void CudaExecutor::take_tokens(const StepBuffers& buffers, const Results& from) {
  const int32_t* tokens = buffers.drawn();
  int64_t wanted = 0, undecided = 0;
  for (size_t row = 0; row < buffers.draws.size(); ++row) {
    if (tokens[row] < -1 || tokens[row] >= from.columns) {
      throw DeviceError(concat("[cuda] the kernels that draw tokens gave ", tokens[row],
                               ", and the model has ", from.columns, " tokens; this is a bug of theirs"));
    }
    wanted += buffers.draws[row].wanted;
    undecided += buffers.draws[row].wanted && tokens[row] < 0;
  }
  counters_.drawn += wanted - undecided;
  counters_.undecided += undecided;
  const auto unknown = [&](size_t row) { return buffers.draws[row].wanted && tokens[row] < 0; };
  if (copy_rows(buffers, from, unknown)) stream_.synchronize();
}

// Starts copies of some rows of logits, one for each run of them. Returns whether there are any.
template <typename Wanted>
bool CudaExecutor::copy_rows(const StepBuffers& buffers, const Results& from, const Wanted& wanted) {
  const auto end = static_cast<size_t>(buffers.rows);
  bool any = false;
  for (size_t first = 0; first < end;) {
    size_t last = first;
    while (last < end && wanted(last)) ++last;
    if (last > first) {
      driver_.check(driver_.copy_to_host_async(from.host_logits.data() + first * from.row_bytes,
                                               from.logits + first * from.row_bytes,
                                               (last - first) * from.row_bytes, stream_.get()),
                    "cuMemcpyDtoHAsync");
      any = true;
    }
    first = last + 1;
  }
  return any;
}

// Puts the tokens that the step before draws where this one reads its token ids, one copy for each run of
// them. A token of which the device is not sure is -1, which embeds as zeros.
void CudaExecutor::take_over(const Step& step, const Prepared& prepared) {
  const std::vector<int32_t>& ids = step.token_ids;
  const DevicePointer to =
      metadata_.address() + prepared.layout.offsets[static_cast<size_t>(Metadata::kTokenIds)];
  for (size_t first = 0; first < ids.size();) {
    size_t last = first + 1;
    if (ids[first] < 0) {
      while (last < ids.size() && ids[last] == ids[last - 1] - 1) ++last;
      const auto row = static_cast<size_t>(-1 - ids[first]);
      driver_.check(driver_.copy_on_device_async(to + first * sizeof(int32_t),
                                                 slots_[plan_.tokens_slot] + row * sizeof(int32_t),
                                                 (last - first) * sizeof(int32_t), stream_.get()),
                    "cuMemcpyDtoDAsync");
    }
    first = last;
  }
}

void CudaExecutor::start_step(const Step& step, const Prepared& prepared, bool graph,
                              const StepBuffers& buffers) {
  pack_step(step, prepared.shape, spare_, limits_.state_slots, facts_.block_size, prepared.layout,
            buffers.metadata.data());
  driver_.check(driver_.copy_to_device_async(metadata_.address(), buffers.metadata.data(),
                                             prepared.layout.bytes, stream_.get()),
                "cuMemcpyHtoDAsync");
  take_over(step, prepared);
  if (graph) {
    replay(prepared);
  } else {
    start_all(prepared);
    ++counters_.eager;
  }
  const Results from = results_of(buffers, prepared.shape.heads);
  copy_rows(buffers, from, [&](size_t row) { return step.draws.empty() || !step.draws[row].wanted; });
  if (!step.draws.empty()) {
    driver_.check(
        driver_.copy_to_host_async(buffers.tokens.data(), from.tokens,
                                   sizeof(int32_t) * static_cast<size_t>(step.rows()), stream_.get()),
        "cuMemcpyDtoHAsync");
  }
}

// The first step of a shape runs as it is: it makes the libraries choose their kernels, which a capture may
// not see. The second is captured. A new shape takes the place of the one that was used least recently, which
// is none of the two steps that may be underway.
void CudaExecutor::replay(const Prepared& step) {
  std::unique_ptr<StepGraph>* graph = graphs_.find(step.shape);
  if (!graph) {
    start_all(step);
    graphs_.add(step.shape, nullptr);
    ++counters_.eager;
    return;
  }
  if (!*graph) {
    *graph = std::make_unique<StepGraph>(driver_, stream_, [&] { start_all(step); });
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

}  // namespace tensorwright
