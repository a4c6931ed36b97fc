// Blocks that the cache forgot come back from memory and from disk, also after a restart: the tokens and
// logprobs are those of a request alone, whatever is damaged, full, old or of somebody else.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "runtime/core/base/checksum.h"
#include "runtime/core/engine/engine.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMuch = int64_t{1} << 30;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tiersXXXXXX").string();
    TW_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::vector<fs::path> files(const std::string& ending = ".kv") const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.path().extension() == ending) found.push_back(entry.path());
    }
    return found;
  }

 private:
  fs::path path_;
};

TierOptions tiers(int64_t memory, const Folder* folder = nullptr, int64_t disk = kMuch) {
  TierOptions tiers;
  tiers.memory_bytes = memory;
  if (folder) tiers.disk = folder->path();
  tiers.disk_bytes = disk;
  tiers.secret = std::string(ArchiveHash::kSecretBytes, 's');
  tiers.identity = "toy";
  return tiers;
}

EngineOptions with(TierOptions tiers, int64_t groups = 1, int32_t blocks = 45) {
  EngineOptions o = options(blocks, 4, 16, groups);
  o.tiers = std::move(tiers);
  return o;
}

Request told(int64_t id, std::vector<int32_t> prompt, int32_t tokens, std::string salt = "") {
  Request r = request(id, std::move(prompt), tokens);
  r.sampling.logprobs = 2;
  r.sampling.cache_salt = std::move(salt);
  return r;
}

Outcomes run_all(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& r : requests) engine.submit(r);
  Outcomes outcomes;
  const auto ended = [&] {
    return std::ranges::all_of(requests, [&](const Request& r) {
      return outcomes.contains(r.id) && !outcomes[r.id].last.finish.empty();
    });
  };
  const auto deadline = Clock::now() + kPatience;
  while (!ended() && Clock::now() < deadline) collect(engine.wait_events(0.5), &outcomes);
  TW_CHECK(ended());
  return outcomes;
}

Outcome run_one(Engine& engine, const Request& r) { return run_all(engine, {r})[r.id]; }

// Runs other prompts, so that the cache forgets all that came before.
void crowd_out(Engine& engine, int64_t first_id) {
  for (int64_t id = first_id; id < first_id + 6; ++id) {
    std::vector<int32_t> prompt(80, 1);
    prompt[0] = static_cast<int32_t>(id);
    run_one(engine, request(id, std::move(prompt), 2));
  }
}

Outcome alone(const Request& r, const FakeBehaviour& b = {}) {
  return solo(r, b.groups, b.window, b.states, b.chunked, b.sink_tokens);
}

std::vector<FakeBehaviour> families() {
  FakeBehaviour dense, two, sliding, chunked, windows, sinks;
  two.groups = 2;
  sliding.groups = 2, sliding.window = 9;
  chunked.groups = 2, chunked.window = 8, chunked.chunked = true;
  windows.groups = 1, windows.window = 9;
  sinks.groups = 2, sinks.window = 9, sinks.sink_tokens = 5;
  return {dense, two, sliding, chunked, windows, sinks};
}

// Leaves the prefixes of a prompt on disk, and returns what the prompt says.
Outcome leave_on_disk(const Folder& folder, const Request& r) {
  Engine engine(fake(), with(tiers(0, &folder)));
  return run_one(engine, r);
}

}  // namespace

TW_TEST(checksums_are_those_of_xxhash) {
  TW_CHECK_EQ(checksum(std::string_view()), 0xef46db3751d8e999u);
  TW_CHECK_EQ(checksum(std::string_view("abc")), 0x44bc2cf5ad770999u);
  const std::string_view fox = "The quick brown fox jumps over the lazy dog";
  TW_CHECK_EQ(checksum(fox), 0x0b242d361fda71bcu);
}

TW_TEST(names_depend_on_secret_salt_and_all_tokens_before) {
  const ArchiveHash one(std::string(32, 'a')), again(std::string(32, 'a')), other(std::string(32, 'b'));
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  TW_CHECK(one.child(one.root("x"), tokens) == again.child(again.root("x"), tokens));
  TW_CHECK(one.root("x") != other.root("x"));
  TW_CHECK(one.root("x") != one.root("y"));
  TW_CHECK(one.child(one.root("x"), tokens) != one.child(one.root("y"), tokens));
  TW_CHECK(one.child(one.child(one.root(""), tokens), tokens) != one.child(one.root(""), tokens));
  TW_CHECK_ERROR(ArchiveHash("short"), "InvalidOptionError");
}

