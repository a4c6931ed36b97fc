#include "runtime/c_interface/engine_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "runtime/core/base/error.h"
#include "runtime/core/base/mapped_file.h"
#include "runtime/core/base/xxh3.h"

namespace tensorwright {
namespace {

const JsonPlace kEngineFile = {"EngineError", "engine"};
constexpr size_t kMaxTextBytes = size_t{64} << 20;  // of a text file of an engine

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw Error("EngineError", "[engine] " + path + ": " + what);
}

[[noreturn]] void refuse_damaged(const std::string& path, const std::string& what) {
  refuse_file(path, what + "; " + kRemedy);
}

[[noreturn]] void refuse_unreadable(const std::string& path, int error) {
  refuse_file(path, "cannot be read (" + std::system_category().message(error) + "); check its permissions");
}

// A file that is open for reading.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : path_(path), number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) refuse_unreadable(path, errno);
  }
  ~OpenFile() { close(number_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int number() const { return number_; }
  struct stat status() const {
    struct stat status;
    if (fstat(number_, &status) != 0) refuse_unreadable(path_, errno);
    return status;
  }

 private:
  const std::string path_;
  const int number_;
};

// Calls use(bytes) with the content of a file. It is mapped: that leaves the pages warm for serving.
void with_bytes(const OpenFile& file, const std::string& path, size_t size,
                const std::function<void(std::span<const char>)>& use) {
  if (size == 0) return use({});  // an empty file cannot be mapped
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (data == MAP_FAILED) refuse_unreadable(path, errno);
  const auto unmap = [size](void* mapped) { munmap(mapped, size); };
  const std::unique_ptr<void, decltype(unmap)> mapping(data, unmap);
  madvise(data, size, MADV_SEQUENTIAL);
  use({static_cast<const char*>(data), size});
}

std::string read_text_file(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxTextBytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Returns a member of an object that must be there and of the right kind.
// No engine has so many bytes or tokens, and sums of such numbers fit.
constexpr uint64_t kMaxNumber = uint64_t{1} << 50;

int64_t positive(const Json& config, const std::string& path, const char* section, const char* name,
                 bool may_be_zero = false) {
  const auto part = config.find(section);
  if (part != config.end() && part->is_object()) {
    const auto value = part->find(name);
    const uint64_t number =
        value != part->end() && value->is_number_unsigned() ? value->get<uint64_t>() : ~uint64_t{0};
    if ((may_be_zero || number != 0) && number <= kMaxNumber) return static_cast<int64_t>(number);
  }
  refuse_damaged(path, std::string(section) + "." + name + " must be a positive whole number, and is not");
}

std::string text_or(const Json& object, const char* name, const char* standard) {
  const auto value = object.find(name);
  return value != object.end() && value->is_string() ? value->get<std::string>() : standard;
}

}  // namespace

EngineFiles::Mark EngineFiles::Mark::of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

EngineFiles::EngineFiles(const std::string& path) : folder_(path) {
  read_config();
  read_checksums();
  check_sizes();
  check_contents();
  check_kind();
  for (const char* name : {kPlanFile, kWeightsFile})
    if (!sums_.contains(name)) refuse_damaged(path_of(name), "an engine of target cpu must have it");
  read_limits();
  read_eos_token_ids();
}

std::string EngineFiles::plan() const { return path_of(kPlanFile); }
std::string EngineFiles::weights() const { return path_of(kWeightsFile); }

// The version comes before the checksums: another version may check itself in another way.
void EngineFiles::read_config() {
  const std::string folder = folder_.string();
  if (folder.empty())
    throw Error("EngineError", "[engine] an engine directory must be named, got an empty text");
  struct stat status;
  if (stat(folder.c_str(), &status) != 0)
    refuse_file(folder, "no such engine directory; build one with: build-engine MODEL " + folder);
  if (!S_ISDIR(status.st_mode)) refuse_file(folder, "an engine is a directory, this is a file");
  const std::string path = path_of(kConfigFile);
  if (stat(path.c_str(), &status) != 0)
    refuse_file(folder, "not an engine, it has no config.json; build one with: build-engine MODEL OUT");
  config_text_ = read_text_file(path);
  config_ = parse_object(config_text_, kEngineFile, path);
  if (text_or(config_, "format", "") != kFormat)
    refuse_file(folder, "not an engine, its config.json is of something else; build one with: build-engine " +
                            folder + " OUT");
  if (const auto version = config_.find("format_version");
      version == config_.end() || *version != kFormatVersion) {
    refuse_file(path, "format version " + (version == config_.end() ? "none" : shown(*version)) +
                          ", this library reads " + std::to_string(kFormatVersion) +
                          "; build the engine again, or run it with tensorwright " +
                          text_or(config_, "tensorwright_version", "of its time"));
  }
}

// A line: 32 digits of the hash, two blanks, the size, two blanks, the path. The last line covers the others.
void EngineFiles::read_checksums() {
  const std::string path = path_of(kChecksumsFile);
  struct stat status;
  if (stat(path.c_str(), &status) != 0) refuse_damaged(path, "missing");
  std::istringstream lines(read_text_file(path));
  std::string body, last;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    if (!last.empty()) body += last + "\n";
    last = line;
  }
  if (last != xxh3_128_hex(body) + "  " + std::to_string(body.size()) + "  .")
    refuse_damaged(path, "truncated or altered (its last line must cover the lines above)");
  std::istringstream listed(body);
  for (std::string line; std::getline(listed, line);) {
    const size_t second = line.find("  ", 34);
    uint64_t size = 0;
    const bool cut = line.size() > 34 && line.compare(32, 2, "  ") == 0 && second != std::string::npos;
    const char* end = cut ? line.data() + second : line.data();
    const bool holds = cut && second + 2 < line.size() && line.find_first_not_of("0123456789abcdef") == 32 &&
                       std::from_chars(line.data() + 34, end, size).ptr == end;
    if (!holds) refuse_damaged(path, "'" + line.substr(0, 200) + "' is not '<xxh3_128>  <bytes>  <path>'");
    const std::filesystem::path name = line.substr(second + 2);
    if (name.is_absolute() ||
        std::any_of(name.begin(), name.end(), [](const auto& part) { return part == ".."; }))
      refuse_damaged(path, "'" + name.string() + "' leads out of the engine directory");
    sums_[name.string()] = {line.substr(0, 32), size};
  }
  if (!sums_.contains(kConfigFile)) refuse_damaged(path, "does not list config.json");
}

