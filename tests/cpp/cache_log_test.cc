// The events of the prefix cache: who replays them knows exactly what the cache and its tiers have, however
// slow it reads, and whoever is too slow is told so.
#include "runtime/core/cache/cache_log.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/cache/prefix_salt.h"
#include "runtime/core/engine/cache_content.h"
#include "runtime/core/tiers/block_tiers.h"
#include "tests/cpp/check.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

constexpr int32_t kBlock = 2;
const ArchiveHash kNames(std::string(ArchiveHash::kSecretBytes, 's'));

// tier, group, name
using Place = std::tuple<int, int32_t, uint64_t, uint64_t>;
using Content = std::map<Place, CacheEvent>;

Place place_of(const CacheEvent& event) {
  return {static_cast<int>(event.tier), event.group, event.block.high, event.block.low};
}

std::set<Place> places(const Content& content) {
  std::set<Place> found;
  for (const auto& [place, event] : content) found.insert(place);
  return found;
}

// What somebody does who follows a cache: a whole content page by page, then events, `pace` at a time.
class Follower {
 public:
  Follower(CacheLog& log, const KvBlocks& kv, const BlockTiers* tiers, size_t pace)
      : log_(log), kv_(kv), tiers_(tiers), pace_(pace) {}

  // Reads once. Returns whether it has read all.
  bool read() {
    if (number_ < 0) {
      content_.clear();
      number_ = log_.begin();
      at_ = {};
    }
    if (at_.stage != ContentPlace::kEnd) {
      apply(read_content(kv_, tiers_, &at_, pace_));
      return false;
    }
    CacheLog::News news = log_.read(number_, pace_, 0);
    lost_ += news.lost;
    if (news.lost > 0) {
      TW_CHECK(news.events.empty());
      number_ = -1;
      return false;
    }
    for (const CacheEvent& event : news.events) TW_CHECK_EQ(event.number, ++number_);
    TW_CHECK_EQ(news.next, number_);
    apply(news.events);
    return news.events.empty();
  }
  const Content& finish() {
    while (!read()) {
    }
    return content_;
  }
  int64_t lost() const { return lost_; }

 private:
  void apply(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) {
      if (event.stored) {
        content_[place_of(event)] = event;
      } else {
        content_.erase(place_of(event));
      }
    }
  }

  CacheLog& log_;
  const KvBlocks& kv_;
  const BlockTiers* tiers_;
  const size_t pace_;
  int64_t number_ = -1, lost_ = 0;
  ContentPlace at_;
  Content content_;
};

std::string salt_of(uint32_t number) {
  if (number == 0) return {};
  return number == 1 ? std::string("mine") : join_salt({"key", "mine"});
}

// Sequences come, grow and go in a cache that is too small for what they leave, over a window and without
// one. `watch` is called between.
void live(KvBlocks& kv, int steps, uint32_t seed, const std::function<void()>& watch) {
  std::mt19937 random(seed);
  struct Alive {
    std::vector<int32_t> tokens;
    std::string salt;
    SequenceBlocks held;
  };
  std::vector<Alive> alive;
  for (int step = 0; step < steps; ++step) {
    if (alive.size() < 3 && random() % 2) {
      Alive next{{}, salt_of(random() % 3), {}};
      next.tokens = {static_cast<int32_t>(random() % 3), 1, 2, static_cast<int32_t>(random() % 4), 7};
      kv.attach(kv.match(next.tokens, next.salt), next.held);
      alive.push_back(std::move(next));
    }
    for (size_t i = alive.size(); i-- > 0;) {
      Alive& one = alive[i];
      one.tokens.push_back(static_cast<int32_t>(random() % 3));
      const auto size = static_cast<int32_t>(one.tokens.size());
      const bool grew = kv.make_writable(one.held, one.held.published * kBlock, size);
      if (grew) {
        kv.publish(one.held, one.tokens, one.salt);
        kv.drop_unseen(one.held, size);
      }
      if (grew && random() % 12) continue;
      kv.release(one.held);
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(i));
    }
    watch();
  }
  for (Alive& one : alive) kv.release(one.held);
}

KvBlocks make_cache() {
  GroupShape all{24}, window{14, 5};
  return KvBlocks({all, window}, kBlock, true);
}

std::set<Place> true_content(const KvBlocks& kv) {
  std::set<Place> found;
  kv.visit_from(0, [&](const PrefixTree::Node& node) {
    for (int32_t group = 0; group < kv.groups(); ++group) {
      if (node.blocks[static_cast<size_t>(group)] != PrefixTree::kHole)
        found.insert({0, group, node.archived.high, node.archived.low});
    }
    return true;
  });
  return found;
}

}  // namespace