TW_TEST(what_was_forgotten_comes_back_from_memory_and_from_disk) {
  for (const FakeBehaviour& behaviour : families()) {
    for (const int64_t memory : {kMuch, int64_t{0}}) {
      const Folder folder;
      const Request first = told(1, numbers(3, 60), 20), again = told(50, numbers(3, 60), 20);
      const Outcome expected = alone(first, behaviour);
      Engine engine(fake(behaviour), with(tiers(memory, memory ? nullptr : &folder), behaviour.groups));
      TW_CHECK(same(run_one(engine, first), expected));
      crowd_out(engine, 2);
      const Outcome outcome = run_one(engine, again);
      TW_CHECK(same(outcome, expected));
      TW_CHECK_EQ(outcome.last.cached_tokens, 56);
      const EngineStats stats = engine.stats();
      TW_CHECK_EQ(stats.fetches.failed, 0);
      TW_CHECK(stats.tiers.memory_hits + stats.tiers.disk_hits > 0);
    }
  }
}

TW_TEST(what_an_engine_remembered_is_there_after_a_restart) {
  for (const FakeBehaviour& behaviour : families()) {
    for (const int64_t memory : {kMuch, int64_t{0}}) {
      const Folder folder;
      const Request first = told(1, numbers(3, 60), 20);
      const Outcome expected = alone(first, behaviour);
      {
        Engine engine(fake(behaviour), with(tiers(memory, &folder), behaviour.groups));
        run_one(engine, first);
        crowd_out(engine, 2);
      }
      Engine engine(fake(behaviour), with(tiers(memory, &folder), behaviour.groups));
      const Outcome outcome = run_one(engine, first);
      TW_CHECK(same(outcome, expected));
      TW_CHECK_EQ(outcome.last.cached_tokens, 56);
      TW_CHECK(engine.stats().tiers.disk_hits > 0);
      TW_CHECK_EQ(engine.stats().tiers.memory_hits, 0);
    }
  }
}

TW_TEST(what_comes_back_takes_no_room_of_what_it_goes_on_behind) {
  Engine engine(fake(), with(tiers(kMuch)));  // of 45 blocks
  run_one(engine, request(1, numbers(3, 60), 1));
  run_one(engine, request(2, std::vector<int32_t>(116, 1), 1));
  run_one(engine, request(3, std::vector<int32_t>(24, 2), 1));  // takes blocks of the first prompt's end
  const Outcome outcome = run_one(engine, told(4, numbers(3, 60), 9));
  TW_CHECK(same(outcome, alone(told(4, numbers(3, 60), 9))));
  TW_CHECK_EQ(outcome.last.cached_tokens, 56);
  const EngineStats stats = engine.stats();
  TW_CHECK(stats.tiers.memory_hits > 0 && stats.tiers.memory_hits < 14);
  TW_CHECK_EQ(stats.fetches.failed, 0);
}

// Small caches, so that requests are preempted and come back too; prompts that share beginnings; several at
// once.
TW_TEST(a_crowd_says_what_each_says_alone) {
  int64_t hits = 0, on_disk = 0, resumed = 0, kept = 0, computed = 0;
  for (int32_t seed = 0; seed < 10; ++seed) {
    const std::vector<FakeBehaviour> all = families();
    const FakeBehaviour behaviour = all[static_cast<size_t>(seed) % all.size()];
    const Folder folder;
    const int64_t memory = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 3000 : kMuch;
    std::mt19937 random(static_cast<unsigned>(seed));
    for (int round = 0; round < 2; ++round) {
      EngineOptions o = with(tiers(memory, seed % 2 ? nullptr : &folder), behaviour.groups, 40);
      if (memory == 0) o.tiers = tiers(0, &folder);
      o.debug_preempt_every = seed % 2 ? 7 : 0;
      Engine engine(fake(behaviour), o);
      std::vector<Request> requests;
      for (int64_t id = 1; id <= 60; ++id) {
        Request r = random_request(random, id, 3, 40);
        r.sampling.cache_salt = random() % 4 ? "" : "tenant";
        if (!r.sampling.seed) r.sampling.temperature = 0;
        requests.push_back(std::move(r));
      }
      const Outcomes outcomes = run_all(engine, requests);
      for (const Request& r : requests)
        TW_CHECK(same(outcomes.at(r.id), solo_completion(r, 0, behaviour.groups, behaviour.window, false,
                                                         behaviour.chunked, behaviour.sink_tokens)));
      // What comes for a request that has ended is given up when it has come.
      EngineStats stats = engine.stats();
      for (int i = 0; i < 20000 && stats.used_blocks > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        stats = engine.stats();
      }
      hits += stats.tiers.memory_hits + stats.tiers.disk_hits;
      on_disk += stats.tiers.disk_hits;
      resumed += stats.fetches.resumed;
      kept += stats.steps.resumed_kept_tokens;
      computed += stats.steps.resumed_computed_tokens;
      TW_CHECK_EQ(stats.invariant_violations, 0);
      TW_CHECK_EQ(stats.used_blocks, 0);
    }
  }
  TW_CHECK(hits > 100);
  TW_CHECK(on_disk > 10);
  TW_CHECK(resumed > 0 && kept > 0 && computed > 0);
}

