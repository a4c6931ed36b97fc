// The mailbox of token masks: what is open, what is kept, and that no thread waits in vain.
#include "runtime/core/scheduler/token_masks.h"

#include <atomic>
#include <random>
#include <thread>

#include "runtime/core/base/error.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

using std::chrono::steady_clock;

steady_clock::time_point in_ms(int ms) { return steady_clock::now() + std::chrono::milliseconds(ms); }

uint32_t word_of(const SharedMask& mask) { return mask ? mask->at(0) : 0; }

}  // namespace

TW_TEST(words_are_rounded_up) {
  TW_CHECK_EQ(mask_words(1), 1u);
  TW_CHECK_EQ(mask_words(32), 1u);
  TW_CHECK_EQ(mask_words(33), 2u);
  TW_CHECK_EQ(mask_words(151936), 4748u);
}

TW_TEST(only_open_completions_get_masks) {
  TokenMasks masks;
  TW_CHECK(!masks.put(1, 0, 0, {5}));
  masks.open(1, 2, {7});
  TW_CHECK(masks.put(1, 1, 1, {5}));
  TW_CHECK(!masks.put(1, 2, 1, {5}));
  TW_CHECK(!masks.put(2, 0, 0, {5}));
  TW_CHECK_EQ(word_of(masks.take(1, 0, 0)), 7u);
  TW_CHECK_EQ(word_of(masks.take(1, 1, 0)), 7u);
  TW_CHECK_EQ(word_of(masks.take(1, 1, 1)), 5u);
  TW_CHECK(masks.take(1, 0, 1) == nullptr);
  TW_CHECK(masks.take(2, 0, 0) == nullptr);
  masks.close(1, 0);
  masks.close(9, 9);
  TW_CHECK(!masks.put(1, 0, 1, {5}));
  TW_CHECK(masks.put(1, 1, 2, {5}));
  masks.close_all();
  TW_CHECK(!masks.put(1, 1, 2, {5}));
  TW_CHECK(masks.take(1, 1, 2) == nullptr);
}

TW_TEST(an_id_that_is_used_again_starts_anew) {
  TokenMasks masks;
  masks.open(1, 1, {7});
  TW_CHECK_EQ(word_of(masks.take(1, 0, 0)), 7u);
  masks.put(1, 0, 1, {8});
  masks.close(1, 0);
  masks.open(1, 1, {9});
  TW_CHECK(masks.take(1, 0, 1) == nullptr);
  masks.open(1, 1, {9});
  TW_CHECK_EQ(word_of(masks.take(1, 0, 0)), 9u);
}

TW_TEST(of_several_masks_for_a_token_the_last_counts) {
  TokenMasks masks;
  masks.open(1, 1, {7});
  masks.put(1, 0, 0, {8});
  masks.put(1, 0, 2, {10});
  masks.put(1, 0, 1, {11});
  masks.put(1, 0, 1, {12});
  TW_CHECK_EQ(word_of(masks.take(1, 0, 0)), 8u);
  TW_CHECK_EQ(word_of(masks.take(1, 0, 1)), 12u);
  TW_CHECK_EQ(word_of(masks.take(1, 0, 2)), 10u);
  TW_CHECK(masks.take(1, 0, 3) == nullptr);
}

TW_TEST(a_mask_that_comes_too_late_is_refused) {
  TokenMasks masks;
  masks.open(1, 1, {7});
  TW_CHECK_ERROR(masks.put(1, 0, -1, {5}), "InvalidRequestError");
  masks.take(1, 0, 0);
  TW_CHECK_ERROR(masks.put(1, 0, 0, {5}), "InvalidRequestError");
  TW_CHECK(masks.put(1, 0, 1, {5}));
}

TW_TEST(a_wait_ends_for_news_from_before_and_at_its_deadline) {
  TokenMasks masks;
  masks.open(1, 1, {7});
  masks.put(1, 0, 1, {5});
  TW_CHECK(masks.wait(steady_clock::time_point::max()));  // told already
  masks.wake();
  masks.wake();
  TW_CHECK(masks.wait(steady_clock::time_point::max()));
  TW_CHECK(!masks.wait(in_ms(1)));  // once only
  TW_CHECK(!masks.wait(in_ms(-1000)));
  masks.wake();
  TW_CHECK(masks.wait(in_ms(-1000)));
}

// Each mask comes at a moment of its own, some completions close, wakes come between: the taker gets every
// one of the others, in order, and never sleeps on news.
TW_TEST(masks_from_many_threads_all_arrive) {
  constexpr int kCompletions = 4, kTokens = 200;
  TokenMasks masks;
  masks.open(1, kCompletions, {0});
  std::atomic<int> taken[kCompletions] = {};
  std::vector<std::thread> threads;
  for (int c = 0; c < kCompletions; ++c) {
    threads.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int token = 1; token < kTokens; ++token) {
        while (taken[c] < token) std::this_thread::yield();  // as an event tells the consumer
        if (random() % 8 == 0) masks.wake();
        if (!masks.put(1, c, token, {static_cast<uint32_t>(c * kTokens + token)})) return;
      }
    });
  }
  auto deadline = in_ms(60000);
  int left = kCompletions;
  while (left > 0 && steady_clock::now() < deadline) {
    bool any = false;
    for (int c = 0; c < kCompletions; ++c) {
      if (taken[c] == kTokens) continue;
      SharedMask mask = masks.take(1, c, taken[c]);
      if (!mask) continue;
      any = true;
      if (taken[c] > 0) TW_CHECK_EQ(word_of(mask), static_cast<uint32_t>(c * kTokens + taken[c]));
      if (++taken[c] == kTokens) --left;
      if (c == 3 && taken[c] == kTokens / 2) {
        masks.close(1, c);
        taken[c] = kTokens;
        --left;
      }
    }
    if (!any && left > 0) masks.wait(deadline);
  }
  TW_CHECK_EQ(left, 0);
  for (std::thread& thread : threads) thread.join();
}

TW_TEST_MAIN()