TW_TEST(replayed_events_are_the_content_of_the_tree) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    CacheLog log(40, kBlock);
    KvBlocks kv = make_cache();
    kv.archive(kNames, nullptr);
    kv.log_to(log);
    std::mt19937 random(seed);
    Follower eager(log, kv, nullptr, 50), slow(log, kv, nullptr, 3), late(log, kv, nullptr, 7);
    live(kv, 400, seed, [&] {
      eager.read();
      if (random() % 3 == 0) slow.read();
    });
    const std::set<Place> expected = true_content(kv);
    TW_CHECK(expected.size() > 20);
    int64_t blocks = 0;
    for (int32_t group = 0; group < kv.groups(); ++group) blocks += kv.group(group).all_kept();
    TW_CHECK_EQ(static_cast<int64_t>(expected.size()), blocks);
    for (Follower* follower : {&eager, &slow, &late}) TW_CHECK(places(follower->finish()) == expected);
    TW_CHECK_EQ(eager.lost(), 0);
    TW_CHECK_EQ(late.lost(), 0);
    TW_CHECK(slow.lost() > 0);
  }
}

TW_TEST(a_stored_block_says_what_it_is_behind_and_whose) {
  CacheLog log(8, kBlock);
  KvBlocks kv(1, 8, kBlock, true);
  kv.archive(kNames, nullptr);
  kv.log_to(log);
  TW_CHECK_EQ(log.begin(), 0);
  for (uint32_t number = 0; number < 3; ++number) {
    SequenceBlocks held;
    const std::string salt = salt_of(number);
    kv.attach(kv.match({}, salt), held);
    TW_CHECK(kv.make_writable(held, 0, 4));
    kv.publish(held, std::vector<int32_t>{1, 2, 3, 4}, salt);
    kv.release(held);
    const std::vector<CacheEvent> events = log.read(2 * number, 8, 0).events;
    TW_CHECK_EQ(events.size(), 2u);
    TW_CHECK(!events[0].parent && events[1].parent == events[0].block);
    TW_CHECK(events[0].tokens == (std::vector<int32_t>{1, 2}) &&
             events[1].tokens == (std::vector<int32_t>{3, 4}));
    TW_CHECK(events[1].block ==
             kNames.child(kNames.child(kNames.root(salt), events[0].tokens), events[1].tokens));
    for (const CacheEvent& event : events) {
      TW_CHECK(event.stored && event.tier == CacheTier::kCache);
      TW_CHECK_EQ(event.origin.salt.has_value(), number > 0);
      TW_CHECK_EQ(event.origin.adapter.has_value(), number == 2);
      if (number > 0) TW_CHECK(event.origin.salt == salt_name(kNames, "mine"));
      if (number == 2) TW_CHECK(event.origin.adapter == adapter_name(kNames, "key"));
    }
  }
  TW_CHECK(salt_name(kNames, "key") != adapter_name(kNames, "key"));
}

TW_TEST(who_is_too_slow_is_told_how_much_it_lost) {
  CacheLog log(4, kBlock);
  const auto add = [&](uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) log.add(true, CacheTier::kMemory, 0, {i, i});
  };
  add(1, 10);  // nobody listens
  TW_CHECK_EQ(log.begin(), 10);
  add(11, 4);
  const CacheLog::News all = log.read(10, 3, 0);
  TW_CHECK_EQ(all.events.size(), 3u);
  TW_CHECK_EQ(all.next, 13);
  TW_CHECK_EQ(all.events[2].block.high, 13u);
  add(15, 4);
  const CacheLog::News late = log.read(all.next, 10, 0);
  TW_CHECK_EQ(late.lost, 5);
  TW_CHECK_EQ(late.next, 18);
  TW_CHECK(late.events.empty());
  TW_CHECK(log.read(18, 10, 0).events.empty());
  // As many as are kept come and one more: what is kept ends, and begins again with the next read.
  add(19, 5);
  TW_CHECK_EQ(log.read(18, 10, 0).lost, 5);
  add(24, 2);
  TW_CHECK_EQ(log.read(23, 10, 0).events.size(), 2u);
  TW_CHECK_ERROR(log.read(26, 1, 0), "InvalidRequestError");
  TW_CHECK_ERROR(log.read(-1, 1, 0), "InvalidRequestError");
  TW_CHECK(CacheLog(4, kBlock).epoch() != log.epoch());
}

