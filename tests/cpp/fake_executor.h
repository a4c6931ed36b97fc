// An Executor whose 'model' is a hash: the logits of a row depend on every token that the cache holds for its
// sequence, read back through the block tables. A wrong slot, table, position or eviction changes the tokens.
// With states it depends on a hash of the sequence's tokens too, which is kept in the sequence's state slot
// alone.
//
// With `ahead` nothing is computed or copied before somebody waits for it, and a step may be started behind
// one whose tokens are not known: as late, and in the same order, as a device may do it.
//
// With heads, the feature of a position is the hash of the tokens up to there, in four floats. The heads hash
// the next token into it, so they say what the model will say; unless their own cache, in the blocks of group
// 0, holds something else than the hashes of this sequence before: then they say something else, and count
// it. Heads that say several tokens at once take the likeliest of their own rows for the tokens before.
#ifndef TENSORWRIGHT_TESTS_CPP_FAKE_EXECUTOR_H_
#define TENSORWRIGHT_TESTS_CPP_FAKE_EXECUTOR_H_

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <semaphore>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/base/error.h"
#include "runtime/core/interface/executor.h"
#include "tests/cpp/sampler_oracle.h"

namespace tw_test {

// What a test may change; -1: off.
struct FakeBehaviour {
  int32_t nan_token = -1;    // a sequence with this token has NaN logits
  int32_t throw_token = -1;  // a step that computes this token throws
  int32_t late_token = -1;   // the same, but it throws after the cache was written
  int32_t fail_every = 0;    // every n-th step of more than one sequence throws
  int32_t die_token = -1;    // a step that computes this token throws what is no std::exception
  int32_t fail_copies = 0;   // every n-th copy of a block throws
  int32_t sleep_us = 0;      // per step
  std::counting_semaphore<>* steps = nullptr;  // each step takes one before it computes
  int held_us = 0;  // how long a step takes on the held clock of its thread (Clock::HeldHere)
  int64_t groups = 1;
  int32_t window = 0;        // of the last group
  bool chunked = false;      // the window begins at a multiple of its length
  int32_t sink_tokens = 0;   // seen besides the window
  bool states = false;       // then there may be no group
  bool lose_states = false;  // a copy of states does nothing
  bool heads = false;        // of a model with one group without a window
  int32_t at_once = 1;       // tokens that the heads say at once; more than one: without a cache
  bool keeps = false;        // the features stay with it, in the slots of group 0
  bool draws = false;        // it draws tokens itself, but leaves each third to the engine, as not being sure
  int64_t* drawn = nullptr;  // counts the tokens that it drew
  bool ahead = false;        // it starts steps behind one that is underway; with draws
  int64_t* ahead_of = nullptr;  // counts the tokens that such steps had of the one before
};

// Lets an engine end whose steps take from a semaphore: the last thing of a test, behind its engine.
struct ReleasedAtTheEnd {
  std::counting_semaphore<>& steps;
  ~ReleasedAtTheEnd() { steps.release(1000000); }
};

class FakeExecutor : public tensorwright::Executor {
 public:
  FakeExecutor(int32_t vocab, int32_t max_seq_len, int32_t block_size, FakeBehaviour behaviour = {})
      : behaviour_(behaviour) {
    facts_.vocab_size = vocab;
    facts_.max_seq_len = max_seq_len;
    facts_.block_size = block_size;
    facts_.block_bytes.assign(behaviour.groups, 100);
    facts_.group_windows.assign(behaviour.groups, 0);
    facts_.group_chunked.assign(behaviour.groups, 0);
    if (behaviour.groups > 0) facts_.group_windows.back() = behaviour.window;
    if (behaviour.groups > 0) facts_.group_chunked.back() = behaviour.chunked;
    facts_.group_sink_tokens.assign(behaviour.groups, 0);
    if (behaviour.groups > 0) facts_.group_sink_tokens.back() = behaviour.sink_tokens;
    facts_.state_bytes = behaviour.states ? 64 : 0;
    if (behaviour.heads) facts_.draft_width = 4, facts_.draft_vocab = vocab * behaviour.at_once;
    if (behaviour.at_once > 1) facts_.draft_group = -1;
    if (behaviour.keeps) facts_.feature_group = 0;
  }