// All sizes come first, so that a truncated engine fails at once.
void EngineFiles::check_sizes() const {
  for (const auto& [name, expected] : sums_) {
    struct stat status;
    const std::string path = path_of(name);
    if (stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP)
        refuse_damaged(path, "missing");
      refuse_unreadable(path, errno);
    }
    if (!S_ISREG(status.st_mode)) refuse_damaged(path, "missing");
    if (const auto size = static_cast<uint64_t>(status.st_size); size != expected.size) {
      refuse_damaged(path, std::string(size < expected.size ? "truncated" : "altered") + ", it has " +
                               std::to_string(size) + " bytes and must have " +
                               std::to_string(expected.size));
    }
  }
}

void EngineFiles::check_contents() {
  for (const auto& [name, expected] : sums_) check_content(name, expected);
}

// The bytes that were hashed are the bytes that are used: texts are kept, other files leave a mark.
void EngineFiles::check_content(const std::string& name, const Sum& expected) {
  const std::string path = path_of(name);
  std::string digest;
  if (name == kConfigFile) {
    digest = xxh3_128_hex(config_text_);
  } else if (name == kGenerationConfigFile) {
    const std::string text = read_text_file(path);
    digest = xxh3_128_hex(text);
    if (digest == expected.digest) generation_config_ = parse_object(text, kEngineFile, path);
  } else {
    const OpenFile file(path);
    const struct stat status = file.status();
    if (static_cast<uint64_t>(status.st_size) != expected.size)
      refuse_damaged(path, "changed its size while it was read");
    with_bytes(file, path, expected.size, [&](std::span<const char> bytes) { digest = xxh3_128_hex(bytes); });
    marks_[name] = Mark::of(status);
  }
  if (digest != expected.digest)
    refuse_damaged(path, std::string("altered, its checksum does not match ") + kChecksumsFile);
}

void EngineFiles::check_kind() const {
  const std::string path = path_of(kConfigFile);
  if (const std::string target = text_or(config_, "target", "none"); target != "cpu")
    refuse_file(path, "the C interface runs engines of target cpu, this one is of target '" + target +
                          "'; run it in Python, or build the model once more with --target cpu");
  const auto options = config_.find("build_options");
  if (options == config_.end() || !options->is_object())
    refuse_damaged(path, "'build_options' is missing or of the wrong type");
  for (const char* name : {"tensor_parallel", "pipeline_parallel"}) {
    if (const auto ranks = options->find(name); ranks != options->end() && *ranks != 1)
      refuse_file(path, std::string("the C interface runs engines of one rank, this one has ") + name + " " +
                            shown(*ranks) + "; run it in Python, or build the model once more without it");
  }
  if (const auto pooling = config_.find("pooling"); pooling != config_.end() && !pooling->is_null()) {
    throw Error("TaskError",
                "[engine] " + path +
                    ": the C interface draws tokens, and this engine was built for embeddings or "
                    "scores; run it in Python, or build the checkpoint with --task generate");
  }
}

