// PrefixTree and KvBlocks: exact hits, least recently used goes first, collisions, nothing pinned for ever.
#include "runtime/core/cache/prefix_tree.h"

#include <map>
#include <random>
#include <set>
#include <span>
#include <stdexcept>

#include "runtime/core/cache/kv_blocks.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

using Tokens = std::vector<int32_t>;

uint64_t constant_hash(uint64_t, std::span<const int32_t>) { return 7; }

int32_t hit(const KvBlocks& kv, const Tokens& tokens) {
  return static_cast<int32_t>(kv.match(tokens).path.size());
}

bool grow(KvBlocks& kv, SequenceBlocks& held, int32_t blocks) {
  return kv.make_writable(held, held.size() * kv.block_size(), blocks * kv.block_size());
}

// Computes `tokens` as a sequence would, from the prefix hit on, and keeps holding them.
SequenceBlocks compute(KvBlocks& kv, const Tokens& tokens) {
  SequenceBlocks held;
  kv.attach(kv.match(tokens), held);
  TW_CHECK(grow(kv, held, kv.blocks_for(static_cast<int64_t>(tokens.size()))));
  kv.publish(held, tokens);
  return held;
}

void compute_and_release(KvBlocks& kv, const Tokens& tokens) {
  SequenceBlocks held = compute(kv, tokens);
  kv.release(held);
}

}  // namespace

TW_TEST(hits_are_full_blocks_and_leave_a_token_to_compute) {
  KvBlocks kv(1, 8, 2, true);
  compute_and_release(kv, {1, 2, 3, 4, 5});
  TW_CHECK_EQ(kv.group(0).idle(), 2);  // the half-filled third block is free
  TW_CHECK_EQ(hit(kv, {1, 2, 3, 4, 5}), 2);
  TW_CHECK_EQ(hit(kv, {1, 2, 3, 4}), 1);  // the last token must be computed for its logits
  TW_CHECK_EQ(hit(kv, {1, 2, 3}), 1);
  TW_CHECK_EQ(hit(kv, {1, 2}), 0);
  TW_CHECK_EQ(hit(kv, {}), 0);
  TW_CHECK_EQ(hit(kv, {1, 2, 4, 3, 5}), 1);
  TW_CHECK_EQ(hit(kv, {3, 4, 5}), 0);  // a block counts only after the same beginning
}

TW_TEST(without_the_cache_nothing_is_kept) {
  KvBlocks kv(1, 4, 2, false);
  compute_and_release(kv, {1, 2, 3, 4, 5});
  TW_CHECK_EQ(hit(kv, {1, 2, 3, 4, 5}), 0);
  TW_CHECK_EQ(kv.group(0).free(), 4);
}

TW_TEST(a_hit_gives_the_same_blocks_in_every_group) {
  KvBlocks kv(3, 8, 2, true);
  SequenceBlocks first = compute(kv, {1, 2, 3, 4, 5});
  SequenceBlocks second = compute(kv, {1, 2, 3, 4, 6});
  for (int group = 0; group < 3; ++group) {
    TW_CHECK_EQ(first.tables[group][1], second.tables[group][1]);
    TW_CHECK(first.tables[group][2] != second.tables[group][2]);
    TW_CHECK_EQ(kv.group(group).used(), 4);
  }
}

TW_TEST(two_that_compute_the_same_end_up_with_one_copy) {
  KvBlocks kv(2, 8, 2, true);
  SequenceBlocks a, b;
  grow(kv, a, 3);
  grow(kv, b, 3);
  Tokens tokens = {1, 2, 3, 4, 5};
  kv.publish(a, tokens);
  kv.publish(b, tokens);
  TW_CHECK_EQ(a.tables[1][1], b.tables[1][1]);
  TW_CHECK_EQ(kv.group(0).used(), 4);
  kv.release(a);
  kv.release(b);
  TW_CHECK_EQ(kv.group(0).free(), 6);
  TW_CHECK_EQ(kv.group(1).idle(), 2);
}

TW_TEST(the_least_recently_used_goes_first_and_leaves_before_their_parents) {
  KvBlocks kv(1, 4, 2, true);
  compute_and_release(kv, {1, 1, 2, 2});
  compute_and_release(kv, {3, 3, 4, 4});
  TW_CHECK_EQ(kv.group(0).idle(), 4);
  compute_and_release(kv, {1, 1, 9});  // uses {1, 1}, and evicts one block: {2, 2}, the oldest leaf
  TW_CHECK_EQ(hit(kv, {1, 1, 2, 2, 0}), 1);
  TW_CHECK_EQ(hit(kv, {3, 3, 4, 4, 0}), 2);
  compute_and_release(kv, {5, 5, 6, 6});  // one block is free; {4, 4} is now older than {1, 1}
  TW_CHECK_EQ(hit(kv, {3, 3, 4, 4, 0}), 1);
  TW_CHECK_EQ(hit(kv, {1, 1, 0}), 1);
  TW_CHECK_EQ(hit(kv, {5, 5, 6, 6, 0}), 2);
}