  const tensorwright::ModelFacts& facts() const override { return facts_; }

  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) override {
    for (int32_t n : blocks) cache_.emplace_back(static_cast<size_t>(n) * facts_.block_size, Entry{});
    states_.assign(static_cast<size_t>(state_slots), State{});
    if (behaviour_.heads) draft_cache_.assign(cache_[0].size(), DraftEntry{});
    if (behaviour_.keeps) slot_features_.assign(cache_[0].size(), 0);
    max_tokens_ = max_tokens, max_rows_ = max_rows, max_seqs_ = max_seqs;
  }

  tensorwright::LogitRows run(const tensorwright::Step& step) override {
    require(underway_.empty(), "a step is underway");
    settle();
    admit(step);
    return compute(step);
  }

  bool runs_ahead() const override { return behaviour_.ahead; }
  void start(const tensorwright::Step& step) override {
    require(behaviour_.ahead && underway_.size() < 2, "no more steps may be underway");
    admit(step);
    const auto own = std::make_shared<Result>();
    const std::shared_ptr<Result> last = underway_.empty() ? nullptr : underway_.back();
    for (const int32_t token : step.token_ids) {
      if (token >= 0) continue;
      const auto row = static_cast<size_t>(-1 - token);
      require(last && row < last->wanted.size() && last->wanted[row], "a token of a row that is drawn");
      if (behaviour_.ahead_of) ++*behaviour_.ahead_of;
    }
    for (const tensorwright::RowDraw& draw : step.draws) own->wanted.push_back(draw.wanted);
    underway_.push_back(own);
    queue_.push_back([this, own, last, step = tensorwright::Step(step)]() mutable {
      for (int32_t& token : step.token_ids)
        if (token < 0) token = last->tokens[static_cast<size_t>(-1 - token)];
      const tensorwright::LogitRows rows = compute(step);
      own->logits = logits_;
      if (rows.tokens) own->tokens = tokens_;
      own->rows = rows.rows;
      own->done = true;
    });
  }
  tensorwright::LogitRows finish() override {
    require(!underway_.empty(), "no step is underway");
    finished_ = underway_.front();
    underway_.pop_front();
    while (!finished_->done) run_next();
    const std::vector<int32_t>& tokens = finished_->tokens;
    return {finished_->logits.data(), stride(), finished_->rows, tokens.empty() ? nullptr : tokens.data()};
  }

  bool draws_tokens() const override { return behaviour_.draws; }
  bool draws_drafts() const override { return behaviour_.draws && behaviour_.at_once == 1; }

  void want_features(bool wanted) override { features_wanted_ = wanted; }
  tensorwright::FeatureRows features() const override {
    if (!features_wanted_) return {};
    if (behaviour_.keeps) return {nullptr, 0, true};
    return {features_.data(), facts_.draft_width};
  }

