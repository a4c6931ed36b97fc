// What proposes tokens: places of a text that repeat, and how many tokens pay.
#include <random>

#include "runtime/core/speculation/length_policy.h"
#include "runtime/core/speculation/ngram_proposer.h"
#include "runtime/core/speculation/profit.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

// The definition of MatchIndex::find without its bounds: looks at every place, the latest first.
Match slow_find(const std::vector<int32_t>& index, const std::vector<int32_t>& text, int32_t least) {
  Match best;
  for (auto place = static_cast<int32_t>(index.size()) - 2; place >= 1; --place) {
    int32_t equal = 0;
    while (equal <= place && equal < static_cast<int32_t>(text.size()) && equal < MatchIndex::kLongest &&
           index[static_cast<size_t>(place - equal)] == text[text.size() - 1 - static_cast<size_t>(equal)])
      ++equal;
    if (equal >= least && equal > best.length) best = {place + 1, equal};
  }
  return best;
}

Sequence sequence_of(std::vector<int32_t> tokens, int64_t id = 1) {
  Sequence sequence;
  sequence.id = id;
  sequence.tokens = std::move(tokens);
  return sequence;
}

std::vector<int32_t> proposed(NgramProposer& proposer, const Sequence& sequence, int32_t most = 4) {
  std::vector<std::vector<int32_t>> drafts(1);
  const DraftWish wish{&sequence, most};
  proposer.propose({&wish, 1}, &drafts);
  return drafts[0];
}

// A machine on which a step of n tokens takes fixed + n * each seconds.
void teach(LengthPolicy& policy, double fixed, double each) {
  for (int32_t tokens : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64})
    policy.observe_step(tokens, fixed + each * tokens);
}

int32_t chosen(LengthPolicy& policy, Acceptance& acceptance, int32_t sequences = 1) {
  std::vector<Candidate> candidates(static_cast<size_t>(sequences), Candidate{&acceptance, kMaxDraft});
  policy.decide(candidates, sequences, 64);
  return candidates[0].length;
}

}  // namespace

TW_TEST(the_index_finds_what_a_search_of_all_places_finds) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const auto letters = 2 + random() % 6;
    MatchIndex index;
    std::vector<int32_t> text;
    for (int i = 0; i < 60; ++i) {
      text.push_back(static_cast<int32_t>(random() % letters));
      index.add(text.back());
      const int32_t least = 2 + static_cast<int32_t>(random() % 3);
      const Match found = index.find(text, least), expected = slow_find(text, text, least);
      // The index looks at the latest 32 places alone. With few tokens in all it misses none that matters
      // here.
      if (letters >= 4) TW_CHECK_EQ(found.length, expected.length);
      if (letters >= 4) TW_CHECK_EQ(found.next, expected.next);
      if (found.next >= 0) TW_CHECK(found.length <= expected.length && found.next < index.size());
    }
  }
}

TW_TEST(no_match_reaches_over_the_border_of_two_texts) {
  MatchIndex index;
  for (int32_t token : {1, 2, 3}) index.add(token);
  index.cut();
  for (int32_t token : {4, 5, 6}) index.add(token);
  const std::vector<int32_t> over = {2, 3, 4}, inside = {4, 5}, end = {2, 3};
  TW_CHECK_EQ(index.find(over, 2).next, -1);
  TW_CHECK_EQ(index.find(end, 2).next, -1);  // nothing follows in its own text
  TW_CHECK_EQ(index.find(inside, 2).next, 5);
}

TW_TEST(a_search_is_bounded_however_often_a_pair_occurs) {
  MatchIndex index;
  for (int i = 0; i < 200000; ++i) index.add(7);
  const std::vector<int32_t> text(1000, 7);
  TW_CHECK_EQ(index.find(text, 2).length, MatchIndex::kLongest);
}