// A preempted request has its turn when blocks for all of its tokens are there, in a cache that is full
// otherwise: then it gets its own blocks back.
TW_TEST(preempted_requests_get_their_blocks_back_in_a_full_cache) {
  int64_t kept = 0, computed = 0, failed = 0, fetched = 0;
  for (const FakeBehaviour& behaviour : families()) {
    EngineOptions o = with(tiers(kMuch), behaviour.groups, 45);
    o.max_batch_size = 6;
    Engine engine(fake(behaviour), o);
    std::vector<Request> requests;
    for (int64_t id = 1; id <= 8; ++id)
      requests.push_back(told(id, numbers(static_cast<int32_t>(id), 50), 50));
    const Outcomes outcomes = run_all(engine, requests);
    for (const Request& r : requests) TW_CHECK(same(outcomes.at(r.id), alone(r, behaviour)));
    const EngineStats stats = engine.stats();
    kept += stats.steps.resumed_kept_tokens, computed += stats.steps.resumed_computed_tokens;
    fetched += stats.fetches.resumed, failed += stats.fetches.failed;
    TW_CHECK_EQ(stats.invariant_violations, 0);
  }
  TW_CHECK(fetched > failed);
  TW_CHECK(kept > computed);
}

// A request that was preempted is weighed, however short its wait would be; one that starts is not.
TW_TEST(a_preempted_request_computes_where_that_is_faster) {
  KvBlocks kv(1, 45, kBlockSize, true);
  BlockTiers store(tiers(kMuch), {1 << 20});
  PrefixFetches fetches(kv, store, {1 << 20});
  const std::vector<int32_t> tokens = numbers(3, 4 * kBlockSize + 1);
  ArchiveKey key = store.hash().root("");
  for (int32_t block = 0; block < 4; ++block) {
    key = store.hash().child(key,
                             std::span(tokens).subspan(static_cast<size_t>(block) * kBlockSize, kBlockSize));
    store.put({key, 0}, 0, 1 << 20, [](char*) {});
  }
  Sequence sequence;
  sequence.tokens = tokens;
  sequence.sampling = std::make_shared<const Sampling>();
  // The loop never comes to a visit, so that every fetch ends without blocks.
  fetches.start(
      [](const std::function<void(EngineCore&)>&, size_t) { throw Error("TransferError", "busy"); });
  fetches.learn_rate(int64_t{1} << 30, 1);  // four blocks take 4 ms
  const auto asks = [&](double tokens_per_second, int32_t cached) {
    const FetchStats before = fetches.stats();
    for (int i = 0; i < 30; ++i) fetches.observe(1 << 20, (1 << 20) / tokens_per_second);
    sequence.cached_tokens = cached;
    const bool waits = fetches.ask(sequence);
    const FetchStats after = fetches.stats();
    TW_CHECK_EQ(after.fetches - before.fetches, waits ? 1 : 0);
    TW_CHECK_EQ(after.resumed - before.resumed, waits && cached >= 0 ? 1 : 0);
    TW_CHECK_EQ(after.resumed_passed_over - before.resumed_passed_over, !waits && cached >= 0 ? 1 : 0);
    return waits;
  };
  const double fast = 4 * kBlockSize / 0.001, slow = 4 * kBlockSize / 0.1;
  TW_CHECK(asks(fast, -1));
  TW_CHECK(!asks(fast, 0));
  TW_CHECK(asks(slow, 0));
  TW_CHECK(asks(slow, -1));
  fetches.stop();
}

TW_TEST(nobody_finds_the_prefixes_of_another_salt) {
  const Folder folder;
  Engine engine(fake(), with(tiers(kMuch, &folder)));
  run_one(engine, told(1, numbers(3, 60), 4, "one"));
  crowd_out(engine, 2);
  for (const char* salt : {"two", ""}) {
    const int64_t fetches = engine.stats().fetches.fetches;
    TW_CHECK_EQ(run_one(engine, told(60, numbers(3, 60), 4, salt)).last.cached_tokens, 0);
    TW_CHECK_EQ(engine.stats().fetches.fetches, fetches);
  }
  TW_CHECK_EQ(run_one(engine, told(60, numbers(3, 60), 4, "one")).last.cached_tokens, 56);
}