  tensorwright::DraftRows run_draft(const tensorwright::Step& step, const float* features) override {
    if (behaviour_.at_once > 1) return say_at_once(step, features);
    check(step);
    const tensorwright::GroupTables& group = step.groups[0];
    own_.assign(static_cast<size_t>(step.rows()) * 4, 0.f);
    logits_.assign(static_cast<size_t>(step.rows()) * stride(), 0.f);
    std::vector<uint64_t> behind(step.token_ids.size());
    for (int32_t t = 0; t < step.tokens(); ++t) {
      const uint64_t before = feature_of(step, t, features);
      behind[t] = fold(before, step.token_ids[t]);
      draft_cache_.at(group.slots[t]) = {before, behind[t], step.positions[t]};
    }
    for (int32_t r = 0; r < step.rows(); ++r) {
      const int32_t t = step.logit_rows[r], s = sequence_at(step, t);
      bool stale = false;
      uint64_t last = 0;
      for (int32_t p = 0; p <= step.positions[t]; ++p) {
        const int32_t block = group.block_tables[s * group.max_blocks + p / facts_.block_size];
        const DraftEntry& entry = draft_cache_.at(block * facts_.block_size + p % facts_.block_size);
        stale |= entry.position != p || (p > 0 && entry.before != last);
        last = entry.behind;
      }
      stale_ += stale;
      put_logits(behind[t] ^ stale, &logits_[r * stride()]);
      put_hash(behind[t], &own_[4 * r]);
      const int32_t next = step.positions[t] + 1, place = next / facts_.block_size;
      if (!behaviour_.keeps || place >= group.max_blocks) continue;
      const int32_t block = group.block_tables[s * group.max_blocks + place];
      if (block >= 0) slot_features_.at(block * facts_.block_size + next % facts_.block_size) = behind[t];
    }
    draw(step);
    const int32_t* tokens = step.draws.empty() ? nullptr : tokens_.data();
    return {{logits_.data(), stride(), step.rows(), tokens}, {own_.data(), 4}};
  }
  // The rows of heads whose cache did not hold the sequence's own hashes.
  int64_t stale_rows() const { return stale_; }
  // The steps that computed features.
  int64_t feature_steps() const { return feature_steps_; }

  void copy_block(int32_t group, int32_t from, int32_t to) override {
    if (behaviour_.fail_copies && ++copies_ % behaviour_.fail_copies == 0) throw std::runtime_error("copy");
    in_turn([this, group, from, to] {
      size_t n = facts_.block_size;
      std::copy_n(cache_[group].begin() + from * n, n, cache_[group].begin() + to * n);
      if (behaviour_.keeps)
        std::copy_n(slot_features_.begin() + from * n, n, slot_features_.begin() + to * n);
    });
  }

  void copy_state(int32_t from, int32_t to) override {
    if (behaviour_.fail_copies && ++copies_ % behaviour_.fail_copies == 0) throw std::runtime_error("copy");
    if (from == to) throw std::logic_error("a state copied to itself");
    if (behaviour_.lose_states) return;
    in_turn(
        [this, from, to] { states_.at(static_cast<size_t>(to)) = states_.at(static_cast<size_t>(from)); });
  }

  void read_block(int32_t group, int32_t block, char* to) const override {
    settle();
    std::memset(to, 0, static_cast<size_t>(facts_.block_bytes[group]));
    const size_t n = sizeof(Entry) * facts_.block_size;
    require(n <= static_cast<size_t>(facts_.block_bytes[group]), "a block's entries fit its bytes");
    std::memcpy(to, &cache_[group].at(static_cast<size_t>(block) * facts_.block_size), n);
  }

  void write_block(int32_t group, int32_t block, const char* from) override {
    if (behaviour_.fail_copies && ++copies_ % behaviour_.fail_copies == 0) throw std::runtime_error("write");
    settle();
    const size_t n = sizeof(Entry) * facts_.block_size;
    std::memcpy(&cache_[group].at(static_cast<size_t>(block) * facts_.block_size), from, n);
  }

  void read_state(int32_t slot, char* to) const override {
    settle();
    std::memset(to, 0, static_cast<size_t>(facts_.state_bytes));
    std::memcpy(to, &states_.at(static_cast<size_t>(slot)), sizeof(State));
  }

  void write_state(int32_t slot, const char* from) override {
    if (behaviour_.fail_copies && ++copies_ % behaviour_.fail_copies == 0) throw std::runtime_error("write");
    settle();
    std::memcpy(&states_.at(static_cast<size_t>(slot)), from, sizeof(State));
  }

 private:
  // The rows of a step that was started.
  struct Result {
    std::vector<bool> wanted;  // [rows]: whether it draws from the row
    std::vector<float> logits;
    std::vector<int32_t> tokens;
    int32_t rows = 0;
    bool done = false;
  };