TW_TEST(ngrams_are_those_of_the_sequence_itself) {
  NgramProposer proposer(2);
  Sequence sequence = sequence_of({1, 2, 3, 4, 5, 1, 2});
  TW_CHECK((proposed(proposer, sequence) == std::vector<int32_t>{3, 4, 5, 1}));
  TW_CHECK((proposed(proposer, sequence, 2) == std::vector<int32_t>{3, 4}));
  for (int32_t token : {3, 9, 2, 3}) sequence.tokens.push_back(token);
  // The latest of equally long ones; behind the end of the text the draft repeats itself.
  TW_CHECK((proposed(proposer, sequence) == std::vector<int32_t>{9, 2, 3, 9}));
  const Sequence other = sequence_of({9, 9, 1, 2}, 2);
  TW_CHECK(proposed(proposer, other).empty());  // nobody sees the text of another
  proposer.forget(sequence);
  Sequence loop = sequence_of({8, 5, 6, 5, 6}, 3);
  TW_CHECK((proposed(proposer, loop, 7) == std::vector<int32_t>{5, 6, 5, 6, 5, 6, 5}));
  const Sequence again = sequence_of({5, 5});  // the same name later
  TW_CHECK(proposed(proposer, again).empty());
}

TW_TEST(likely_tokens_are_proposed_where_a_step_of_more_costs_little) {
  Acceptance good, bad;
  LengthPolicy memory_bound(0), compute_bound(0);
  for (int i = 0; i < 50; ++i) good.observe(true, i % 4 == 0), memory_bound.observe(&bad, false, 0);
  teach(memory_bound, 10e-3, 0.1e-3);
  teach(compute_bound, 0.1e-3, 1e-3);
  TW_CHECK(chosen(memory_bound, good) >= 8);
  TW_CHECK_EQ(chosen(memory_bound, bad), 0);
  TW_CHECK_EQ(chosen(compute_bound, good), 0);  // a token more costs what it brings
  TW_CHECK_EQ(chosen(compute_bound, good, 8), 0);
}

TW_TEST(who_gets_none_is_probed_ever_more_rarely) {
  LengthPolicy policy(0);
  teach(policy, 1e-3, 1e-3);
  Acceptance acceptance;
  for (int i = 0; i < 100; ++i) acceptance.observe(false, true);
  int probes = 0, since_last = 0, longest = 0;
  for (int step = 0; step < 5000; ++step, ++since_last) {
    if (chosen(policy, acceptance) == 0) continue;
    ++probes;
    longest = std::max(longest, since_last);
    since_last = 0;
    policy.observe(&acceptance, false, 0);
  }
  TW_CHECK(probes >= 5 && probes <= 25);
  TW_CHECK(longest >= 500);
}

TW_TEST(a_start_must_save_more_than_it_costs) {
  const auto price = [](int32_t sequences) { return 0.2 * sequences; };
  const auto policy_after = [&](bool right) {
    LengthPolicy policy(0);
    for (int32_t tokens = 1; tokens <= 16; ++tokens) policy.observe_step(tokens, 1 + 0.05 * (tokens - 1));
    Acceptance acceptance;
    for (int i = 0; i < 50; ++i) policy.observe(&acceptance, right, 0);
    return policy;
  };
  LengthPolicy sure = policy_after(true), never = policy_after(false);
  TW_CHECK(sure.worth_starting(40, 100, 1, price));  // more than half of 100 steps is saved
  TW_CHECK(!sure.worth_starting(90, 100, 1, price));
  TW_CHECK(never.worth_starting(0.9, 100, 1, price));  // a hundredth
  TW_CHECK(!never.worth_starting(1.1, 100, 1, price));
  TW_CHECK(never.worth_starting(0, 1, 1, price));  // nothing to catch up with
  int tried = 0;
  for (int i = 0; i < 10000; ++i) tried += never.worth_starting(50, 100, 1, price);
  TW_CHECK(tried >= 2 && tried <= 3);
  TW_CHECK(LengthPolicy(4).worth_starting(1e9, 1, 1, price));  // a fixed length asks for no reason
}

// The first token is always right, the second mostly, the third never: whatever a step costs, two are made.
TW_TEST(lengths_end_where_tokens_are_wrong_at_their_place) {
  LengthPolicy policy(0);
  for (int32_t tokens : {1, 2, 3, 4, 5, 6, 8}) policy.observe_step(tokens, 1.0 + 0.05 * (tokens - 1));
  Acceptance acceptance;
  for (int i = 0; i < 60; ++i) {
    policy.observe(&acceptance, true, 0);
    policy.observe(&acceptance, i % 10 != 0, 1);
    if (i % 10 != 0) policy.observe(&acceptance, false, 2);
  }
  std::vector<Candidate> candidates = {Candidate{&acceptance, kMaxDraft}};
  policy.decide(candidates, 1, 64);
  TW_CHECK_EQ(candidates[0].length, 2);
}

