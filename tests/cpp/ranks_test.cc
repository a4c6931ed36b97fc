// Ranks in threads of one process, over shared memory: messages of any size and order arrive whole, ranks
// that do not agree or do not answer end with an error on all sides, and a cut step is the step.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/ranks/shared_ranks.h"
#include "runtime/core/ranks/step_text.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

class Memory {
 public:
  explicit Memory(int ranks)
      : path_((std::filesystem::temp_directory_path() /
               ("ranks-test-" + std::to_string(getpid()) + "-" + std::to_string(count_++)))
                  .string()) {
    SharedSegment::create(path_, ranks);
  }
  ~Memory() { std::filesystem::remove(path_); }
  std::unique_ptr<SharedRanks> ranks(int rank, double timeout_s = 60) const {
    return std::make_unique<SharedRanks>(std::make_shared<SharedSegment>(path_), rank, timeout_s, 100);
  }
  const std::string& path() const { return path_; }

 private:
  static inline std::atomic<int> count_ = 0;
  std::string path_;
};

void in_threads(int ranks, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
  for (std::thread& thread : threads) thread.join();
}

std::vector<int32_t> numbers(int from, int to, size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 1000 * from + to);
  return values;
}

// Everybody sends to everybody at once, more than a ring holds, again and again.
TW_TEST(messages_arrive_whole) {
  constexpr int kRanks = 3;
  const Memory memory(kRanks);
  std::atomic<int> wrong = 0;
  in_threads(kRanks, [&](int me) {
    const auto ranks = memory.ranks(me);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
      std::vector<std::vector<int32_t>> sent(kRanks), got(kRanks, std::vector<int32_t>(count));
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int other = 0; other < kRanks; ++other) {
        if (other == me) continue;
        sent[static_cast<size_t>(other)] = numbers(me, other, count);
        out.push_back({other, sent[static_cast<size_t>(other)].data(), count * sizeof(int32_t)});
        in.push_back({other, got[static_cast<size_t>(other)].data(), count * sizeof(int32_t)});
      }
      ranks->exchange(7, out, in);
      for (int other = 0; other < kRanks; ++other)
        wrong += other != me && got[static_cast<size_t>(other)] != numbers(other, me, count);
    }
  });
  TW_CHECK_EQ(wrong.load(), 0);
}

std::string failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const RankError& error) {
    return error.what();
  }
  return "";
}

TW_TEST(ranks_that_do_not_agree) {
  const Memory memory(2);
  std::string texts[2];
  in_threads(2, [&](int me) {
    const auto ranks = memory.ranks(me);
    int32_t value = me;
    texts[me] = failure_of([&] {
      const Outgoing out[] = {{1 - me, &value, sizeof(value)}};
      const Incoming in[] = {{1 - me, &value, sizeof(value)}};
      ranks->exchange(me == 0 ? 5 : 6, out, in);
    });
  });
  for (const std::string& text : texts)
    TW_CHECK(text.find("they do not compute the same step") != std::string::npos);
}

TW_TEST(a_rank_that_does_not_answer) {
  const Memory memory(2);
  const auto ranks = memory.ranks(0, 0.2);
  int32_t value = 0;
  const Incoming in[] = {{1, &value, sizeof(value)}};
  const std::string text = failure_of([&] { ranks->exchange(1, {}, in); });
  TW_CHECK(text.find("rank 1 did not answer rank 0 in 0.2 seconds") != std::string::npos);
  // The other one hears of it when it comes.
  TW_CHECK_EQ(failure_of([&] { memory.ranks(1)->exchange(1, {}, {}); }), text);
}

// A patient rank waits longer than the time of a step, and hears of a failure.
TW_TEST(a_patient_rank) {
  const Memory memory(2);
  std::string text;
  std::thread waiting([&] {
    int32_t value = 0;
    const Incoming in[] = {{0, &value, sizeof(value)}};
    text = failure_of([&] { memory.ranks(1, 0.01)->exchange(1, {}, in, Patience::idle); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  memory.ranks(0)->fail("it was enough");
  waiting.join();
  TW_CHECK_EQ(text, "it was enough");
}

TW_TEST(memory_that_is_none) {
  const auto refused = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.type();
    }
    return std::string();
  };
  TW_CHECK_EQ(refused([] { SharedSegment::create("/tmp/x", 1); }), "InvalidOptionError");
  TW_CHECK_EQ(refused([] { SharedSegment("/nowhere/at/all"); }), "EngineError");
  const Memory memory(2);
  TW_CHECK_EQ(refused([&] { SharedSegment::create(memory.path(), 2); }), "EngineError");
  std::filesystem::resize_file(memory.path(), 4096);
  TW_CHECK_EQ(refused([&] { SharedSegment segment(memory.path()); }), "EngineError");
}

// Two sequences: 5 tokens from position 3 on, and one token at position 9.
Step made_step() {
  Step step;
  step.token_ids = {10, 11, 12, 13, 14, 20};
  step.positions = {3, 4, 5, 6, 7, 9};
  step.seq_starts = {0, 5, 6};
  step.context_lens = {8, 10};
  step.logit_rows = {2, 4, 5};
  step.groups = {{2, {1, 2, 3, 4}, {19, 20, 21, 22, 23, 57}}};
  step.state_slots = {6, 7};
  return step;
}

TW_TEST(steps_come_back) {
  const Step step = made_step();
  IntWriter writer;
  write_step(step, writer);
  IntReader reader(writer.ints());
  const Step again = read_step(reader);
  TW_CHECK(reader.at_end());
  TW_CHECK(again.token_ids == step.token_ids && again.groups[0].block_tables == step.groups[0].block_tables);
  IntWriter other;
  write_step(again, other);
  TW_CHECK(other.ints() == writer.ints());
  std::vector<int32_t> changed = writer.ints();
  changed[3] ^= 1;
  TW_CHECK(checksum(changed) != checksum(writer.ints()));
  IntReader cut(std::span(writer.ints()).first(4));
  TW_CHECK(!failure_of([&] { read_step(cut); }).empty());
}

TW_TEST(parts_make_up_the_step) {
  const Step step = made_step();
  for (const int32_t count : {1, 2, 3, 6, 9}) {
    const std::vector<Step> parts = cut_step(step, count);
    TW_CHECK_EQ(parts.size(), static_cast<size_t>(std::min(count, step.tokens())));
    Step joined;
    std::vector<int32_t> slots, rows;
    for (const Step& part : parts) {
      for (const int32_t row : part.logit_rows) rows.push_back(row + joined.tokens());
      joined.token_ids.insert(joined.token_ids.end(), part.token_ids.begin(), part.token_ids.end());
      slots.insert(slots.end(), part.groups[0].slots.begin(), part.groups[0].slots.end());
      TW_CHECK_EQ(part.seq_starts.back(), part.tokens());
      TW_CHECK_EQ(part.groups[0].block_tables.size(), 2 * part.context_lens.size());
      for (int32_t seq = 0; seq < part.seqs(); ++seq) {
        const auto first = static_cast<size_t>(part.seq_starts[static_cast<size_t>(seq)]);
        TW_CHECK_EQ(part.first_position(seq), part.positions[first]);
      }
    }
    TW_CHECK(joined.token_ids == step.token_ids && slots == step.groups[0].slots && rows == step.logit_rows);
  }
  TW_CHECK_EQ(cut_step(step, 6)[5].context_lens[0], 10);
  TW_CHECK_EQ(cut_step(step, 2)[0].context_lens[0], 6);  // positions 3, 4, 5 of the first sequence
}

}  // namespace

TW_TEST_MAIN()