TW_TEST(tiers_tell_of_what_they_store_and_remove) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "eventsXXXXXX").string();
  TW_CHECK(mkdtemp(folder.data()) != nullptr);
  TierOptions options;
  options.memory_bytes = 6 * 100, options.disk = folder, options.disk_bytes = 1 << 20;
  options.secret = std::string(ArchiveHash::kSecretBytes, 's');
  CacheLog log(1000, kBlock);
  KvBlocks kv(1, 8, kBlock, true);
  kv.archive(kNames, nullptr);
  kv.log_to(log);
  {
    BlockTiers tiers(options, {100}, &log);
    Follower follower(log, kv, &tiers, 5);
    follower.finish();
    for (uint64_t i = 0; i < 60; ++i) {
      tiers.put({{i, i}, 0}, static_cast<int32_t>(i % 3), 100, [](char* to) { std::memset(to, 1, 100); });
      follower.read();
    }
    tiers.close(Clock::now() + std::chrono::seconds(60));
    const std::set<Place> followed = places(follower.finish());
    const TierStats stats = tiers.stats();
    TW_CHECK_EQ(stats.memory_blocks, 0);
    TW_CHECK_EQ(stats.disk.blocks, 60);
    TW_CHECK_EQ(static_cast<int64_t>(followed.size()), stats.disk.blocks);
    for (const auto& [tier, group, high, low] : followed) {
      TW_CHECK_EQ(tier, static_cast<int>(CacheTier::kDisk));
      TW_CHECK(tiers.has({{high, low}, group}));
    }
    TW_CHECK(places(Follower(log, kv, &tiers, 2).finish()) == followed);
    TW_CHECK_EQ(follower.lost(), 0);
  }
  fs::remove_all(folder);
}

TW_TEST(a_disk_tells_of_the_blocks_of_files_that_give_way) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "eventsXXXXXX").string();
  TW_CHECK(mkdtemp(folder.data()) != nullptr);
  CacheLog log(1000, kBlock);
  Notices notices;
  {
    DiskTier disk(folder, 1000, 0, {1, 1}, {100}, notices, &log);
    TW_CHECK_EQ(log.begin(), 0);
    for (uint64_t i = 1; i <= 20; ++i)
      disk.write({{BlockId{{i, i}, 0}, 0, 100, std::shared_ptr<const char[]>(new char[100]())}});
    std::set<uint64_t> followed;
    for (const CacheEvent& event : log.read(0, 1000, 0).events) {
      TW_CHECK(event.tier == CacheTier::kDisk);
      TW_CHECK(event.stored ? followed.insert(event.block.high).second
                            : followed.erase(event.block.high) == 1);
    }
    TW_CHECK(disk.stats().evicted > 0 && !followed.empty());
    TW_CHECK_EQ(static_cast<int64_t>(followed.size()), disk.stats().blocks);
    for (const uint64_t i : followed) TW_CHECK(disk.has({{i, i}, 0}));
  }
  fs::remove_all(folder);
}

// A whole engine with a small cache, and memory and a disk behind it.
TW_TEST(an_engine_can_be_followed_while_it_runs) {
  EngineOptions o = options(30, 3, 16);
  o.cache_events = 64;
  o.tiers.memory_bytes = 2000;
  o.tiers.secret = std::string(ArchiveHash::kSecretBytes, 's');
  EngineCore core(fake(), o);
  std::map<Place, int> followed;
  ContentPlace at;
  int64_t number = core.cache_log().begin(), told = 0;
  const auto apply = [&](const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) {
      if (event.stored) {
        followed[place_of(event)] = 1;
      } else {
        followed.erase(place_of(event));
      }
    }
  };
  for (int64_t id = 1; id <= 20; ++id)
    core.add(request(id, numbers(static_cast<int32_t>(id % 7), 20), 12), Clock::now());
  std::vector<Event> events;
  while (!core.idle()) {
    core.step(&events);
    if (at.stage != ContentPlace::kEnd) {
      apply(core.read_content(&at, 4));
      continue;
    }
    const CacheLog::News news = core.cache_log().read(number, 1000, 0);
    TW_CHECK_EQ(news.lost, 0);
    number = news.next;
    told += static_cast<int64_t>(news.events.size());
    apply(news.events);
  }
  TW_CHECK(told > 100);
  std::map<Place, int> whole;
  for (ContentPlace from; from.stage != ContentPlace::kEnd;) {
    for (const CacheEvent& event : core.read_content(&from, 5)) whole[place_of(event)] = 1;
  }
  TW_CHECK(core.stats().tiers.memory_blocks > 0 && core.stats().cached_blocks > 0);
  TW_CHECK_EQ(static_cast<int64_t>(whole.size()),
              core.stats().tiers.memory_blocks + core.stats().cached_blocks);
  TW_CHECK(whole == followed);
}

TW_TEST(without_the_option_nobody_is_told) {
  EngineCore core(fake(), options(30, 3, 16));
  TW_CHECK_ERROR(core.cache_log(), "InvalidRequestError");
  EngineOptions o = options(30, 3, 16);
  o.cache_events = -1;
  TW_CHECK_ERROR(EngineCore(fake(), o), "InvalidOptionError");
  o.cache_events = 4, o.prefix_cache = false;
  TW_CHECK_ERROR(EngineCore(fake(), o), "InvalidOptionError");
}

TW_TEST_MAIN()
