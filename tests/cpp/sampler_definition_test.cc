// The sampler takes most tokens from estimates with a bound: each must be the definition's, bit for bit the
// same answer, on rows of every kind. And every loop of plugins/logits gives the reference's bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "plugins/common/dispatch.h"
#include "plugins/logits/kernels.h"
#include "plugins/logits/weight.h"
#include "runtime/core/rows/row_estimate.h"
#include "runtime/core/rows/row_order.h"
#include "runtime/core/sampling/sampler.h"
#include "tests/cpp/check.h"
#include "tests/cpp/sampler_oracle.h"

using namespace tensorwright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

enum Shape { kFlat, kNormal, kPeaked, kSteep, kTies, kEqual, kMasked, kHuge, kTiny, kRising, kShapes };

std::vector<float> row_of(Shape shape, size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float sigma = shape == kFlat ? 0.5f : shape == kPeaked ? 3.5f : shape == kSteep ? 20.f : 1.5f;
  std::vector<float> row(n);
  for (size_t i = 0; i < n; ++i) {
    float& x = row[i];
    x = normal(random) * sigma;
    if (shape == kTies) x = std::round(x * 2);
    if (shape == kEqual) x = -3;
    if (shape == kMasked && random() % 3) x = -kInf;
    if (shape == kHuge) x *= 3e37f;
    if (shape == kTiny) x *= 1e-38f;
    if (shape == kRising) x = static_cast<float>(i) * 1e-4f - 7;
  }
  row[random() % n] = shape == kMasked ? 2.f : row[n / 2];
  return row;
}

void check_row(const std::vector<float>& row, const Sampling& sampling, int draws) {
  Sampler sampler;
  const auto tokens = tw_test::oracle_tokens(row, sampling);
  for (int i = 0; i < draws; ++i) {
    const double coin = philox_uniform(3, static_cast<uint64_t>(i), Draws::kXtcCoin);
    TW_CHECK_EQ(sampler.sample(row, sampling, 3, i).token,
                tw_test::oracle_draw(tw_test::oracle_narrowed(tokens, sampling, coin), 3, i));
  }
}

Sampling sampling(double temperature, int32_t top_k, double top_p, double min_p) {
  Sampling s;
  s.temperature = temperature, s.top_k = top_k, s.top_p = top_p, s.min_p = min_p;
  return s;
}

bool finite(const std::vector<float>& row, double temperature) {
  return std::isfinite(*std::max_element(row.begin(), row.end()) / static_cast<float>(temperature));
}

// The loops of one instruction set, asked everything about one row.
std::vector<char> answers(const tw_logits_loops& loops, const std::vector<float>& row) {
  std::vector<char> all;
  const auto add = [&](const void* data, size_t bytes) {
    all.insert(all.end(), static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
  };
  const auto n = static_cast<int64_t>(row.size());
  std::vector<float> maxima(row.size()), values(row.size() + TW_LANES), out(row.size());
  std::vector<tw_row_block> blocks((row.size() + TW_ROW_BLOCK - 1) / TW_ROW_BLOCK);
  std::vector<int32_t> ids(values.size());
  std::vector<double> weights(row.size());
  for (int64_t block : {64, 128, 1024}) {
    all.push_back(static_cast<char>(loops.maxima(row.data(), n, block, maxima.data())));
    for (int64_t i = 0; i * block < n; ++i) maxima[static_cast<size_t>(i)] += 0.f;  // -0 is 0
    add(maxima.data(), static_cast<size_t>((n + block - 1) / block) * sizeof(float));
  }
  for (float divisor : {1.f, 3.7f, 0.06f}) {
    all.push_back(static_cast<char>(loops.weigh(row.data(), n, divisor, blocks.data())));
    for (tw_row_block& block : blocks) block.max += 0.f, block.power += 0.f;
    add(blocks.data(), blocks.size() * sizeof blocks[0]);
  }
  const float max = *std::max_element(row.begin(), row.end());
  const float bounds[TW_ROW_BOUNDS] = {max, 2, 1, 0.5f, 0, -1, -4, -kInf};
  for (const auto& [divisor, count] : {std::pair(0.7f, int{TW_ROW_BOUNDS}), std::pair(1.f, 1)}) {
    double sums[TW_ROW_BOUNDS] = {1};
    loops.weights_above(row.data(), std::min<int64_t>(n, TW_ROW_BLOCK), divisor, max * 2.0, count, bounds,
                        sums);
    add(sums, sizeof sums);
  }
  const int64_t found = loops.collect(row.data(), n, -1, 2, 100, values.data(), ids.data());
  add(&found, sizeof found);
  add(values.data(), static_cast<size_t>(found) * sizeof values[0]);
  add(ids.data(), static_cast<size_t>(found) * sizeof ids[0]);
  double sum = loops.exp_all(row.data(), n, max, weights.data());
  add(&sum, sizeof sum), add(weights.data(), weights.size() * sizeof weights[0]);
  sum = loops.sum_exp(row.data(), n, max), add(&sum, sizeof sum);
  const int32_t greater = loops.count_greater(row.data(), n, 0.5f);
  add(&greater, sizeof greater);
  loops.divide(row.data(), n, 0.7f, out.data()), add(out.data(), out.size() * sizeof out[0]);
  const std::vector<uint32_t> words(row.size() / 32 + 1, 0x5a5a1234u);
  loops.mask(row.data(), n, words.data(), out.data()), add(out.data(), out.size() * sizeof out[0]);
  return all;
}

}  // namespace

