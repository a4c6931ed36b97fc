// Sampler and logit rows against brute force, Philox against its published vectors, draws against
// probabilities.
#include "runtime/core/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/core/base/error.h"
#include "runtime/core/base/philox.h"
#include "runtime/core/rows/logit_row.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Sampling sampling(double temperature, int32_t top_k = 0, double top_p = 1) {
  Sampling s;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  return s;
}

// Rows with many ties, some -inf, of lengths around the vector width and the block of top_ids.
std::vector<float> random_row(std::mt19937& random, size_t n, int levels) {
  std::vector<float> row(n);
  for (float& x : row) x = static_cast<float>(random() % levels) / static_cast<float>(levels) * 12.f - 6.f;
  for (size_t i = 0; i < n / 8; ++i) row[random() % n] = -kInf;
  row[random() % n] = 1.5f;  // never -inf throughout
  return row;
}

// transformers' three processors, step by step as written there, in double but for the comparison.
std::vector<int32_t> brute_token_set(const std::vector<float>& logits, double temperature, int32_t k,
                                     double p) {
  size_t n = logits.size();
  std::vector<float> scores(n);
  for (size_t i = 0; i < n; ++i) scores[i] = logits[i] / static_cast<float>(temperature);
  std::vector<bool> gone(n, false);
  if (k > 0) {
    std::vector<float> sorted = scores;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    float kth = sorted[std::min<size_t>(k, n) - 1];
    for (size_t i = 0; i < n; ++i) gone[i] = scores[i] < kth;
  }
  if (p < 1) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    auto score = [&](size_t i) { return gone[i] ? -kInf : scores[i]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score(a) < score(b); });
    double max = score(order.back()), total = 0, cumulative = 0;
    for (size_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(score(i)) - max);
    for (size_t j = 0; j + 1 < n; ++j) {
      cumulative += std::exp(static_cast<double>(score(order[j])) - max);
      if (static_cast<float>(cumulative / total) <= static_cast<float>(1 - p)) gone[order[j]] = true;
    }
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i) {
    if (!gone[i]) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

}  // namespace

