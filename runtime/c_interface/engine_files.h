// Opens an engine's folder and checks every file against checksums.txt, as engine_format/engine_folder.py
// does.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_ENGINE_FILES_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_ENGINE_FILES_H_

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/c_interface/json_values.h"
#include "runtime/core/engine/cache_size.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

// The engine of a folder, once all of its files have been checked.
class EngineFiles {
 public:
  // Throws Error{"EngineError"} that names the file and the remedy: for a folder that is missing or no
  // engine, another format version, files that are missing, truncated or altered, and an engine of another
  // target than cpu or of several ranks; and Error{"TaskError"} for one that draws no tokens.
  explicit EngineFiles(const std::string& path);

  std::string plan() const;     // the path of the plan
  std::string weights() const;  // the path of the weights
  const Json& config() const { return config_; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  // Returns the parameters that the model's generation_config.json names, by their names here, unchecked.
  Json generation_defaults() const;
  const CacheNeeds& needs() const { return needs_; }

  // Throws Error{"EngineError"} if plan or weights are not the files that were checked any more. Call it once
  // they are mapped or read: a mapped file stays as it is, whatever happens to the folder.
  void check_unchanged() const;
  // Throws Error{"EngineError"} unless config.json tells of the model that the plan has.
  void check_plan(const ModelFacts& plan) const;

 private:
  struct Sum {
    std::string digest;
    uint64_t size;
  };
  // The facts of a file that change when it is replaced or written to.
  struct Mark {
    dev_t device;
    ino_t inode;
    off_t size;
    int64_t changed_ns;
    static Mark of(const struct stat& status);
    bool operator==(const Mark&) const = default;
  };

  void read_config();
  void read_checksums();
  void check_sizes() const;
  void check_contents();
  void check_content(const std::string& name, const Sum& expected);
  void check_kind() const;
  void read_limits();
  void read_eos_token_ids();
  std::string path_of(const std::string& name) const { return (folder_ / name).string(); }

  const std::filesystem::path folder_;
  std::string config_text_;
  Json config_;
  Json generation_config_ = Json::object();
  std::map<std::string, Sum> sums_;
  std::map<std::string, Mark> marks_;
  std::vector<int32_t> eos_token_ids_;
  CacheNeeds needs_;
  int32_t max_seq_len_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_ENGINE_FILES_H_