TW_TEST(every_draw_is_the_definitions) {
  unsigned seed = 0;
  for (size_t n : {1, 2, 15, 64, 65, 1023, 1024, 1025, 5000, 20011}) {
    for (int shape = 0; shape < kShapes; ++shape) {
      const std::vector<float> row = row_of(static_cast<Shape>(shape), n, ++seed);
      for (const Sampling& s :
           {sampling(1, 0, 1, 0), sampling(0.7, 0, 1, 0), sampling(1.9, 0, 0.9, 0), sampling(1, 0, 0.5, 0),
            sampling(0.6, 0, 0.99999, 0), sampling(1, 40, 1, 0), sampling(1.3, 700, 0.95, 0),
            sampling(0.8, 0, 1, 0.02), sampling(1.1, 0, 0.97, 0.1), sampling(1.5, 30, 0.8, 0.05)}) {
        if (finite(row, s.temperature)) check_row(row, s, n < 5000 ? 12 : 4);
      }
    }
  }
}

TW_TEST(top_p_of_many_tokens_is_the_definitions) {
  for (size_t n : {30000, 70001}) {
    for (Shape shape : {kFlat, kNormal, kTies, kEqual, kMasked, kRising}) {
      const std::vector<float> row = row_of(shape, n, static_cast<unsigned>(n) + shape);
      for (const Sampling& s : {sampling(1, 0, 0.9, 0), sampling(0.7, 0, 0.6, 0), sampling(1, 0, 1, 0)})
        check_row(row, s, 12);
    }
  }
}

// Numbers as near to where one token ends and the next begins as doubles are: there the estimates have to say
// that they leave it open, or be right.
TW_TEST(between_two_tokens_estimates_say_so) {
  RowEstimate estimate;
  RowOrder order;
  std::mt19937 random(8);
  int open = 0;
  for (Shape shape : {kFlat, kNormal, kPeaked, kTies, kMasked}) {
    const std::vector<float> row = row_of(shape, 9000, 70 + shape);
    for (double top_p : {1.0, 0.8}) {
      const auto tokens = tw_test::oracle_tokens(row, sampling(1, 0, top_p, 0));
      double total = 0;
      for (const auto& token : tokens) total += token.weight;
      std::vector<double> ends = {0};
      for (const auto& token : tokens) ends.push_back(ends.back() + token.weight);
      for (int i = 0; i < 300; ++i) {
        const double off[] = {0, 0x1p-53, -0x1p-53, 1e-12, -1e-12, 1e-8, -1e-8, 1e-6, -1e-6};
        const double uniform =
            std::clamp(ends[random() % ends.size()] / total + off[random() % 9], 0.0, 1 - 0x1p-53);
        TW_CHECK(estimate.read(row, 1));
        const auto got = top_p < 1 ? order.draw(&estimate, top_p, uniform) : estimate.draw(uniform);
        open += !got;
        if (got) TW_CHECK_EQ(*got, tw_test::oracle_at(tokens, uniform));
      }
    }
  }
  TW_CHECK(open > 100);
}