TW_TEST(a_hit_alone_is_a_use) {
  KvBlocks kv(1, 3, 2, true);
  compute_and_release(kv, {1, 1});
  compute_and_release(kv, {2, 2});
  compute_and_release(kv, {1, 1, 0});  // adds nothing to the tree
  compute_and_release(kv, {3, 3, 0});  // needs two blocks, one is free
  TW_CHECK_EQ(hit(kv, {1, 1, 0}), 1);
  TW_CHECK_EQ(hit(kv, {2, 2, 0}), 0);
}

TW_TEST(what_is_held_is_never_evicted) {
  KvBlocks kv(1, 4, 2, true);
  SequenceBlocks held = compute(kv, {1, 1, 2, 2, 3});
  compute_and_release(kv, {4, 4});
  TW_CHECK_EQ(kv.available(), 1);
  SequenceBlocks other;
  TW_CHECK(!grow(kv, other, 2));
  TW_CHECK_EQ(hit(kv, {4, 4, 0}), 1);  // what could not be done evicted nothing
  TW_CHECK(grow(kv, other, 1));
  TW_CHECK_EQ(hit(kv, {4, 4, 0}), 0);
  TW_CHECK_EQ(hit(kv, {1, 1, 2, 2, 0}), 2);
  TW_CHECK_EQ(kv.evictions(), 1);
}

// A window of 3 positions over blocks of 2: a position sees its own block and the one before.
TW_TEST(a_window_lets_go_and_a_hit_needs_its_end_only) {
  KvBlocks kv({{20}, {20, 3, 4}}, 2, true);
  Tokens tokens = {1, 1, 2, 2, 3, 3, 4, 4, 5};
  SequenceBlocks held = compute(kv, tokens);
  kv.drop_unseen(held, 9);  // sees 7 and 8
  TW_CHECK_EQ(kv.group(0).used(), 5);
  TW_CHECK_EQ(kv.group(1).used(), 2);
  TW_CHECK_EQ(held.tables[1].first(), 3);
  TW_CHECK_EQ(kv.group(1).idle(), 3);
  SequenceBlocks other = compute(kv, tokens);  // of the group with the window, only the end
  TW_CHECK_EQ(other.tables[1].first(), 3);
  TW_CHECK_EQ(other.published, 4);
  TW_CHECK_EQ(kv.group(1).references(other.tables[1][3]), 2);
  kv.release(other);
  kv.release(held);
  TW_CHECK_EQ(kv.group(0).used(), 0);
  TW_CHECK_EQ(kv.group(1).used(), 0);
  TW_CHECK_EQ(kv.group(1).idle(), 4);
  SequenceBlocks all;
  TW_CHECK(grow(kv, all, 20));
  kv.release(all);
}

// Chunks of 4 positions over blocks of 2: a position sees the blocks of its own chunk.
TW_TEST(a_chunk_lets_go_of_all_before_it_and_a_hit_needs_none_of_it) {
  KvBlocks kv({{20}, {20, 4, 4, true}}, 2, true);
  Tokens tokens = {1, 1, 2, 2, 3, 3, 4, 4, 5};
  SequenceBlocks held = compute(kv, tokens);
  kv.drop_unseen(held, 7);  // sees 4 to 7
  TW_CHECK_EQ(held.tables[1].first(), 2);
  kv.drop_unseen(held, 8);  // sees itself; the last published block stays
  TW_CHECK_EQ(held.tables[1].first(), 3);
  TW_CHECK_EQ(kv.group(0).used(), 5);
  TW_CHECK_EQ(kv.group(1).used(), 2);
  kv.release(held);
  TW_CHECK_EQ(kv.group(1).idle(), 4);
  const KvBlocks::Match whole = kv.match(tokens), part = kv.match(Tokens{1, 1, 2, 2, 3, 3, 7});
  TW_CHECK_EQ(whole.path.size(), 4u);
  TW_CHECK_EQ(whole.filled[1], 1);
  TW_CHECK_EQ(part.path.size(), 3u);
  TW_CHECK_EQ(part.filled[1], 1);  // position 6 sees 4 and 5
  SequenceBlocks all;
  TW_CHECK(grow(kv, all, 20));
  kv.release(all);
}