TW_TEST(a_damaged_file_costs_no_more_than_its_blocks) {
  const Request r = told(1, numbers(3, 60), 20);
  const Outcome expected = alone(r);
  enum { kHeader, kContent, kCut, kEmpty, kGone };
  for (int harm : {kHeader, kContent, kCut, kEmpty, kGone}) {
    const Folder folder;
    leave_on_disk(folder, r);
    const std::vector<fs::path> files = folder.files();
    TW_CHECK_EQ(files.size(), 1u);
    if (harm == kHeader || harm == kContent) {
      std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(harm == kHeader ? 30 : static_cast<int64_t>(fs::file_size(files[0])) - 100 * 15 - 50);
      file.put('!');
    } else if (harm == kCut || harm == kEmpty) {
      fs::resize_file(files[0], harm == kCut ? fs::file_size(files[0]) / 2 : 0);
    }
    Engine engine(fake(), with(tiers(0, &folder)));
    if (harm == kGone) fs::remove(files[0]);
    const Outcome outcome = run_one(engine, r);
    TW_CHECK(same(outcome, expected));
    TW_CHECK(outcome.last.cached_tokens < 56);
    TW_CHECK(engine.stats().tiers.disk.dropped > 0);
    TW_CHECK(!engine.take_notices().empty());
    TW_CHECK(engine.take_notices().empty());
  }
}

TW_TEST(a_block_behind_a_damaged_one_is_computed_and_those_before_it_come) {
  const Folder folder;
  const Request r = told(1, numbers(3, 60), 1);
  const Outcome expected = leave_on_disk(folder, r);
  // Blocks lie in the file in the order in which they were saved, the last used and thus the first of the
  // prompt first: the eighth of them begins seven blocks behind the first.
  const fs::path path = folder.files()[0];
  const auto data = static_cast<int64_t>(fs::file_size(path)) - 15 * 100;
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(data + 7 * 100 + 5).put('!');
  Engine engine(fake(), with(tiers(0, &folder)));
  const Outcome outcome = run_one(engine, r);
  TW_CHECK(same(outcome, expected));
  TW_CHECK_EQ(outcome.last.cached_tokens, 28);
}

TW_TEST(a_directory_has_one_engine_of_a_kind_at_a_time) {
  const Folder folder;
  Engine engine(fake(), with(tiers(0, &folder)));
  TW_CHECK_ERROR(Engine(fake(), with(tiers(0, &folder))), "InvalidOptionError");
  TierOptions other = tiers(0, &folder);
  other.identity = "another build";
  Engine beside(fake(), with(other));
}

TW_TEST(another_build_or_secret_reads_nothing_and_gives_way) {
  const Folder folder;
  const Request r = told(1, numbers(3, 60), 4);
  leave_on_disk(folder, r);
  const auto left = static_cast<int64_t>(fs::file_size(folder.files()[0]));
  for (const bool secret : {false, true}) {
    TierOptions other = tiers(0, &folder);
    (secret ? other.secret : other.identity) = std::string(ArchiveHash::kSecretBytes, 'o');
    Engine engine(fake(), with(other));
    TW_CHECK_EQ(run_one(engine, r).last.cached_tokens, 0);
    TW_CHECK_EQ(engine.stats().tiers.disk.blocks, 0);
  }
  TierOptions small = tiers(0, &folder, left / 2);
  small.identity = "a third";
  Engine engine(fake(), with(small));
  TW_CHECK_EQ(folder.files().size(), 0u);
}