void EngineFiles::read_limits() {
  const std::string path = path_of(kConfigFile);
  const Json& limits = config_["limits"];
  const bool has_states =
      limits.is_object() && limits.contains("state_bytes") && !limits["state_bytes"].is_null();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  needs_.weight_bytes = static_cast<int64_t>(sums_.at(kWeightsFile).size);
  needs_.block_bytes = positive(config_, path, "limits", "kv_block_bytes", has_states);
  needs_.state_bytes = has_states ? positive(config_, path, "limits", "state_bytes") : 0;
  max_seq_len_ = static_cast<int32_t>(std::min(kMost, positive(config_, path, "limits", "max_seq_len")));
  needs_.most_held = max_seq_len_;
  if (!config_["build_options"].value("kv_budget", Json()).is_null()) {
    const int64_t budget = positive(config_, path, "build_options", "kv_budget");
    needs_.most_held = static_cast<int32_t>(std::min<int64_t>(max_seq_len_, budget + kDecisionInterval));
  }
  needs_.block_size = static_cast<int32_t>(std::min(kMost, positive(config_, path, "limits", "block_size")));
}

// Those of generation_config.json if it names any, else of config.json: chat models end a turn with a token
// that config.json lacks. Ids beyond the vocabulary, which cut-down models inherit, are never sampled.
void EngineFiles::read_eos_token_ids() {
  std::string path = path_of(kConfigFile);
  const int64_t vocabulary = positive(config_, path, "model", "vocab_size");
  Json listed = generation_config_.value("eos_token_id", Json());
  if (!listed.is_null()) {
    path = path_of(kGenerationConfigFile);
  } else {
    listed = config_["model"].value("eos_token_ids", Json());
  }
  if (listed.is_null()) return;
  if (!listed.is_array()) listed = Json::array({listed});
  for (const Json& id : listed) {
    if (!id.is_number_unsigned())
      refuse_damaged(path, "end-of-sequence tokens must be token ids, got " + shown(listed));
    if (id.get<uint64_t>() < static_cast<uint64_t>(vocabulary)) eos_token_ids_.push_back(id.get<int32_t>());
  }
}

Json EngineFiles::generation_defaults() const {
  Json found = Json::object();
  for (const Named& field : kGenerationFields) {
    const auto value = generation_config_.find(field.name);
    if (value != generation_config_.end() && !value->is_null()) found[field.text] = *value;
  }
  return found;
}

void EngineFiles::check_unchanged() const {
  for (const char* name : {kPlanFile, kWeightsFile}) {
    struct stat status;
    const std::string path = path_of(name);
    const bool there = stat(path.c_str(), &status) == 0;
    if (!there || Mark::of(status) != marks_.at(name))
      refuse_file(
          path,
          "was changed or replaced while the engine was opened; open it again, and put an engine in the "
          "place of another by renaming folders, as build-engine --force does");
  }
}

void EngineFiles::check_plan(const ModelFacts& plan) const {
  const std::string path = path_of(kConfigFile);
  const auto blocks = std::accumulate(plan.block_bytes.begin(), plan.block_bytes.end(), int64_t{0});
  const std::pair<const char*, std::pair<int64_t, int64_t>> facts[] = {
      {"vocab_size", {positive(config_, path, "model", "vocab_size"), plan.vocab_size}},
      {"max_seq_len", {max_seq_len_, plan.max_seq_len}},
      {"block_size", {needs_.block_size, plan.block_size}},
      {"kv_block_bytes", {needs_.block_bytes, blocks}},
      {"state_bytes", {needs_.state_bytes, plan.state_bytes}},
      {"hidden_width", {0, plan.hidden_width}},
  };
  for (const auto& [name, values] : facts) {
    if (values.first == values.second) continue;
    refuse_damaged(path, std::string(name) + " is " + std::to_string(values.first) + ", but " +
                             std::to_string(values.second) + " in " + kPlanFile +
                             ": files of two builds are mixed");
  }
}

}  // namespace tensorwright