struct CountingOrder : RowOrder {
  using RowOrder::max_sorted_;
};

// Rows of which top_p keeps a few hundred to tens of thousands of tokens: hardly any is left to the
// definition.
TW_TEST(estimates_answer_whatever_top_p_keeps) {
  RowEstimate estimate;
  CountingOrder order;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> row(151000);
  for (const auto& [sigma, top_p] :
       {std::pair(0.3f, 0.5), {1.f, 0.9}, {2.f, 0.9}, {2.5f, 0.8}, {2.9f, 0.95}, {4.f, 0.99}}) {
    for (float& x : row) x = normal(random) * sigma;
    TW_CHECK(estimate.read(row, 1));
    int open = 0;
    for (int i = 0; i < 8; ++i) open += !order.draw(&estimate, top_p, (i + 0.4) / 8);
    TW_CHECK(open <= 1);
    TW_CHECK(order.max_sorted_ <= 128);  // the sums find the place
  }
}

struct CountingCandidates : Candidates {
  using Candidates::typical_sorted_;
};

TW_TEST(typical_p_sorts_few_tokens_of_a_whole_vocabulary_and_keeps_the_definitions) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> row(60000);
  for (const float sigma : {0.3f, 1.f, 3.5f, 12.f}) {
    for (float& x : row) x = normal(random) * sigma;
    CountingCandidates counting;
    for (const double mass : {1e-3, 0.5, 0.95, 0.999}) {
      Sampling s = sampling(1, 0, 1, 0);
      s.typical_p = mass;
      check_row(row, s, 2);
      counting.scores = row;
      counting.ids.resize(row.size());
      std::iota(counting.ids.begin(), counting.ids.end(), 0);
      counting.weigh(*std::ranges::max_element(row));
      counting.keep_typical(mass);
      std::vector<int32_t> expected;
      for (const auto& token : tw_test::oracle_narrowed(tw_test::oracle_tokens(row, s), s, 1))
        expected.push_back(token.id);
      TW_CHECK(counting.ids == expected);
    }
    TW_CHECK_EQ(counting.typical_sorted_, 0);
  }
}

TW_TEST(random_parameters) {
  std::mt19937 random(9);
  for (int round = 0; round < 1500; ++round) {
    const auto pick = [&](auto... values) {
      const double all[] = {static_cast<double>(values)...};
      return all[random() % (sizeof all / sizeof all[0])];
    };
    const size_t n = 1 + random() % 3000;
    const std::vector<float> row = row_of(static_cast<Shape>(random() % kShapes), n, random());
    Sampling s = sampling(pick(1, 1, 0.3, 0.71, 2, 1e-3), static_cast<int32_t>(pick(0, 0, 1, 5, 64, 900)),
                          pick(1, 0.95, 0.5, 0.1, 1e-6, 0.999999), pick(0, 0, 0.01, 0.3, 1));
    s.typical_p = pick(1, 1, 0.95, 0.4, 1e-6);
    s.xtc_probability = pick(0, 0.5, 1);
    s.xtc_threshold = pick(0.1, 0.01, 0.4, 0, 1);
    if (finite(row, s.temperature)) check_row(row, s, 3);
  }
}

TW_TEST(logprobs_have_the_definitions_bits) {
  for (int shape = 0; shape < kShapes; ++shape) {
    for (size_t n : {1, 7, 8, 1000, 5003}) {
      const std::vector<float> row = row_of(static_cast<Shape>(shape), n, 50 + shape);
      const double log_total = tw_test::oracle_log_total(row);
      Sampling s = sampling(shape % 2 ? 0 : 1, 0, 1, 0);
      s.logprobs = static_cast<int32_t>(std::min<size_t>(n, 5));
      if (s.temperature > 0 && !finite(row, 1)) continue;
      for (const TokenLogprob& entry : Sampler().sample(row, s, 1, 2).logprobs) {
        const float logit = row[static_cast<size_t>(entry.token)];
        TW_CHECK_EQ(entry.logprob, static_cast<double>(logit) - log_total);
        TW_CHECK_EQ(entry.rank,
                    1 + std::count_if(row.begin(), row.end(), [&](float x) { return x > logit; }));
      }
    }
  }
}