TW_TEST(a_block_evicted_from_a_window_leaves_a_hole) {
  KvBlocks kv({{20}, {5, 3, 4}}, 2, true);
  Tokens tokens = {1, 1, 2, 2, 3, 3, 4, 4, 5};
  SequenceBlocks held = compute(kv, tokens);
  kv.drop_unseen(held, 9);
  SequenceBlocks one;
  TW_CHECK(grow(kv, one, 1));  // takes the block of {1, 1} that no one sees
  TW_CHECK_EQ(kv.evictions(), 1);
  TW_CHECK_EQ(hit(kv, {1, 1, 7}), 0);
  TW_CHECK_EQ(hit(kv, {1, 1, 2, 2, 7}), 2);  // the position behind it sees {2, 2} only
  TW_CHECK_EQ(hit(kv, {1, 1, 2, 2, 3, 3, 7}), 3);
  TW_CHECK_EQ(hit(kv, tokens), 4);
  kv.release(one);
  SequenceBlocks again = compute(kv, {1, 1, 9});  // computes {1, 1} and fills the hole
  TW_CHECK_EQ(hit(kv, {1, 1, 7}), 1);
  kv.release(again);
  kv.release(held);
  SequenceBlocks all;
  TW_CHECK(grow(kv, all, 5));  // whatever was remembered can be had back, a node without blocks goes
  TW_CHECK_EQ(kv.group(1).free(), 0);
  TW_CHECK_EQ(hit(kv, tokens), 0);
}

TW_TEST(misuse_is_refused) {
  std::deque<BlockAllocator> groups;
  groups.emplace_back(2);
  PrefixTree tree(groups, 2);
  Tokens three = {1, 2, 3}, block = {0};
  TW_CHECK_THROWS(tree.insert(nullptr, three, block), std::logic_error);
  KvBlocks kv(1, 4, 2, true);
  SequenceBlocks held = compute(kv, {1, 2, 3});
  TW_CHECK_THROWS(kv.shrink(held, 0), std::logic_error);
  TW_CHECK_THROWS(kv.attach({}, held), std::logic_error);
}

// Two salts never share a block, whatever their hashes; one salt, none included, shares as ever.
TW_TEST(salts_keep_prefixes_apart) {
  for (PrefixTree::Hash hash : {PrefixTree::Hash(constant_hash), PrefixTree::Hash(secret_hash)}) {
    KvBlocks kv(2, 24, 2, true, hash);
    const Tokens tokens = {1, 2, 3, 4, 5};
    std::vector<SequenceBlocks> alive;
    auto compute_with = [&](const char* salt) {
      SequenceBlocks held;
      kv.attach(kv.match(tokens, salt), held);
      TW_CHECK(grow(kv, held, 3));
      kv.publish(held, tokens, salt);
      alive.push_back(std::move(held));
      return alive.back().tables[1][0];
    };
    const std::vector<const char*> salts = {"", "a", "ab", "b"};
    std::set<int32_t> first_blocks;
    for (const char* salt : salts) {
      TW_CHECK(kv.match(tokens, salt).path.empty());
      first_blocks.insert(compute_with(salt));
    }
    TW_CHECK_EQ(first_blocks.size(), salts.size());
    for (const char* salt : salts) {
      TW_CHECK_EQ(kv.match(tokens, salt).path.size(), 2u);
      int32_t before = kv.group(0).used();
      TW_CHECK(first_blocks.contains(compute_with(salt)));
      TW_CHECK_EQ(kv.group(0).used(), before + 1);  // two are shared
    }
    TW_CHECK(kv.match(tokens, "c").path.empty());
    for (SequenceBlocks& held : alive) kv.release(held);
    kv.check(0, 0);
    TW_CHECK_EQ(kv.match(tokens, "ab").path.size(), 2u);  // remembered, not held
  }
}

