// BlockAllocator, BlockRef and BlockTable: counts, states, sharing, copy on write, no leak.
#include "runtime/core/cache/block_allocator.h"

#include <random>
#include <set>
#include <stdexcept>

#include "tests/cpp/check.h"

using namespace tensorwright;

TW_TEST(every_block_is_handed_out_once_and_comes_back) {
  BlockAllocator pool(5);
  {
    std::vector<BlockRef> held;
    std::set<int32_t> ids;
    for (int i = 0; i < 5; ++i) {
      held.push_back(pool.allocate());
      ids.insert(held.back().id());
    }
    TW_CHECK_EQ(ids.size(), 5u);
    TW_CHECK_EQ(*ids.begin(), 0);
    TW_CHECK_EQ(*ids.rbegin(), 4);
    TW_CHECK(!pool.allocate());
    TW_CHECK_EQ(pool.used(), 5);
  }
  TW_CHECK_EQ(pool.free(), 5);
}

TW_TEST(a_block_is_free_after_its_last_reference) {
  BlockAllocator pool(2);
  BlockRef first = pool.allocate();
  BlockRef second = first.share();
  BlockRef moved = std::move(first);
  TW_CHECK(!first);
  TW_CHECK_EQ(pool.references(second.id()), 2);
  moved.reset();
  moved.reset();  // an empty ref has nothing to give back
  TW_CHECK_EQ(pool.free(), 1);
  second = BlockRef();
  TW_CHECK_EQ(pool.free(), 2);
}

TW_TEST(misuse_is_refused) {
  BlockAllocator pool(2);
  TW_CHECK_THROWS(pool.release(0), std::logic_error);  // never allocated
  int32_t id = pool.allocate().id();                   // freed again at once
  TW_CHECK_THROWS(pool.release(id), std::logic_error);
  TW_CHECK_THROWS(pool.share(id), std::logic_error);
  TW_CHECK_THROWS(pool.keep(id), std::logic_error);
  TW_CHECK_THROWS(pool.forget(id), std::logic_error);
  TW_CHECK_THROWS(pool.release(2), std::logic_error);
  TW_CHECK_THROWS(pool.references(-1), std::logic_error);
  TW_CHECK_EQ(pool.free(), 2);
}

TW_TEST(a_kept_block_goes_idle_and_comes_back_by_share_or_forget) {
  BlockAllocator pool(2);
  BlockRef ref = pool.allocate();
  int32_t id = ref.id();
  pool.keep(id);
  TW_CHECK_THROWS(pool.keep(id), std::logic_error);
  ref.reset();
  TW_CHECK_EQ(pool.idle(), 1);
  TW_CHECK_EQ(pool.free(), 1);
  ref = pool.share(id);
  TW_CHECK_EQ(pool.idle(), 0);
  TW_CHECK_EQ(pool.used(), 1);
  pool.forget(id);  // while used: no longer remembered, freed by the last reference
  TW_CHECK_EQ(pool.free(), 1);
  ref.reset();
  TW_CHECK_EQ(pool.free(), 2);
  ref = pool.allocate();
  pool.keep(ref.id());
  id = ref.id();
  ref.reset();
  pool.forget(id);  // while idle: free at once
  TW_CHECK_EQ(pool.free(), 2);
  TW_CHECK_EQ(pool.idle(), 0);
}

TW_TEST(copy_on_write_copies_only_what_is_shared) {
  BlockAllocator pool(3);
  BlockTable table;
  table.append(pool.allocate());
  table.append(pool.allocate());
  int copies = 0;
  int32_t from = -1, to = -1;
  auto copy = [&](int32_t f, int32_t t) { ++copies, from = f, to = t; };
  TW_CHECK(table.make_writable(1, pool, copy));
  TW_CHECK_EQ(copies, 0);
  BlockTable fork = table.share();
  int32_t shared = table[1];
  auto broken = [](int32_t, int32_t) { throw std::runtime_error("copy"); };
  TW_CHECK_THROWS(fork.make_writable(1, pool, broken), std::runtime_error);
  TW_CHECK_EQ(fork[1], shared);
  TW_CHECK_EQ(pool.free(), 1);
  TW_CHECK(fork.make_writable(1, pool, copy));
  TW_CHECK_EQ(copies, 1);
  TW_CHECK_EQ(from, shared);
  TW_CHECK_EQ(to, fork[1]);
  TW_CHECK(fork[1] != shared);
  TW_CHECK_EQ(table[1], shared);
  TW_CHECK(table.make_writable(1, pool, copy));  // its own again
  TW_CHECK_EQ(copies, 1);
  TW_CHECK(!fork.make_writable(0, pool, copy));  // shared, and no block left
  TW_CHECK_EQ(fork[0], table[0]);
  fork = BlockTable();
  int32_t kept = table[1];
  pool.keep(kept);
  TW_CHECK(table.make_writable(1, pool, copy));  // the prefix tree remembers what is in it
  TW_CHECK_EQ(copies, 2);
  TW_CHECK(table[1] != kept);
  TW_CHECK_EQ(pool.idle(), 1);
}

TW_TEST(random_use_keeps_the_counts) {
  std::mt19937 random(1);
  BlockAllocator pool(16);
  {
    std::vector<BlockRef> held;
    for (int i = 0; i < 5000; ++i) {
      size_t pick = held.empty() ? 0 : random() % held.size();
      switch (random() % 3) {
        case 0:
          if (BlockRef ref = pool.allocate()) held.push_back(std::move(ref));
          break;
        case 1:
          if (!held.empty()) held.push_back(held[pick].share());
          break;
        default:
          if (!held.empty()) held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      std::multiset<int32_t> ids;
      for (const BlockRef& ref : held) ids.insert(ref.id());
      int32_t used = 0;
      for (int32_t block = 0; block < 16; ++block) {
        TW_CHECK_EQ(pool.references(block), static_cast<int32_t>(ids.count(block)));
        used += ids.count(block) > 0;
      }
      TW_CHECK_EQ(pool.used(), used);
    }
  }
  TW_CHECK_EQ(pool.free(), 16);
}

TW_TEST_MAIN()