TW_TEST(philox_gives_the_published_vectors) {
  using Words = std::array<uint32_t, 4>;
  TW_CHECK((philox4x32_10({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  uint32_t f = 0xffffffff;
  TW_CHECK((philox4x32_10({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  TW_CHECK((philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
            Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TW_TEST(uniform_draws_are_uniform_and_differ_by_seed_and_position) {
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    double u = philox_uniform(5, i);
    TW_CHECK(u >= 0 && u < 1);
    sum += u;
  }
  TW_CHECK(std::abs(sum / 10000 - 0.5) < 5 * std::sqrt(1.0 / 12 / 10000));
  TW_CHECK(philox_uniform(5, 1) != philox_uniform(6, 1));
  TW_CHECK(philox_uniform(5, 1) != philox_uniform(5 | uint64_t{1} << 40, 1));
  TW_CHECK(philox_uniform(5, 1) != philox_uniform(5, 1 | uint64_t{1} << 40));
}

TW_TEST(greedy_takes_the_lowest_id_of_the_largest) {
  std::mt19937 random(1);
  Sampler sampler;
  for (size_t n = 1; n <= 150; ++n) {
    std::vector<float> row = random_row(random, n, 5);
    auto expected = std::max_element(row.begin(), row.end()) - row.begin();
    TW_CHECK_EQ(sampler.sample(row, sampling(0), 0, 0).token, static_cast<int32_t>(expected));
  }
}

TW_TEST(rows_without_a_distribution_are_errors) {
  Sampler sampler;
  for (size_t n : {1, 3, 16, 40, 129}) {
    for (size_t at : {size_t{0}, n / 2, n - 1}) {
      std::vector<float> row(n, 1.f);
      row[at] = std::numeric_limits<float>::quiet_NaN();
      TW_CHECK_ERROR(sampler.sample(row, sampling(0), 0, 0), "NumericalError");
      TW_CHECK_ERROR(sampler.sample(row, sampling(1), 0, 0), "NumericalError");
      row[at] = kInf;
      TW_CHECK_ERROR(sampler.sample(row, sampling(0), 0, 0), "NumericalError");
    }
    TW_CHECK_ERROR(sampler.sample(std::vector<float>(n, -kInf), sampling(0), 0, 0), "NumericalError");
    TW_CHECK_ERROR(sampler.sample(std::vector<float>(n, 1e38f), sampling(1e-6), 0, 0), "NumericalError");
  }
}

TW_TEST(exp_is_within_two_units_in_the_last_place) {
  std::vector<float> x;
  for (float v = 0; v > -720; v -= 0.37f) x.push_back(v);
  x.push_back(-kInf);
  std::vector<double> y(x.size());
  exp_below(x, 0, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    double expected = x[i] < -700 ? 0 : std::exp(static_cast<double>(x[i]));
    TW_CHECK(std::abs(y[i] - expected) <= 2 * 0x1p-53 * expected);
  }
  TW_CHECK_EQ(y[0], 1.0);
}

TW_TEST(top_ids_against_a_sort) {
  std::mt19937 random(2);
  std::vector<int32_t> ids;
  for (int round = 0; round < 400; ++round) {
    size_t n = 1 + random() % 700;
    std::vector<float> row = random_row(random, n, 2 + static_cast<int>(random() % 300));
    int32_t k = 1 + static_cast<int32_t>(random() % n);
    if (round % 2) k = std::min(k, 9);
    top_ids(row, k, &ids);
    TW_CHECK(ids == brute_token_set(row, 1, k, 1));
  }
}

TW_TEST(token_sets_against_brute_force) {
  std::mt19937 random(3);
  Sampler sampler;
  for (int round = 0; round < 2000; ++round) {
    size_t n = 1 + random() % 900;
    std::vector<float> row = random_row(random, n, round % 3 ? 1 << 20 : 7);
    double temperature = 0.1 + static_cast<double>(random() % 30) / 10;
    int32_t k = random() % 2 ? 0 : 1 + static_cast<int32_t>(random() % (n + 5));
    double p = random() % 4 == 0 ? 1 : static_cast<double>(1 + random() % 999) / 1000;
    std::vector<int32_t> expected = brute_token_set(row, temperature, k, p);
    std::erase_if(expected, [&](int32_t id) { return row[id] == -kInf; });
    TW_CHECK(sampler.token_set(row, sampling(temperature, k, p)) == expected);
  }
}

TW_TEST(long_rows_against_brute_force) {
  std::mt19937 random(4);
  Sampler sampler;
  for (size_t n : {4096, 6000, 20011}) {
    for (int levels : {7, 400, 1 << 20}) {
      std::vector<float> row = random_row(random, n, levels);
      row[n / 2] = -0.f, row[n / 3] = 0.f;  // equal scores
      auto largest = std::max_element(row.begin(), row.end()) - row.begin();
      TW_CHECK_EQ(sampler.sample(row, sampling(0), 0, 0).token, static_cast<int32_t>(largest));
      for (double p : {0.5, 0.99, 0.999999}) {
        std::vector<int32_t> order = brute_token_set(row, 4, 0, p);
        std::erase_if(order, [&](int32_t id) { return row[id] == -kInf; });
        TW_CHECK(sampler.token_set(row, sampling(4, 0, p)) == order);
        // The likeliest first, of equal ones the higher id: the order in which a draw counts them.
        std::sort(order.begin(), order.end(),
                  [&](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a > b; });
        double total = 0;
        for (int32_t id : order) total += std::exp((row[id] - row[largest]) / 4.0);
        for (uint64_t position = 0; position < 20; ++position) {
          double left = philox_uniform(9, position) * total;
          size_t at = 0;
          while (at + 1 < order.size() && left >= std::exp((row[order[at]] - row[largest]) / 4.0))
            left -= std::exp((row[order[at++]] - row[largest]) / 4.0);
          TW_CHECK_EQ(sampler.sample(row, sampling(4, 0, p), 9, static_cast<int64_t>(position)).token,
                      order[at]);
        }
      }
    }
  }
}

TW_TEST(exponentials_are_summed_in_order) {
  std::mt19937 random(5);
  for (size_t n = 0; n <= 70; ++n) {
    std::vector<float> x(n);
    for (float& v : x) v = -static_cast<float>(random() % 100000) / 9000.f;
    std::vector<double> y(n);
    double total = exp_below(x, 0, y.data());
    TW_CHECK_EQ(total, std::accumulate(y.begin(), y.end(), 0.0));
  }
}

TW_TEST(token_sets_at_the_edges) {
  Sampler sampler;
  std::vector<float> ten(10, 2.f);
  using Ids = std::vector<int32_t>;
  // Ten equal tokens of 0.1 each: 0.1 <= 1 - 0.9 in fp32, so one goes, and it is the lowest id.
  TW_CHECK((sampler.token_set(ten, sampling(1, 0, 0.9)) == Ids{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  TW_CHECK((sampler.token_set(ten, sampling(1, 0, 1e-9)) == Ids{9}));  // at least one stays
  TW_CHECK_EQ(sampler.token_set(ten, sampling(1, 3)).size(), 10u);     // all tie with the third
  TW_CHECK_EQ(sampler.token_set(ten, sampling(1, 11)).size(), 10u);
  TW_CHECK_EQ(sampler.token_set(ten, sampling(1, -1)).size(), 10u);
  TW_CHECK((sampler.token_set(ten, sampling(0)) == Ids{0}));
  std::vector<float> steep = {0, 100, -kInf, 50};
  TW_CHECK((sampler.token_set(steep, sampling(1, 0, 0.999)) == Ids{1}));
}

TW_TEST(min_p_keeps_the_likeliest_and_its_peers) {
  Sampler sampler;
  std::vector<float> row = {0.f, std::log(0.5f), std::log(0.25f), 0.f, -kInf};
  using Ids = std::vector<int32_t>;
  Sampling s = sampling(1);
  for (auto [min_p, expected] : {std::pair<double, Ids>{1, {0, 3}}, {0.4, {0, 1, 3}}, {0.2, {0, 1, 2, 3}}}) {
    s.min_p = min_p;
    TW_CHECK(sampler.token_set(row, s) == expected);
  }
}

TW_TEST(penalties_and_bans_see_prompt_and_output_as_documented) {
  Sampler sampler;
  std::vector<float> row = {4.f, 3.f, 2.f, 1.f};
  std::vector<int32_t> tokens = {0, 1, 1};  // a prompt of one, an output of two
  auto greedy = [&](auto change) {
    Sampling s = sampling(0);
    change(s);
    return sampler.sample(row, s, 0, 3, {tokens, 1}).token;
  };
  TW_CHECK_EQ(greedy([](Sampling& s) { s.repetition_penalty = 10; }), 2);
  TW_CHECK_EQ(greedy([](Sampling& s) { s.presence_penalty = 10; }), 0);  // the prompt does not count
  TW_CHECK_EQ(greedy([](Sampling& s) { s.frequency_penalty = -0.6; }), 1);
  TW_CHECK_EQ(greedy([](Sampling& s) { s.presence_penalty = -0.6; }), 0);  // once, however often
  TW_CHECK_EQ(greedy([](Sampling& s) { s.logit_bias = {{3, 4.0}}; }), 3);
  TW_CHECK_EQ(greedy([](Sampling& s) { s.bad_words = {{0, 1, 1, 0}, {2, 1}}; }), 1);
  TW_CHECK_EQ(greedy([](Sampling& s) { s.min_tokens = 3, s.stop_token_ids = {0}; }), 1);
  TW_CHECK_EQ(greedy([](Sampling& s) { s.min_tokens = 2, s.stop_token_ids = {0}; }), 0);
  TW_CHECK_ERROR(greedy([](Sampling& s) { s.bad_words = {{0}, {1}, {2}, {3}}; }), "InvalidRequestError");
}

TW_TEST(draws_follow_the_probabilities) {
  Sampler sampler;
  std::vector<float> row = {0.f, 1.f, -kInf, 2.f, 1.f};
  for (const Sampling& s : {sampling(1), sampling(0.7, 2), sampling(1.3, 0, 0.8), sampling(2, 3, 0.9)}) {
    std::vector<int32_t> set = sampler.token_set(row, s);
    double total = 0;
    for (int32_t id : set) total += std::exp(row[id] / s.temperature);
    std::vector<int> counts(row.size());
    int draws = 20000;
    for (int i = 0; i < draws; ++i) ++counts[sampler.sample(row, s, 77, i).token];
    for (int32_t id = 0; id < 5; ++id) {
      bool in = std::find(set.begin(), set.end(), id) != set.end();
      double p = in ? std::exp(row[id] / s.temperature) / total : 0;
      TW_CHECK(std::abs(counts[id] - p * draws) <= 5 * std::sqrt(p * (1 - p) * draws));
    }
  }
}

TW_TEST(a_draw_depends_on_seed_and_position_only) {
  std::mt19937 random(4);
  Sampler used;
  for (int round = 0; round < 50; ++round) {
    std::vector<float> row = random_row(random, 200, 1000);
    Sampling s = sampling(1.5, round % 2 ? 20 : 0, round % 3 ? 0.9 : 1);
    Sampler fresh;
    TW_CHECK_EQ(used.sample(row, s, 9, round).token, fresh.sample(row, s, 9, round).token);
  }
}

TW_TEST(logprobs_against_brute_force) {
  std::mt19937 random(5);
  Sampler sampler;
  for (int round = 0; round < 300; ++round) {
    size_t n = 1 + random() % 200;
    std::vector<float> row = random_row(random, n, round % 2 ? 9 : 1 << 20);
    Sampling s = sampling(round % 3 ? 1 : 0, 0, 0.95);
    s.logprobs = static_cast<int32_t>(random() % (n + 1));
    Sample sample = sampler.sample(row, s, 1, round);
    double total = 0, max = *std::max_element(row.begin(), row.end());
    for (float x : row) total += std::exp(x - max);
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    std::vector<int32_t> expected = {sample.token};
    for (int32_t i = 0; i < s.logprobs; ++i) {
      if (order[i] != sample.token) expected.push_back(order[i]);
    }
    TW_CHECK_EQ(sample.logprobs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const TokenLogprob& entry = sample.logprobs[i];
      TW_CHECK_EQ(entry.token, expected[i]);
      double logprob = row[entry.token] - max - std::log(total);
      // A sum of n terms in double, each within two roundings.
      if (std::isfinite(logprob))
        TW_CHECK(std::abs(entry.logprob - logprob) <= 1e-15 * (n + 30));
      else
        TW_CHECK_EQ(entry.logprob, logprob);
      auto greater = std::count_if(row.begin(), row.end(), [&](float x) { return x > row[entry.token]; });
      TW_CHECK_EQ(entry.rank, 1 + static_cast<int32_t>(greater));
    }
  }
}

TW_TEST_MAIN()
