// A step as bytes, for the ranks that do not schedule.
#ifndef TENSORWRIGHT_RUNTIME_CORE_RANKS_STEP_TEXT_H_
#define TENSORWRIGHT_RUNTIME_CORE_RANKS_STEP_TEXT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// Numbers of 32 bits, written one after the other. Lists begin with their length.
class IntWriter {
 public:
  void add(int32_t value) { ints_.push_back(value); }
  void add(int64_t value);
  void add(const std::vector<int32_t>& values);
  const std::vector<int32_t>& ints() const { return ints_; }

 private:
  std::vector<int32_t> ints_;
};

// Reads them back. Throws RankError where they end too early, or a length is impossible.
class IntReader {
 public:
  explicit IntReader(std::span<const int32_t> ints) : ints_(ints) {}
  int32_t next();
  int64_t next_long();
  std::vector<int32_t> list();
  bool at_end() const { return ints_.empty(); }

 private:
  std::span<const int32_t> ints_;
};

void write_step(const Step& step, IntWriter& to);
Step read_step(IntReader& from);

// Returns the facts of a model as numbers, and back.
void write_facts(const ModelFacts& facts, IntWriter& to);
ModelFacts read_facts(IntReader& from);

// Returns a sum over the numbers that differs, but for one case in 2^64, if any of them does.
uint64_t checksum(std::span<const int32_t> ints);

// Cuts a step into `count` parts of about as many tokens each, which computed one after the other are the
// step: a row is computed from its own token and from what is in the cache before. Fewer parts come back
// where there are fewer tokens.
std::vector<Step> cut_step(const Step& step, int32_t count);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_RANKS_STEP_TEXT_H_
