// TokenSet and BannedWords against their definitions.
#include "runtime/core/scheduler/token_sets.h"

#include <random>
#include <set>

#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

using Word = std::vector<int32_t>;

// The definition: words are compared one by one.
std::multiset<int32_t> banned_after(const std::vector<Word>& words, const Word& tokens) {
  std::multiset<int32_t> banned;
  for (const Word& word : words) {
    if (word.empty() || word.size() - 1 > tokens.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, tokens.end() - (std::ssize(word) - 1)))
      banned.insert(word.back());
  }
  return banned;
}

std::multiset<int32_t> found_after(const BannedWords& words, const Word& tokens) {
  std::multiset<int32_t> found;
  words.for_each_last(tokens, [&](int32_t token) { found.insert(token); });
  return found;
}

}  // namespace

TW_TEST(a_set_has_each_token_once_in_order) {
  TokenSet set({5, 1, 9, 5, 0});
  TW_CHECK(set.ids() == (Word{0, 1, 5, 9}));
  for (int32_t id = -1; id < 11; ++id)
    TW_CHECK_EQ(set.contains(id), id == 0 || id == 1 || id == 5 || id == 9);
  TW_CHECK(!TokenSet().contains(0));
}

TW_TEST(words_ban_what_would_complete_them) {
  BannedWords words({{7}, {1, 2, 3}, {2, 3}, {2, 4}, {1, 2, 3}, {}});
  TW_CHECK(found_after(words, {}) == (std::multiset<int32_t>{7}));
  TW_CHECK(found_after(words, {2}) == (std::multiset<int32_t>{3, 4, 7}));
  TW_CHECK(found_after(words, {1, 2}) == (std::multiset<int32_t>{3, 3, 3, 4, 7}));
  TW_CHECK(found_after(words, {2, 1}) == (std::multiset<int32_t>{7}));
  TW_CHECK_EQ(words.words().size(), 6u);
  TW_CHECK(BannedWords().empty() && found_after({}, {1, 2}).empty());
}

TW_TEST(random_words_are_those_of_the_definition) {
  std::mt19937 random(9);
  size_t found = 0;
  for (int round = 0; round < 400; ++round) {
    const uint32_t vocabulary = 1 + random() % 4;
    std::vector<Word> words(random() % 60);
    for (Word& word : words) {
      word.resize(random() % 7);
      for (int32_t& token : word) token = static_cast<int32_t>(random() % vocabulary);
    }
    const BannedWords banned(words);
    TW_CHECK(banned.words() == words);
    for (int trial = 0; trial < 20; ++trial) {
      Word tokens(random() % 9);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary);
      TW_CHECK(found_after(banned, tokens) == banned_after(words, tokens));
      found += found_after(banned, tokens).size();
    }
  }
  TW_CHECK(found > 10000);
}

TW_TEST_MAIN()