// Against the definition: a set of prefixes. Every hash collides, so the comparison of tokens alone decides.
TW_TEST(random_use_with_all_hashes_colliding) {
  std::mt19937 random(3);
  for (PrefixTree::Hash hash : {PrefixTree::Hash(constant_hash), PrefixTree::Hash(secret_hash)}) {
    KvBlocks kv(2, 24, 2, true, hash);
    std::map<int32_t, Tokens> content;  // block of group 0 -> all tokens up to its end
    std::vector<std::pair<Tokens, SequenceBlocks>> alive;
    for (int round = 0; round < 3000; ++round) {
      if (random() % 2 || alive.empty()) {
        Tokens tokens(1 + random() % 9);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 2);
        KvBlocks::Match match = kv.match(tokens);
        for (size_t i = 0; i < match.path.size(); ++i) {
          Tokens prefix(tokens.begin(), tokens.begin() + 2 * (static_cast<int>(i) + 1));
          TW_CHECK(content[match.path[i]->blocks[0]] == prefix);
        }
        int32_t missing =
            kv.blocks_for(static_cast<int64_t>(tokens.size())) - static_cast<int32_t>(match.path.size());
        if (missing > kv.available() - match.idle[0]) continue;
        SequenceBlocks held;
        kv.attach(match, held);
        int32_t before = held.size();
        TW_CHECK(grow(kv, held, before + missing));
        for (int32_t i = before; i < held.size(); ++i) {
          size_t end = std::min(tokens.size(), static_cast<size_t>(2 * (i + 1)));
          content[held.tables[0][i]] =
              Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
        }
        kv.publish(held, tokens);
        for (int32_t i = 0; i < held.published; ++i) {
          Tokens prefix(tokens.begin(), tokens.begin() + 2 * (i + 1));
          TW_CHECK(content[held.tables[0][i]] == prefix);
          TW_CHECK(kv.group(1).references(held.tables[1][i]) > 0);
        }
        alive.emplace_back(tokens, std::move(held));
      } else {
        size_t pick = random() % alive.size();
        kv.release(alive[pick].second);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      TW_CHECK_EQ(kv.group(0).used(), kv.group(1).used());
      TW_CHECK_EQ(kv.group(0).idle(), kv.group(1).idle());
    }
    for (auto& [tokens, held] : alive) kv.release(held);
    TW_CHECK_EQ(kv.group(0).used(), 0);
    SequenceBlocks all;
    TW_CHECK(grow(kv, all, 24));  // whatever was remembered can be had back
    TW_CHECK_EQ(kv.group(1).free(), 0);
  }
}

// A budget forgets blocks at multiples of 8 positions. Those that the tree does not know yet, and the last
// one that it knows, stay until a later commit finds them behind others.
TW_TEST(forgotten_blocks_that_are_not_remembered_yet_go_later) {
  GroupShape shape;
  shape.blocks = 12, shape.kept = 3, shape.interval = 8;
  KvBlocks kv({shape}, 2, true, PrefixTree::Hash{secret_hash}, {2, 1});
  std::vector<uint8_t> gone = {0, 1, 0, 1, 0, 0};
  kv.on_gone([&](int32_t, int32_t) { return std::span<const uint8_t>(gone); });
  kv.on_copy_state([](int32_t, int32_t) {});
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::span<const int32_t> all(tokens);
  SequenceBlocks held;
  const auto holds = [](const SequenceBlocks& sequence) {
    std::vector<bool> blocks;
    for (int32_t i = 0; i < sequence.size(); ++i) blocks.push_back(sequence.tables[0][i] >= 0);
    return blocks;
  };
  kv.attach(kv.match(tokens), held);
  TW_CHECK(grow(kv, held, 4));
  kv.publish(held, all.first(4));  // as if there had been no memory for the rest
  kv.drop_unseen(held, 8);
  TW_CHECK(holds(held) == (std::vector<bool>{true, true, true, true}));
  TW_CHECK(held.gone_left);

  SequenceBlocks fork = kv.fork(held);
  TW_CHECK(fork.gone_left);
  for (SequenceBlocks* sequence : {&held, &fork}) {
    kv.publish(*sequence, all.first(8));
    kv.drop_unseen(*sequence, 9);
    TW_CHECK(holds(*sequence) == (std::vector<bool>{true, false, true, true}));
    TW_CHECK(sequence->gone_left);
    TW_CHECK(grow(kv, *sequence, 5));
    kv.publish(*sequence, all.first(10));
    kv.drop_unseen(*sequence, 10);
    TW_CHECK(holds(*sequence) == (std::vector<bool>{true, false, true, false, true}));
    TW_CHECK(!sequence->gone_left);
  }
  kv.check(0, held.tables[0].held() + fork.tables[0].held());

  gone[0] = 1;  // of a decision that is not made before position 16
  kv.drop_unseen(held, 11);
  TW_CHECK(holds(held)[0]);
  kv.release(held);
  kv.release(fork);
  kv.check(0, 0);
  kv.check_states(0);
}

TW_TEST_MAIN()