  void admit(const tensorwright::Step& step) {
    check(step);
    ++steps_;
    if (behaviour_.fail_every && step.seqs() > 1 && steps_ % behaviour_.fail_every == 0) {
      in_turn([this, slots = step.state_slots] {
        for (int32_t slot : slots) states_[static_cast<size_t>(slot)].hash ^= 7;  // half computed
      });
      throw std::runtime_error("company");
    }
    if (has(step, behaviour_.throw_token)) throw tensorwright::Error("TensorwrightError", "poison");
    if (has(step, behaviour_.die_token)) throw 42;
  }

  tensorwright::LogitRows compute(const tensorwright::Step& step) {
    if (behaviour_.held_us)
      tensorwright::Clock::HeldHere::set(tensorwright::Clock::now() +
                                         std::chrono::microseconds(behaviour_.held_us));
    if (behaviour_.steps) behaviour_.steps->acquire();
    if (behaviour_.sleep_us) std::this_thread::sleep_for(std::chrono::microseconds(behaviour_.sleep_us));
    const bool late = has(step, behaviour_.late_token);
    for (size_t g = 0; g < cache_.size(); ++g) {
      for (int32_t t = 0; t < step.tokens(); ++t) {
        cache_[g].at(step.groups[g].slots[t]) = Entry{late ? -7 : step.token_ids[t], step.positions[t]};
      }
    }
    advance_states(step, late);
    logits_.assign(static_cast<size_t>(step.rows()) * stride(), 0.f);
    for (int32_t r = 0; r < step.rows(); ++r) fill_row(step, r);
    if (late) throw std::runtime_error("late poison");
    if (features_wanted_) ++feature_steps_, fill_features(step);
    draw(step);
    return {logits_.data(), stride(), step.rows(), step.draws.empty() ? nullptr : tokens_.data()};
  }

  void run_next() const {
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    work();
  }
  void settle() const {
    while (!queue_.empty()) run_next();
  }
  void in_turn(std::function<void()> work) {
    queue_.push_back(std::move(work));
    if (!behaviour_.ahead) settle();
  }

  struct Entry {
    int32_t token = -1, position = -1;
  };

  // A hash of `tokens` tokens.
  struct State {
    uint64_t hash = 99;
    int32_t tokens = -1;
  };

  // What the heads keep of a position: the hash of the tokens up to it, and with the next token.
  struct DraftEntry {
    uint64_t before = 0, behind = 0;
    int32_t position = -1;
  };