TW_TEST(tiers_keep_to_their_bytes_and_what_is_worth_least_gives_way) {
  const Folder folder;
  Notices notices;
  BlockTiers memory(tiers(250), {100});
  const auto fill = [](char* to) { std::fill_n(to, 100, 'x'); };
  const auto id = [](uint64_t number) { return BlockId{{number, number}, 0}; };
  memory.put(id(1), 1, 100, fill);
  for (uint64_t number : {2u, 3u, 4u}) memory.put(id(number), 0, 100, fill);
  TW_CHECK(memory.has(id(1)) && memory.has(id(4)));  // the older one has the higher priority
  TW_CHECK(!memory.has(id(2)) && !memory.has(id(3)));
  TW_CHECK_EQ(memory.stats().memory_bytes, 200);
  TW_CHECK_EQ(memory.stats().memory_evicted, 2);

  DiskTier disk(folder.path(), 1000, 0, {1, 1}, {100}, notices);
  const auto block = [&](uint64_t number) {
    return StoredBlock{id(number), 0, 100, std::shared_ptr<const char[]>(new char[100]())};
  };
  for (uint64_t number = 1; number <= 20; ++number) disk.write({block(number)});
  TW_CHECK(disk.stats().bytes <= 1000);
  TW_CHECK(disk.has(id(20)) && !disk.has(id(1)));
  TW_CHECK_EQ(static_cast<int64_t>(folder.files().size()), disk.stats().files);
  TW_CHECK(!disk.write(std::vector<StoredBlock>(11, block(99))) || disk.stats().bytes <= 1000);
}

TW_TEST(what_cannot_be_written_is_told_once_and_serving_goes_on) {
  const Folder folder;
  const Request r = told(1, numbers(3, 60), 4);
  Notices notices;
  DiskTier disk(folder.path(), kMuch, 0, {1, 1}, {100}, notices);
  fs::remove_all(folder.path());
  for (uint64_t number = 1; number <= 3; ++number)
    TW_CHECK(
        !disk.write({{BlockId{{number, 1}, 0}, 0, 100, std::shared_ptr<const char[]>(new char[100]())}}));
  TW_CHECK_EQ(disk.stats().failed_writes, 3);
  TW_CHECK_EQ(notices.take().size(), 1u);
}

TW_TEST(what_was_not_used_for_the_time_to_live_is_gone) {
  const Folder folder;
  const Request r = told(1, numbers(3, 60), 4);
  leave_on_disk(folder, r);
  const auto open = [&](double ttl) {
    TierOptions options = tiers(0, &folder);
    options.ttl_s = ttl;
    return options;
  };
  const timespec old[2] = {{std::time(nullptr) - 100, 0}, {std::time(nullptr) - 100, 0}};
  utimensat(AT_FDCWD, folder.files()[0].c_str(), old, 0);
  {
    Engine engine(fake(), with(open(1000)));
    TW_CHECK_EQ(run_one(engine, r).last.cached_tokens, 56);  // and so it was used now
  }
  utimensat(AT_FDCWD, folder.files()[0].c_str(), old, 0);
  Engine engine(fake(), with(open(50)));
  TW_CHECK_EQ(run_one(engine, r).last.cached_tokens, 0);

  TierOptions brief = tiers(kMuch);
  brief.ttl_s = 50;
  Clock::hold(Clock::time_point(std::chrono::seconds(1000)));
  BlockTiers memory(brief, {100});
  const BlockId id{{1, 1}, 0};
  memory.put(id, 0, 100, [](char*) {});
  TW_CHECK(memory.has(id));
  Clock::hold(Clock::time_point(std::chrono::seconds(1051)));
  TW_CHECK(!memory.has(id));
  Clock::release();
}

TW_TEST(requests_that_end_while_they_wait_harm_nobody) {
  const Folder folder;
  const Request r = told(1, numbers(3, 60), 20);
  leave_on_disk(folder, r);
  for (int tries = 0; tries < 20; ++tries) {
    Engine engine(fake(), with(tiers(0, &folder)));
    for (int64_t id = 1; id <= 8; ++id) engine.submit(told(id, numbers(3, 60), 20));
    for (int64_t id = 1; id <= 4; ++id) engine.abort(id);
    if (tries % 2) continue;  // the engine ends while they wait
    Outcomes outcomes;
    const auto deadline = Clock::now() + kPatience;
    const auto ended = [&] {
      return std::ranges::count_if(outcomes, [](auto& o) { return !o.second.last.finish.empty(); }) == 8;
    };
    while (!ended() && Clock::now() < deadline) collect(engine.wait_events(0.5), &outcomes);
    TW_CHECK(ended());
    const Outcome expected = alone(r);
    for (int64_t id = 5; id <= 8; ++id) TW_CHECK(same(outcomes[id], expected));
  }
}

TW_TEST(models_whose_blocks_are_not_all_are_refused) {
  TW_CHECK_ERROR(EngineCore(fake(with_states(1)), with(tiers(kMuch))), "InvalidOptionError");
  EngineOptions without = with(tiers(kMuch));
  without.prefix_cache = false;
  TW_CHECK_ERROR(EngineCore(fake(), without), "InvalidOptionError");
}

TW_TEST_MAIN()