// What sampled answers are told says nothing of greedy ones.
TW_TEST(greedy_and_sampled_sequences_are_counted_apart) {
  LengthPolicy policy(0);
  for (int32_t tokens : {1, 2, 3, 4}) policy.observe_step(tokens, 1.0 + 0.3 * (tokens - 1));
  Acceptance other;
  for (int i = 0; i < 60; ++i) policy.observe(&other, i % 8 == 0, 0, true);
  Acceptance fresh;
  std::vector<Candidate> greedy = {Candidate{&fresh, 4}}, sampled = {Candidate{&fresh, 4, 0, true}};
  policy.decide(greedy, 1, 64);
  policy.decide(sampled, 1, 64);
  TW_CHECK(greedy[0].length > 0);
  TW_CHECK_EQ(sampled[0].length, 0);
}

TW_TEST(a_fixed_length_is_kept_within_the_room) {
  LengthPolicy policy(3);
  Acceptance acceptance;
  std::vector<Candidate> candidates(4, Candidate{&acceptance, kMaxDraft});
  candidates[1].most = 2;
  policy.decide(candidates, 4, 7);
  TW_CHECK_EQ(candidates[0].length, 3);
  TW_CHECK_EQ(candidates[1].length, 2);
  TW_CHECK_EQ(candidates[2].length, 2);
  TW_CHECK_EQ(candidates[3].length, 0);
}

TW_TEST(costs_between_and_beyond_what_was_measured_lie_on_lines) {
  StepCost cost;
  TW_CHECK_EQ(cost.seconds(5), 0.0);
  cost.observe(1, 1.0);
  cost.observe(3, 1.5);
  TW_CHECK_EQ(cost.seconds(1), 1.0);
  TW_CHECK_EQ(cost.seconds(2), 1.25);
  TW_CHECK_EQ(cost.seconds(5), 2.0);
  cost.observe(8, 1.0);  // a larger step cannot be cheaper
  TW_CHECK_EQ(cost.seconds(8), 1.5);
  cost.observe(1, 100.0);  // one slow step counts little
  TW_CHECK(cost.seconds(1) < 1.4);
}

namespace {

Sequence ended(int64_t id, const std::string& salt, std::vector<int32_t> prompt,
               const std::vector<int32_t>& output) {
  Sequence sequence;
  sequence.id = id;
  auto sampling = std::make_shared<Sampling>();
  sampling->cache_salt = salt;
  sequence.sampling = std::move(sampling);
  sequence.tokens = std::move(prompt);
  sequence.prompt_tokens = sequence.size();
  sequence.tokens.insert(sequence.tokens.end(), output.begin(), output.end());
  return sequence;
}

}  // namespace

TW_TEST(outputs_are_found_by_their_salt_up_to_their_ends) {
  OutputStore store(1000);
  store.remember(ended(1, "a", {1, 2, 3}, {4, 5, 6, 7}));
  store.remember(ended(2, "a", {9}, {4, 5, 8}));
  TW_CHECK_EQ(store.find("a", std::vector<int32_t>{3, 4, 5}, 2).length, 0);  // not added yet
  TW_CHECK_EQ(store.digest(3), 3);
  TW_CHECK_EQ(store.digest(100), 8);
  TW_CHECK_EQ(store.digest(100), 0);
  const auto longest = store.find("a", std::vector<int32_t>{3, 4, 5}, 2);
  TW_CHECK_EQ(longest.length, 3);
  TW_CHECK((std::vector<int32_t>(longest.next.begin(), longest.next.end()) == std::vector<int32_t>{6, 7}));
  const auto latest = store.find("a", std::vector<int32_t>{0, 4, 5}, 2);
  TW_CHECK((std::vector<int32_t>(latest.next.begin(), latest.next.end()) == std::vector<int32_t>{8}));
  TW_CHECK_EQ(store.find("a", std::vector<int32_t>{6, 7}, 2).length, 0);  // nothing is behind it
  TW_CHECK_EQ(store.find("a", std::vector<int32_t>{0, 4, 5}, 3).length, 0);
  TW_CHECK_EQ(store.find("b", std::vector<int32_t>{3, 4, 5}, 2).length, 0);
}

