// Token masks in the sampler: a mask is a ban of the other tokens, bit for bit, at every length of the row.
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/rows/logit_row.h"
#include "runtime/core/sampling/sampler.h"
#include "runtime/core/scheduler/token_masks.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::mt19937& random, size_t n) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(n);
  for (float& x : row) x = std::round(normal(random) * 8) / 8;  // with ties
  return row;
}

// One token in `part` is allowed, and one at least; the bits past the row are set.
MaskWords random_mask(std::mt19937& random, size_t n, uint32_t part) {
  MaskWords words(mask_words(static_cast<int32_t>(n)), 0);
  for (size_t i = 0; i < words.size() * 32; ++i) {
    if (i >= n || random() % part == 0) words[i / 32] |= 1u << (i % 32);
  }
  size_t one = random() % n;
  words[one / 32] |= 1u << (one % 32);
  return words;
}

bool allowed(const MaskWords& mask, size_t token) { return mask[token / 32] >> (token % 32) & 1; }

Sampling random_sampling(std::mt19937& random, size_t n) {
  Sampling s;
  s.temperature = random() % 4 ? 0.3 + static_cast<double>(random() % 20) / 10 : 0;
  s.top_k = random() % 2 ? static_cast<int32_t>(1 + random() % n) : 0;
  s.top_p = random() % 2 ? 0.05 + static_cast<double>(random() % 19) / 20 : 1;
  s.min_p = random() % 2 ? static_cast<double>(random() % 10) / 20 : 0;
  s.logprobs = static_cast<int32_t>(random() % 3) - 1;
  if (random() % 2) s.repetition_penalty = 1.5;
  if (random() % 2) s.frequency_penalty = -0.5;
  if (random() % 2) s.presence_penalty = 0.25;
  return s;
}

}  // namespace

TW_TEST(masked_rows_at_every_length) {
  std::mt19937 random(41);
  for (size_t n = 1; n < 200; ++n) {
    for (uint32_t part : {1u, 2u, 40u}) {
      std::vector<float> row = random_row(random, n), out(n + 1, 77);
      MaskWords mask = random_mask(random, n, part);
      mask_row(row, mask, out.data());
      for (size_t i = 0; i < n; ++i) TW_CHECK_EQ(out[i], allowed(mask, i) ? row[i] : kLowest);
      TW_CHECK_EQ(out[n], 77);  // nothing behind the row is written
    }
  }
}

// The reference gives -inf as a bias to each token that is not allowed: the same bits through the long way.
TW_TEST(masked_draws_equal_banned_ones) {
  std::mt19937 random(42);
  Sampler sampler;
  int few = 0, many = 0;
  for (int round = 0; round < 400; ++round) {
    size_t n = round % 4 ? 1 + random() % 300 : 5000 + random() % 5000;
    std::vector<float> row = random_row(random, n);
    MaskWords mask = random_mask(random, n, round % 3 ? 1 + random() % 4 : 30 + random() % 200);
    Sampling s = random_sampling(random, n), banned = s;
    std::vector<int32_t> tokens(20);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % n);
    size_t left = 0;
    for (size_t i = 0; i < n; ++i) {
      if (allowed(mask, i)) {
        ++left;
      } else {
        banned.logit_bias.emplace_back(static_cast<int32_t>(i), kLowest);
      }
    }
    (left * 8 <= n ? few : many)++;
    for (int64_t position = 0; position < 5; ++position) {
      Sample masked = sampler.sample(row, s, 9, position, {tokens, 10}, mask);
      Sample reference = sampler.sample(row, banned, 9, position, {tokens, 10});
      TW_CHECK_EQ(masked.token, reference.token);
      TW_CHECK(allowed(mask, static_cast<size_t>(masked.token)));
      TW_CHECK_EQ(masked.logprobs.size(), reference.logprobs.size());
      for (size_t i = 0; i < masked.logprobs.size(); ++i)
        TW_CHECK_EQ(masked.logprobs[i].logprob, reference.logprobs[i].logprob);
    }
    TW_CHECK(sampler.token_set(row, s, {tokens, 10}, mask) == sampler.token_set(row, banned, {tokens, 10}));
  }
  TW_CHECK(few > 50 && many > 50);  // both ways of looking at a row
}

TW_TEST(minimum_length_and_bad_words_hold_under_a_mask) {
  Sampler sampler;
  std::vector<float> row = {0, 1, 2, 3, 4, 5};
  std::vector<int32_t> tokens = {0, 1};
  Sampling s;
  s.temperature = 0;
  s.eos_token_ids = {5};
  s.bad_words = {{1, 4}};
  s.min_tokens = 2;
  TW_CHECK_EQ(sampler.sample(row, s, 0, 2, {tokens, 1}, MaskWords{0b111010}).token, 3);
  TW_CHECK_EQ(sampler.sample(row, s, 0, 2, {tokens, 0}, MaskWords{0b111010}).token, 5);
  TW_CHECK_ERROR(sampler.sample(row, s, 0, 2, {tokens, 1}, MaskWords{0b110000}), "InvalidRequestError");
  TW_CHECK_ERROR(sampler.sample(row, s, 0, 2, {tokens, 1}, MaskWords{0b1000000}), "InvalidRequestError");
  s.temperature = 1;
  TW_CHECK_ERROR(sampler.sample(row, s, 0, 2, {tokens, 1}, MaskWords{0}), "InvalidRequestError");
  std::vector<float> late(5000, kLowest);  // what is left is far behind
  late[4999] = 1, late[0] = 2;
  MaskWords mask(mask_words(5000), 0);
  mask.back() = 0x80;  // 4999 = 156 * 32 + 7
  TW_CHECK_EQ(sampler.sample(late, s, 0, 2, {tokens, 1}, mask).token, 4999);
}

TW_TEST_MAIN()
