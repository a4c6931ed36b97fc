// Files of the toy plan, and steps of it.
#ifndef TENSORWRIGHT_TESTS_CPP_TOY_STEPS_H_
#define TENSORWRIGHT_TESTS_CPP_TOY_STEPS_H_

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "runtime/core/interface/executor.h"
#include "tests/cpp/toy_plan.h"

namespace tw_test {

// plan.bin and weights.bin in a folder that goes away with the object.
class Files {
 public:
  Files() {
    folder_ = std::filesystem::temp_directory_path() / "tensorwright-test-XXXXXX";
    if (!mkdtemp(folder_.data())) throw std::runtime_error("no temporary folder");
  }
  ~Files() {
    unlink(plan().c_str());
    unlink(weights().c_str());
    rmdir(folder_.c_str());
  }
  const std::string& folder() const { return folder_; }
  std::string plan() const { return folder_ + "/plan.bin"; }
  std::string weights() const { return folder_ + "/weights.bin"; }

  void write(const std::string& path, const void* data, size_t bytes) const {
    unlink(path.c_str());  // a new file: one that is cut short and written again is flushed to disk by some
                           // systems
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (!file || (bytes > 0 && std::fwrite(data, 1, bytes, file) != bytes))
      throw std::runtime_error("cannot write " + path);
    std::fclose(file);
  }
  void write(const std::vector<std::byte>& plan_bytes, const std::vector<char>& data) const {
    write(plan(), plan_bytes.data(), plan_bytes.size());
    write(weights(), data.data(), data.size());
  }

 private:
  std::string folder_;
};

// A step that feeds tokens [from, to) of one made-up sequence; block i of its table is `first_block` - i.
inline Step step_of(int32_t from, int32_t to, int32_t first_block) {
  Step step;
  GroupTables tables;
  constexpr int32_t block = ToyPlan::kBlock;
  tables.max_blocks = (to + block - 1) / block;
  for (int32_t i = 0; i < tables.max_blocks; ++i) tables.block_tables.push_back(first_block - i);
  for (int32_t p = from; p < to; ++p) {
    step.token_ids.push_back((p * 7 + p / 5) % static_cast<int32_t>(ToyPlan::kVocab));
    step.positions.push_back(p);
    tables.slots.push_back((first_block - p / block) * block + p % block);
  }
  step.seq_starts = {0, to - from};
  step.context_lens = {to};
  step.logit_rows = {to - from - 1};
  step.groups.push_back(tables);
  return step;
}

inline std::vector<float> run(Executor& executor, const Step& step) {
  const LogitRows rows = executor.run(step);
  std::vector<float> logits;
  for (int32_t r = 0; r < rows.rows; ++r) {
    logits.insert(logits.end(), rows.data + r * rows.stride, rows.data + r * rows.stride + ToyPlan::kVocab);
  }
  return logits;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_TOY_STEPS_H_
