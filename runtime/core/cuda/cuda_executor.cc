// Opens an engine of target cuda on a device, and takes the memory that its steps need. Its steps are in
// cuda_executor_steps.cc, what is kept between them in cuda_executor_cache.cc.
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

void CudaExecutor::refuse(const std::string& what) {
  throw Error("InvalidRequestError", concat("[cuda] ", what));
}

int32_t CudaExecutor::most_blocks() const {
  return (facts_.max_seq_len + facts_.block_size - 1) / facts_.block_size;
}

CudaExecutor::CudaExecutor(const std::string& plan_path, const std::string& weights_path,
                           const CudaExecutorOptions& options)
    : plan_(read_cuda_plan(plan_path)),
      facts_(plan_.facts()),
      graphs_wanted_(options.graphs),
      draws_wanted_(options.draws),
      ahead_wanted_(options.ahead),
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
  if (runs_ahead()) bytes += plan_.slots[plan_.logits_slot].row_bytes * static_cast<size_t>(max_rows);
  return bytes + MetadataLayout(largest_shape(max_tokens, max_rows, max_seqs)).bytes;
}

StepShape CudaExecutor::largest_shape(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const {
  const std::vector<int32_t> blocks(plan_.groups.size(), most_blocks());
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
  const size_t row_bytes = plan_.slots[plan_.logits_slot].row_bytes, rows = static_cast<size_t>(max_rows);
  for (int i = 0; i < (runs_ahead() ? 2 : 1); ++i) buffers_.emplace_back(driver_, packed, row_bytes, rows);
  if (runs_ahead()) kept_ = DeviceMemory(driver_, row_bytes * rows, "logits");
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

}  // namespace tensorwright