TW_TEST(loops_have_the_references_bits) {
  for (size_t n : {1, 2, 8, 15, 16, 17, 63, 64, 65, 127, 1000, 1024, 1025, 2048, 3333}) {
    for (Shape shape : {kFlat, kNormal, kPeaked, kSteep, kTies, kMasked}) {
      std::vector<float> row = row_of(shape, n, static_cast<unsigned>(n) + shape);
      row.shrink_to_fit();
      const std::vector<char> expected = answers(*logits_kernels().back().fn(), row);
      for (const auto& entry : logits_kernels()) {
        if (!refusal(entry.isa, entry.extra, Isa::avx512).empty()) continue;
        if (answers(*entry.fn(), row) != expected) tw_test::fail(entry.name, 0, "differs from the reference");
      }
    }
  }
}

TW_TEST(a_nan_is_seen_wherever_it_is) {
  for (const auto& entry : logits_kernels()) {
    if (!refusal(entry.isa, entry.extra, Isa::avx512).empty()) continue;
    for (size_t n : {1, 16, 70, 1024, 1100}) {
      for (size_t at = 0; at < n; at += n > 100 ? 37 : 1) {
        std::vector<float> row(n, 1.f);
        std::vector<float> maxima(n);
        std::vector<tw_row_block> blocks(2);
        const auto count = static_cast<int64_t>(n);
        TW_CHECK_EQ(entry.fn()->maxima(row.data(), count, 64, maxima.data()), 0);
        row[at] = std::nanf("");
        TW_CHECK(entry.fn()->maxima(row.data(), count, 64, maxima.data()) != 0);
        TW_CHECK(entry.fn()->weigh(row.data(), count, 1, blocks.data()) != 0);
      }
    }
  }
}

// What runtime/core/rows/row_estimate.cc builds its bound on.
TW_TEST(estimates_are_as_near_as_they_say) {
  double worst = 0, worst_wide = 0, worst_rough = 0;
  for (int64_t i = -(1 << 21); i <= 0; ++i) {
    const float y = static_cast<float>(i) * 0x1p-20f + static_cast<float>(i % 7) * 1e-7f;
    for (float power : {0.f, 37.f, -90000.f}) {
      const float score = y + power * TW_LN2;
      const double weight = std::exp2(static_cast<double>(score) * 0x1.71547652b82fep+0 - power);
      worst = std::max(worst, std::abs(tw_weight(score, power) / weight - 1));
      const float x = score * 0.7f, scale = TW_LOG2E_HIGH / 0.7f;
      worst_rough = std::max(worst_rough, std::abs(tw_rough_weight(x, scale, power) / weight - 1));
    }
    worst_wide = std::max(worst_wide, std::abs(tw_wide_weight(y) / std::exp2(static_cast<double>(y)) - 1));
  }
  TW_CHECK(worst <= 0x1p-23);
  TW_CHECK(worst_rough <= 0x1p-4);
  TW_CHECK(worst_wide <= 0x1p-34);
}

TW_TEST(the_total_is_within_its_bound) {
  RowEstimate estimate;
  for (size_t n : {100, 5000, 151000}) {
    for (Shape shape : {kFlat, kNormal, kPeaked, kSteep, kTies, kEqual, kMasked, kRising}) {
      const std::vector<float> row = row_of(shape, n, static_cast<unsigned>(n) + shape);
      for (float temperature : {1.f, 0.3f, 1.7f}) {
        TW_CHECK(estimate.read(row, temperature));
        double total = 0;
        for (const auto& token : tw_test::oracle_tokens(row, sampling(temperature, 0, 1, 0)))
          total += token.weight;
        TW_CHECK(estimate.total().low <= total && total <= estimate.total().high);
        TW_CHECK(estimate.total().high - estimate.total().low < 1e-4 * total);
      }
    }
  }
}

TW_TEST_MAIN()