TW_TEST(stores_are_bounded_and_forget_the_oldest) {
  std::mt19937 random(1);
  OutputStore store(400);
  for (int64_t id = 0; id < 300; ++id) {
    const std::string salt = std::to_string(random() % 5);
    std::vector<int32_t> output(1 + random() % 60);
    for (int32_t& token : output) token = static_cast<int32_t>(random() % 1000);
    store.remember(ended(id, salt, {1, 2}, output));
    store.digest(static_cast<int32_t>(random() % 100));
    TW_CHECK(store.tokens() <= 400);
  }
  store.digest(10000);
  std::vector<int32_t> last(50);
  for (int32_t& token : last) token = static_cast<int32_t>(random() % 1000);
  store.remember(ended(1000, "x", {}, last));
  store.digest(1000);
  TW_CHECK_EQ(store.find("x", std::span(last).first(40), 2).next.size(), size_t{10});
  store.remember(ended(1001, "x", {}, std::vector<int32_t>(300, 7)));  // more than half: not kept
  TW_CHECK_EQ(store.digest(1000), 0);
}

namespace {

// Runs steps of `decodes` sequences, of which one takes `plain` seconds, and with proposals `with` seconds
// for `made` tokens. Returns in how many of them proposals were made.
int32_t proposing(Profit& profit, int32_t steps, int32_t decodes, double plain, double with, int32_t made) {
  int32_t count = 0;
  for (int32_t i = 0; i < steps; ++i) {
    const bool proposed = profit.allows(decodes);
    profit.observe(decodes, proposed, proposed ? made : decodes, proposed ? with : plain);
    count += proposed;
  }
  return count;
}

}  // namespace

TW_TEST(proposals_that_pay_are_made_in_nearly_every_step) {
  Profit profit;
  TW_CHECK(proposing(profit, 1000, 4, 1.0, 1.5, 8) >= 1000 - 3 - 1000 / 128);
}

TW_TEST(proposals_that_do_not_pay_cost_two_percent_at_most) {
  Profit profit;
  // 1.25 times as long for the same tokens: so many steps cost a quarter of a step each.
  const int32_t first = proposing(profit, 200, 4, 1.0, 1.25, 4);
  TW_CHECK(first > 0 && 0.25 * first <= 0.02 * 200);
  TW_CHECK(0.25 * proposing(profit, 2000, 4, 1.0, 1.25, 4) <= 0.01 * 2000);
  // Other numbers of sequences are judged by themselves.
  TW_CHECK(proposing(profit, 100, 1, 1.0, 1.0, 3) > 90);
}

TW_TEST(proposals_are_made_again_where_they_begin_to_pay) {
  Profit profit;
  proposing(profit, 300, 2, 1.0, 2.0, 2);
  proposing(profit, 1100, 2, 1.0, 1.0, 6);
  TW_CHECK(proposing(profit, 500, 2, 1.0, 1.0, 6) > 480);
}

TW_TEST(steps_that_are_never_counted_stop_no_proposals) {
  Profit profit;
  int32_t count = 0;
  for (int32_t i = 0; i < 100; ++i) count += profit.allows(3);
  TW_CHECK(count >= 97);
  for (int32_t i = 0; i < 100; ++i) profit.observe(3, true, 3, 9.0);  // nothing to compare with
  TW_CHECK(profit.allows(3));
}

TW_TEST(a_slow_step_now_and_then_condemns_nothing) {
  Profit profit;
  int32_t count = 0;
  for (int32_t i = 0; i < 1000; ++i) {
    const bool proposed = profit.allows(1);
    profit.observe(1, proposed, proposed ? 3 : 1, i % 50 == 7 ? 100.0 : 1.0);
    count += proposed;
  }
  TW_CHECK(count > 900);
}

TW_TEST(tokens_that_come_in_threes_and_ones_count_by_their_sum) {
  Profit profit;
  int32_t count = 0;
  for (int32_t i = 0; i < 1000; ++i) {
    const bool proposed = profit.allows(1);
    // 0.8 seconds of a token in sum; the mean of 1.6 and 1.6 / 3 is above the second that one takes without.
    profit.observe(1, proposed, !proposed || i % 2 ? 1 : 3, proposed ? 1.6 : 1.0);
    count += proposed;
  }
  TW_CHECK(count >= 1000 - 3 - 1000 / 128);
}

TW_TEST(a_slower_machine_is_not_taken_for_proposals_that_do_not_pay) {
  Profit profit;
  proposing(profit, 200, 1, 1.0, 1.5, 2);
  TW_CHECK(proposing(profit, 300, 1, 3.0, 4.5, 2) > 200);
}

TW_TEST_MAIN()