  static uint64_t fold(uint64_t hash, int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
  }
  static void put_hash(uint64_t hash, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<float>(hash >> 16 * i & 0xffff);
  }
  static uint64_t hash_of(const float* pieces) {
    uint64_t hash = 0;
    for (int i = 0; i < 4; ++i) hash |= static_cast<uint64_t>(pieces[i]) << 16 * i;
    return hash;
  }
  static int32_t sequence_at(const tensorwright::Step& step, int32_t token) {
    const auto after = std::upper_bound(step.seq_starts.begin(), step.seq_starts.end(), token);
    return static_cast<int32_t>(after - step.seq_starts.begin()) - 1;
  }
  tensorwright::DraftRows say_at_once(const tensorwright::Step& step, const float* features) {
    require(step.rows() <= max_rows_ && step.seqs() <= max_seqs_, "seqs or rows");
    const int64_t wide = facts_.draft_vocab + 3;
    logits_.assign(static_cast<size_t>(step.rows() * wide), 0.f);
    own_.assign(static_cast<size_t>(step.rows()) * 4, 0.f);
    std::vector<float> row(static_cast<size_t>(facts_.vocab_size));
    for (int32_t r = 0; r < step.rows(); ++r) {
      uint64_t hash = feature_of(step, step.logit_rows[r], features);
      for (int32_t place = 0; place < behaviour_.at_once; ++place) {
        put_logits(hash, row.data());
        hash = fold(hash, static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
        put_logits(hash, &logits_[static_cast<size_t>(r * wide + place * facts_.vocab_size)]);
      }
    }
    return {{logits_.data(), wide, step.rows()}, {own_.data(), 4}};
  }
  // The logits of a row with a token must not be read, so they are NaN.
  void draw(const tensorwright::Step& step) {
    if (step.draws.empty()) return;
    require(behaviour_.draws && step.draws.size() == step.logit_rows.size(), "draws");
    tokens_.assign(step.draws.size(), -1);
    for (size_t r = 0; r < tokens_.size(); ++r) {
      const tensorwright::RowDraw& draw = step.draws[r];
      const auto vocab = static_cast<size_t>(facts_.vocab_size);
      const std::span<float> row{&logits_[r * static_cast<size_t>(stride())], vocab};
      const bool nan = std::ranges::any_of(row, [](float x) { return x != x; });
      if (!draw.wanted || nan || ++asked_ % 3 == 0) continue;
      if (draw.temperature > 0) {
        tensorwright::Sampling sampling;
        sampling.temperature = draw.temperature, sampling.top_k = draw.top_k;
        sampling.top_p = draw.top_p, sampling.min_p = draw.min_p;
        tokens_[r] = oracle_at(oracle_tokens(row, sampling), draw.uniform);
      } else {
        tokens_[r] = static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
      }
      std::ranges::fill(row, std::numeric_limits<float>::quiet_NaN());
      if (behaviour_.drawn) ++*behaviour_.drawn;
    }
  }
  void put_logits(uint64_t hash, float* row) const {
    for (int32_t v = 0; v < facts_.vocab_size; ++v) {
      uint64_t x = (hash + static_cast<uint64_t>(v)) * 0xff51afd7ed558ccdu;
      row[v] = static_cast<float>((x ^ x >> 33) & 0xffff) / 8192.f;
    }
  }
  void fill_features(const tensorwright::Step& step) {
    features_.resize(static_cast<size_t>(step.tokens()) * 4);
    const tensorwright::GroupTables& group = step.groups[0];
    for (int32_t t = 0; t < step.tokens(); ++t) {
      const int32_t s = sequence_at(step, t);
      uint64_t hash = 1;
      for (int32_t p = 0; p <= step.positions[t]; ++p) {
        const int32_t block = group.block_tables[s * group.max_blocks + p / facts_.block_size];
        hash = fold(hash, cache_[0].at(block * facts_.block_size + p % facts_.block_size).token);
      }
      put_hash(hash, &features_[4 * t]);
      if (behaviour_.keeps) slot_features_.at(group.slots[t]) = hash;
    }
  }
  // The feature that a step of heads reads for token t.
  uint64_t feature_of(const tensorwright::Step& step, int32_t t, const float* features) const {
    return behaviour_.keeps ? slot_features_.at(step.groups[0].slots[t]) : hash_of(features + 4 * t);
  }

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("malformed step: ") + what);
  }
  static bool has(const tensorwright::Step& step, int32_t token) {
    return token >= 0 &&
           std::find(step.token_ids.begin(), step.token_ids.end(), token) != step.token_ids.end();
  }
  int64_t stride() const { return facts_.vocab_size + 3; }  // as a padded buffer has it

  void check(const tensorwright::Step& step) const {
    require(step.tokens() > 0 && step.tokens() <= max_tokens_, "tokens");
    require(step.seqs() > 0 && step.seqs() <= max_seqs_ && step.rows() <= max_rows_, "seqs or rows");
    require(step.positions.size() == step.token_ids.size(), "positions");
    require(step.seq_starts.size() == step.context_lens.size() + 1, "seq_starts");
    require(step.seq_starts.front() == 0 && step.seq_starts.back() == step.tokens(), "seq_starts ends");
    require(step.groups.size() == cache_.size(), "groups");
    for (size_t g = 0; g < cache_.size(); ++g) {
      std::vector<int32_t> slots = step.groups[g].slots;
      require(slots.size() == step.token_ids.size(), "slots");
      std::sort(slots.begin(), slots.end());
      require(std::adjacent_find(slots.begin(), slots.end()) == slots.end(), "a slot written twice");
    }
    require(step.state_slots.size() == (behaviour_.states ? step.context_lens.size() : 0), "state_slots");
    std::vector<int32_t> states = step.state_slots;
    std::sort(states.begin(), states.end());
    require(std::adjacent_find(states.begin(), states.end()) == states.end(), "a state for two sequences");
    for (int32_t s = 0; s < step.seqs(); ++s) {
      for (int32_t t = step.seq_starts[s]; t < step.seq_starts[s + 1]; ++t) {
        int32_t back = step.seq_starts[s + 1] - t;
        require(step.positions[t] == step.context_lens[s] - back, "positions end at the context length");
      }
    }
  }

  void advance_states(const tensorwright::Step& step, bool late) {
    behind_.assign(static_cast<size_t>(step.tokens()), 0);
    for (size_t s = 0; s < step.state_slots.size(); ++s) {
      State& state = states_.at(static_cast<size_t>(step.state_slots[s]));
      const int32_t first = step.positions[static_cast<size_t>(step.seq_starts[s])];
      if (first == 0) state = {5, 0};
      require(state.tokens == first, "the state must be that of the tokens before");
      for (int32_t t = step.seq_starts[s]; t < step.seq_starts[s + 1]; ++t) {
        state.hash =
            (state.hash ^ static_cast<uint32_t>(late ? -7 : step.token_ids[t])) * 0x9e3779b97f4a7c15u;
        state.hash ^= state.hash >> 31;
        ++state.tokens;
        behind_[static_cast<size_t>(t)] = state.hash;
      }
    }
  }

  void fill_row(const tensorwright::Step& step, int32_t r) {
    int32_t t = step.logit_rows[r];
    const int32_t s = sequence_at(step, t);
    uint64_t hash = 1 ^ behind_[static_cast<size_t>(t)];
    bool nan = false;
    for (size_t g = 0; g < cache_.size(); ++g) {
      const tensorwright::GroupTables& group = step.groups[g];
      const int32_t window = facts_.group_windows[g], position = step.positions[t];
      for (int32_t p = 0; p <= position; ++p) {
        if (window && p >= facts_.group_sink_tokens[g] &&
            (facts_.group_chunked[g] ? p / window != position / window : p + window <= position))
          continue;
        int32_t block = group.block_tables[s * group.max_blocks + p / facts_.block_size];
        const Entry& entry = cache_[g].at(block * facts_.block_size + p % facts_.block_size);
        require(entry.position == p, "the cache must hold this position");
        hash = fold(hash, entry.token);
        nan |= behaviour_.nan_token >= 0 && entry.token == behaviour_.nan_token;
      }
    }
    float* row = &logits_[r * stride()];
    put_logits(hash, row);
    if (nan) row[facts_.vocab_size / 2] = std::numeric_limits<float>::quiet_NaN();
    row[facts_.vocab_size] = 1e30f;  // padding that must not be read
  }

  FakeBehaviour behaviour_;
  tensorwright::ModelFacts facts_;
  std::vector<std::vector<Entry>> cache_;  // [groups][slots]
  std::vector<State> states_;              // [state slots]
  std::vector<uint64_t> behind_;           // [tokens]: the hash behind each token of the step
  std::vector<float> logits_, features_, own_;
  std::vector<int32_t> tokens_;                      // [rows]: those that were drawn
  mutable std::deque<std::function<void()>> queue_;  // what was started, in order
  std::deque<std::shared_ptr<Result>> underway_;
  std::shared_ptr<Result> finished_;
  int64_t asked_ = 0;                    // the draws that were asked for
  std::vector<DraftEntry> draft_cache_;  // [slots]
  std::vector<uint64_t> slot_features_;  // [slots]
  bool features_wanted_ = false;
  int64_t feature_steps_ = 0;
  int64_t stale_ = 0;
  int32_t max_tokens_ = 0, max_rows_ = 0, max_seqs_ = 0;
  int64_t steps_ = 0, copies_ = 0;
};

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_FAKE_EXECUTOR_H_
