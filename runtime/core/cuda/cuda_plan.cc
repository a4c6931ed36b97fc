#include "runtime/core/cuda/cuda_plan.h"

#include <cstring>
#include <span>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/mapped_file.h"

namespace tensorwright {

namespace {

constexpr char kMagic[] = "TWCUDAPL";
constexpr uint32_t kVersion = 3;
constexpr size_t kMostBytes = size_t{1} << 30;
constexpr uint32_t kMostWarps = 32, kMostShared = 256 << 10;
constexpr uint32_t kMostLimit = 1 << 24;
constexpr uint64_t kStateAlignment = 64;  // of the state of a layer in that of a sequence

// Returns the CRC-32 of zlib and gzip (RFC 1952, section 8).
uint32_t crc32(std::span<const std::byte> bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// Reads the file in sequence, and refuses what runs over its end.
class PlanReader {
 public:
  PlanReader(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error("EngineError", concat(path_, ": ", why, "; rebuild the engine with build-engine"));
  }
  void require(bool holds, const char* why) const {
    if (!holds) refuse(why);
  }

  template <typename Number>
  Number read() {
    Number number;
    std::memcpy(&number, take(sizeof(Number)), sizeof(Number));
    return number;
  }
  uint32_t u32() { return read<uint32_t>(); }
  uint64_t u64() { return read<uint64_t>(); }
  int64_t i64() { return read<int64_t>(); }

  std::string text() {
    const uint32_t size = u32();
    return {reinterpret_cast<const char*>(take(size)), size};
  }
  // Reads a list whose entries have `least` bytes or more.
  template <typename Entry, typename Read>
  std::vector<Entry> list(size_t least, Read read_entry) {
    const uint32_t count = u32();
    require(count <= (bytes_.size() - at_) / least, "a list is longer than the file");
    std::vector<Entry> entries;
    entries.reserve(count);
    for (uint32_t i = 0; i < count; ++i) entries.push_back(read_entry());
    return entries;
  }
  uint32_t below(size_t count, const char* what) {
    const uint32_t index = u32();
    if (index >= count) refuse(concat("there are ", count, " ", what, "s, and number ", index, " is named"));
    return index;
  }
  bool done() const { return at_ == bytes_.size(); }
  std::span<const std::byte> rest() const { return bytes_.subspan(at_); }

 private:
  const std::byte* take(size_t size) {
    require(size <= bytes_.size() - at_, "it is truncated");
    const std::byte* data = bytes_.data() + at_;
    at_ += size;
    return data;
  }

  const std::string path_;
  const std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

class PlanParser {
 public:
  explicit PlanParser(PlanReader& in) : in_(in) {}

  CudaPlan parse(size_t file_bytes) {
    read_head(file_bytes);
    plan_.groups = in_.list<CudaPlan::Group>(8, [&] { return CudaPlan::Group{in_.u32(), in_.u32()}; });
    plan_.layers = in_.list<CudaPlan::KvLayer>(8, [&] { return layer(); });
    plan_.states = in_.list<uint64_t>(8, [&] { return state(); });
    plan_.slots = in_.list<CudaPlan::Slot>(12, [&] { return slot(); });
    plan_.weights = in_.list<CudaPlan::Weight>(16, [&] { return weight(); });
    plan_.kernels = in_.list<KernelRecord>(20, [&] { return kernel(); });
    read_expressions();
    read_heads();
    plan_.instructions = in_.list<CudaInstruction>(8, [&] { return instruction(); });
    plan_.logits_slot = in_.below(plan_.slots.size(), "slot");
    const CudaPlan::Slot& logits = plan_.slots[plan_.logits_slot];
    in_.require(logits.kind == RowKind::kRows && logits.row_bytes == uint64_t{4} * plan_.vocab_size,
                "the logits must be rows of float32 numbers, one for each token of the vocabulary");
    read_draws();
    check_heads();
    in_.require(in_.done(), "it has bytes behind its end");
    return std::move(plan_);
  }

 private:
  void read_head(size_t file_bytes) {
    char magic[sizeof kMagic - 1];
    for (char& c : magic) c = in_.read<char>();
    in_.require(std::memcmp(magic, kMagic, sizeof magic) == 0, "it is no plan of target cuda");
    const uint32_t version = in_.u32();
    if (version != kVersion) in_.refuse(concat("it has version ", version, ", this is ", kVersion));
    in_.require(in_.u64() == file_bytes, "it is truncated");
    const uint32_t checksum = in_.u32();
    in_.require(crc32(in_.rest()) == checksum, "it is altered");
    plan_.sm = in_.u32();
    plan_.vocab_size = in_.u32();
    plan_.max_seq_len = in_.u32();
    plan_.block_size = in_.u32();
    plan_.dtype = dtype();
    plan_.weights_bytes = in_.u64();
    plan_.max_tokens = in_.u32();
    plan_.max_rows = in_.u32();
    plan_.max_seqs = in_.u32();
    plan_.workspace_bytes = in_.u64();
    for (const uint32_t size : {plan_.vocab_size, plan_.max_seq_len, plan_.block_size, plan_.max_tokens,
                                plan_.max_rows, plan_.max_seqs}) {
      in_.require(size >= 1 && size <= kMostLimit, "a size of the model or of its steps is out of range");
    }
  }

  void read_draws() {
    plan_.first_draw = in_.u32();
    plan_.tokens_slot = in_.u32();
    if (!plan_.draws()) return;
    in_.require(plan_.first_draw < plan_.instructions.size() &&
                    (!plan_.heads() || plan_.first_draw < plan_.first_feature),
                "no instruction draws the tokens");
    check_tokens(plan_.tokens_slot);
  }

  void check_tokens(uint32_t slot) const {
    in_.require(slot < plan_.slots.size() && plan_.slots[slot].kind == RowKind::kRows &&
                    plan_.slots[slot].row_bytes >= sizeof(int32_t),
                "the tokens must have a number for each row of logits");
  }

  // Reads what is said of the heads that propose tokens, before the instructions, which may name it.
  void read_heads() {
    plan_.first_feature = in_.u32();
    if (!plan_.heads()) return;
    plan_.first_head = in_.u32();
    plan_.draft_logits_slot = in_.below(plan_.slots.size(), "slot");
    plan_.feature_layer = in_.below(plan_.layers.size(), "layer of the cache");
    plan_.feature_width = in_.u32();
    plan_.heads_attend = in_.u32() != 0;
    plan_.first_draft_draw = in_.u32();
    plan_.draft_tokens_slot = in_.u32();
    const uint64_t number = plan_.dtype == CudaType::kFloat32 ? 4 : 2;
    const std::vector<uint64_t>& pages = plan_.layers[plan_.feature_layer].page_bytes;
    in_.require(plan_.feature_width >= 1 && plan_.feature_width <= kMostLimit && pages.size() == 1 &&
                    pages[0] == number * plan_.block_size * plan_.feature_width,
                "the features of heads must have a row of activations for each position of a block");
    const CudaPlan::Slot& logits = plan_.slots[plan_.draft_logits_slot];
    in_.require(logits.kind == RowKind::kRows && logits.row_bytes % sizeof(float) == 0 &&
                    logits.row_bytes / sizeof(float) <= kMostLimit,
                "the logits of heads must be rows of float32 numbers");
    in_.require(plan_.states.empty(), "a model with recurrent layers cannot have heads");
  }

  void check_heads() {
    if (!plan_.heads()) return;
    in_.require(plan_.first_feature <= plan_.first_head && plan_.first_head < plan_.instructions.size(),
                "no instruction is of the heads");
    if (!plan_.draws_drafts()) return;
    in_.require(
        plan_.first_draft_draw > plan_.first_head && plan_.first_draft_draw < plan_.instructions.size(),
        "no instruction draws the heads' tokens");
    check_tokens(plan_.draft_tokens_slot);
  }

  CudaType dtype() {
    const uint32_t number = in_.u32();
    in_.require(number <= static_cast<uint32_t>(CudaType::kFloat16), "it names an unknown type");
    return static_cast<CudaType>(number);
  }

  CudaPlan::KvLayer layer() {
    const uint32_t group = in_.below(plan_.groups.size(), "cache group");
    std::vector<uint64_t> bytes = in_.list<uint64_t>(8, [&] { return in_.u64(); });
    for (const uint64_t size : bytes)
      in_.require(size >= 1 && size < uint64_t{1} << 32, "a block has no size");
    in_.require(bytes.size() <= static_cast<size_t>(kPagesOfALayer), "a layer has too many tensors");
    return {group, std::move(bytes)};
  }

  uint64_t state() {
    const uint64_t bytes = in_.u64();
    in_.require(bytes >= kStateAlignment && bytes < uint64_t{1} << 32 && bytes % kStateAlignment == 0,
                "a state has no size");
    return bytes;
  }

  CudaPlan::Slot slot() {
    const uint32_t kind = in_.u32();
    const uint64_t bytes = in_.u64();
    in_.require(kind <= static_cast<uint32_t>(RowKind::kSeqs), "a slot has an unknown kind");
    in_.require(bytes >= 1 && bytes < uint64_t{1} << 32, "a slot has no size");
    return {static_cast<RowKind>(kind), bytes};
  }

  CudaPlan::Weight weight() {
    const CudaPlan::Weight weight{in_.u64(), in_.u64()};
    in_.require(weight.offset % kCudaAlignment == 0 && weight.bytes <= plan_.weights_bytes &&
                    weight.offset <= plan_.weights_bytes - weight.bytes,
                "a weight lies outside of the weights");
    return weight;
  }

  KernelRecord kernel() {
    KernelRecord kernel;
    kernel.name = in_.text();
    kernel.num_warps = in_.u32();
    kernel.shared_bytes = in_.u32();
    kernel.parameters = in_.list<KernelRecord::Type>(4, [&] {
      const uint32_t type = in_.u32();
      in_.require(type <= KernelRecord::kFloat32, "a kernel has a parameter of an unknown type");
      return static_cast<KernelRecord::Type>(type);
    });
    kernel.code = in_.text();
    in_.require(kernel.num_warps >= 1 && kernel.num_warps <= kMostWarps &&
                    kernel.shared_bytes <= kMostShared && kernel.parameters.size() <= kMostParameters &&
                    !kernel.code.empty(),
                "the facts of a kernel are out of range");
    return kernel;
  }

  void read_expressions() {
    size_t index = 0;
    plan_.expressions = in_.list<Expression>(20, [&] {
      const uint32_t op = in_.u32();
      in_.require(op < kExpressionOps, "it has an unknown operation of sizes");
      const Expression e{static_cast<ExpressionOp>(op), in_.i64(), in_.i64()};
      const auto earlier = [&](int64_t i) { return i >= 0 && static_cast<size_t>(i) < index; };
      if (e.op == ExpressionOp::kVariable) {
        in_.require(e.a >= 0 && static_cast<size_t>(e.a) < plan_.variables(), "it names an unknown size");
      } else if (e.op != ExpressionOp::kConstant) {
        in_.require(earlier(e.a) && (e.op == ExpressionOp::kBitLength || earlier(e.b)),
                    "an expression names a later one");
      }
      ++index;
      return e;
    });
  }

  uint32_t expression() { return in_.below(plan_.expressions.size(), "expression"); }

  CudaInstruction instruction() {
    CudaInstruction instruction;
    instruction.name = in_.text();
    instruction.decisions = in_.list<DecisionNode>(8, [&] { return node(); });
    in_.require(!instruction.decisions.empty(), "an instruction starts nothing");
    for (size_t i = 0; i < instruction.decisions.size(); ++i) {
      const DecisionNode& node = instruction.decisions[i];
      if (node.type != DecisionNode::kBranch) continue;
      in_.require(node.yes > i && node.no > i && node.yes < instruction.decisions.size() &&
                      node.no < instruction.decisions.size(),
                  "a decision leads nowhere");
    }
    return instruction;
  }

  DecisionNode node() {
    DecisionNode node{};
    const uint32_t type = in_.u32();
    in_.require(type <= DecisionNode::kRefused, "a decision has an unknown type");
    node.type = static_cast<DecisionNode::Type>(type);
    if (node.type == DecisionNode::kBranch) {
      node.condition = expression();
      node.yes = in_.u32();
      node.no = in_.u32();
    } else if (node.type == DecisionNode::kWork) {
      node.work = in_.list<WorkRecord>(24, [&] { return work(); });
    } else {
      node.why = in_.text();
    }
    return node;
  }

  WorkRecord work() {
    const uint32_t kind = in_.u32();
    in_.require(kind <= 1, "a step starts something of an unknown kind");
    if (kind == 0) return launch();
    return product();
  }

  LaunchRecord launch() {
    LaunchRecord launch{};
    launch.kernel = in_.below(plan_.kernels.size(), "kernel");
    for (uint32_t& size : launch.grid) size = expression();
    const std::vector<KernelRecord::Type>& types = plan_.kernels[launch.kernel].parameters;
    launch.arguments = in_.list<LaunchArgument>(20, [&] { return argument(); });
    in_.require(launch.arguments.size() <= types.size(), "a launch has too many arguments");
    for (size_t i = 0; i < types.size(); ++i) {
      if (i >= launch.arguments.size()) {  // scratch memory that no kernel here has
        in_.require(types[i] == KernelRecord::kPointer, "a launch has too few arguments");
        continue;
      }
      const LaunchArgument::Kind kind = launch.arguments[i].kind;
      const bool integer = types[i] == KernelRecord::kInt32 || types[i] == KernelRecord::kInt64;
      const LaunchArgument::Kind wanted = integer                              ? LaunchArgument::kInteger
                                          : types[i] == KernelRecord::kFloat32 ? LaunchArgument::kFloat
                                                                               : LaunchArgument::kPlace;
      in_.require(kind == wanted, "an argument of a launch has another type than the kernel's parameter");
    }
    return launch;
  }

  LaunchArgument argument() {
    constexpr uint32_t kIntegerKind = 5, kFloatKind = 6;
    const uint32_t kind = in_.u32();
    const int64_t a = in_.i64();
    const double b = in_.read<double>();
    LaunchArgument argument{};
    if (kind == kIntegerKind) {
      in_.require(a >= 0 && static_cast<size_t>(a) < plan_.expressions.size(),
                  "it names an unknown expression");
      argument.kind = LaunchArgument::kInteger;
      argument.expression = static_cast<uint32_t>(a);
    } else if (kind == kFloatKind) {
      argument.kind = LaunchArgument::kFloat;
      argument.number = static_cast<float>(b);
    } else {
      argument.kind = LaunchArgument::kPlace;
      argument.place = place(kind, a, b);
    }
    return argument;
  }

  Place place(uint32_t kind, int64_t a, double b) {
    in_.require(b >= 0 && b < 0x1p48 && b == static_cast<double>(static_cast<uint64_t>(b)),
                "an offset is no whole number");
    const auto known = [&](size_t count) { return a >= 0 && static_cast<size_t>(a) < count; };
    bool fits = false;
    switch (kind) {
      case Place::kSlot:
        fits = known(plan_.slots.size());
        break;
      case Place::kWeight:
        fits = known(plan_.weights.size()) &&
               b <= static_cast<double>(plan_.weights[static_cast<size_t>(a)].bytes);
        break;
      case Place::kMetadata:
        fits = known(plan_.metadata()) && b == 0;
        break;
      case Place::kPages:
        fits = known(plan_.layers.size() * static_cast<size_t>(kPagesOfALayer)) && b == 0 &&
               static_cast<size_t>(a % kPagesOfALayer) <
                   plan_.layers[static_cast<size_t>(a / kPagesOfALayer)].page_bytes.size();
        break;
      case Place::kWorkspace:
        fits = b <= static_cast<double>(plan_.workspace_bytes);
        break;
      case Place::kStates:
        fits = known(plan_.states.size()) && b == 0;
        break;
      default:
        break;
    }
    in_.require(fits, "an operand lies nowhere");
    return {static_cast<Place::Kind>(kind), a, static_cast<uint64_t>(b)};
  }

  Place optional_place() {
    const uint32_t kind = in_.u32();
    const int64_t a = in_.i64();
    const double b = in_.read<double>();
    return kind == Place::kAbsent ? Place{} : place(kind, a, b);
  }

  ProductRecord product() {
    ProductRecord product;
    product.m = expression();
    product.n = in_.u32();
    product.k = in_.u32();
    product.stride = in_.u32();
    product.dtype = dtype();
    product.out_dtype = dtype();
    for (Place* place : {&product.x, &product.w, &product.bias, &product.c, &product.d})
      *place = optional_place();
    in_.require(
        product.n >= 1 && product.k >= 1 && !product.x.absent() && !product.w.absent() && !product.d.absent(),
        "a product lacks an operand");
    in_.require(product.stride >= product.n, "the rows of a product overlap");
    return product;
  }

  PlanReader& in_;
  CudaPlan plan_;
};

}  // namespace

uint64_t CudaPlan::state_bytes() const {
  uint64_t bytes = 0;
  for (const uint64_t layer : states) bytes += layer;
  return bytes;
}

ModelFacts CudaPlan::facts() const {
  ModelFacts facts;
  facts.vocab_size = static_cast<int32_t>(vocab_size);
  facts.max_seq_len = static_cast<int32_t>(max_seq_len);
  facts.block_size = static_cast<int32_t>(block_size);
  facts.block_bytes.resize(groups.size());
  for (const KvLayer& layer : layers) {
    for (const uint64_t bytes : layer.page_bytes)
      facts.block_bytes[layer.group] += static_cast<int64_t>(bytes);
  }
  for (const Group& group : groups) {
    facts.group_windows.push_back(static_cast<int32_t>(group.window));
    facts.group_chunked.push_back(group.chunked != 0);
  }
  facts.state_bytes = static_cast<int64_t>(state_bytes());
  if (heads()) {
    facts.draft_width = static_cast<int32_t>(feature_width);
    facts.draft_vocab = static_cast<int32_t>(slots[draft_logits_slot].row_bytes / sizeof(float));
    facts.feature_group = feature_group();
    facts.draft_group = heads_attend ? facts.feature_group : -1;
  }
  return facts;
}

CudaPlan read_cuda_plan(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMostBytes);
  PlanReader reader(path, bytes);
  return PlanParser(reader).parse(bytes.size());
}

}  // namespace tensorwright
