// The draft model: what it proposes is what its executor would say, whatever became of the proposals before.
// The engine with it says what every request says alone.
#include "runtime/core/speculation/draft_model.h"

#include <random>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

DraftModelOptions draft_options(int32_t blocks, int32_t seqs, int32_t tokens, int32_t target_vocab = kVocab,
                                int64_t groups = 1, int32_t window = 0) {
  DraftModelOptions o;
  for (int64_t i = 0; i < groups; ++i) {
    GroupShape shape;
    shape.blocks = blocks;
    shape.window = i + 1 == groups ? window : 0;
    o.shapes.push_back(shape);
  }
  o.max_seqs = seqs;
  o.max_tokens = tokens;
  o.target_vocab = target_vocab;
  return o;
}

std::unique_ptr<DraftModel> draft_model(const DraftModelOptions& o, FakeBehaviour behaviour = {},
                                        int32_t vocab = kVocab, int32_t max_seq_len = kMaxSeqLen) {
  behaviour.groups = static_cast<int64_t>(o.shapes.size());
  behaviour.window = o.shapes.back().window;
  return std::make_unique<DraftModel>(
      std::make_unique<FakeExecutor>(vocab, max_seq_len, kBlockSize, behaviour), o);
}

Sequence sequence_of(const Request& r, const std::vector<int32_t>& answer, uint64_t seed) {
  Sequence sequence;
  sequence.id = r.id;
  sequence.tokens = r.prompt;
  sequence.prompt_tokens = sequence.size();
  sequence.tokens.insert(sequence.tokens.end(), answer.begin(), answer.end());
  sequence.sampling = std::make_shared<const Sampling>(r.sampling);
  sequence.seed = seed;
  return sequence;
}

std::vector<std::vector<int32_t>> proposed(DraftModel& model, const std::vector<const Sequence*>& sequences,
                                           int32_t most) {
  std::vector<DraftWish> wishes;
  for (const Sequence* sequence : sequences) wishes.push_back({sequence, most});
  std::vector<std::vector<int32_t>> drafts(wishes.size());
  model.propose(wishes, &drafts);
  model.check();
  return drafts;
}

// What the same model says of a sequence if it is asked for the first time.
std::vector<int32_t> afresh(const Sequence& sequence, int32_t most, int64_t groups, int32_t window) {
  const auto model = draft_model(draft_options(100, 1, kMaxSeqLen, kVocab, groups, window));
  return proposed(*model, {&sequence}, most)[0];
}

}  // namespace

TW_TEST(what_it_proposes_does_not_depend_on_what_became_of_earlier_proposals) {
  std::mt19937 random(7);
  int64_t tokens = 0, missed = 0;
  for (int round = 0; round < 24; ++round) {
    const int64_t groups = 1 + round % 2;
    const int32_t window = round % 4 < 2 ? 0 : 1 + static_cast<int32_t>(random() % 20);
    const bool few_blocks = round % 3 == 0;  // then some proposals are shorter than those asked for
    DraftModelOptions o = draft_options(few_blocks ? 40 : 200, 6, 6 + static_cast<int32_t>(random() % 60),
                                        kVocab, groups, window);
    o.prefix_cache = round % 5 != 0;
    const auto model = draft_model(o);
    std::vector<Sequence> sequences;
    for (int64_t id = 0; id < 6; ++id)
      sequences.push_back(sequence_of(random_request(random, id), {7}, random() % 9));
    for (int step = 0; step < 25; ++step) {
      std::vector<const Sequence*> asked;
      for (const Sequence& sequence : sequences)
        if (random() % 3 && sequence.size() + kMaxDraft < kMaxSeqLen) asked.push_back(&sequence);
      const auto most = 1 + static_cast<int32_t>(random() % 5);
      const auto drafts = proposed(*model, asked, most);
      for (size_t i = 0; i < asked.size(); ++i) {
        Sequence& sequence = sequences[static_cast<size_t>(asked[i]->id)];
        tokens += static_cast<int64_t>(drafts[i].size());
        missed += drafts[i].empty();
        if (!drafts[i].empty()) {
          std::vector<int32_t> whole = afresh(sequence, most, groups, window);
          TW_CHECK(!few_blocks || drafts[i].size() <= whole.size());
          if (few_blocks) whole.resize(drafts[i].size());
          TW_CHECK(drafts[i] == whole);
        }
        // Some of the proposal is right, then comes another token.
        const size_t right = random() % (drafts[i].size() + 1);
        sequence.tokens.insert(sequence.tokens.end(), drafts[i].begin(),
                               drafts[i].begin() + static_cast<std::ptrdiff_t>(right));
        sequence.tokens.push_back(static_cast<int32_t>(random() % kVocab));
      }
    }
    for (const Sequence& sequence : sequences) model->forget(sequence);
    model->check();
    TW_CHECK_EQ(model->mirrors(), 0);
  }
  TW_CHECK(tokens > 2000 && missed > 20);  // some caches and passes were too small for all
}

TW_TEST(tokens_that_were_right_are_not_computed_again) {
  const auto model = draft_model(draft_options(100, 1, 64));
  Sequence sequence = sequence_of(request(1, std::vector<int32_t>(20, 3), 50), {1}, 0);
  const std::vector<int32_t> draft = proposed(*model, {&sequence}, 4)[0];
  TW_CHECK_EQ(draft.size(), size_t{4});
  TW_CHECK_EQ(model->computed_tokens(), 21 + 3);
  sequence.tokens.insert(sequence.tokens.end(), draft.begin(), draft.end());
  sequence.tokens.push_back(1);
  proposed(*model, {&sequence}, 1);
  TW_CHECK_EQ(model->computed_tokens(), 24 + 2);  // the last of the draft, and the token behind it
  sequence.tokens.push_back(2);
  proposed(*model, {&sequence}, 1);
  TW_CHECK_EQ(model->computed_tokens(), 26 + 1);
}

TW_TEST(completions_of_one_prompt_share_what_the_draft_model_computed) {
  const auto model = draft_model(draft_options(100, 4, 64));
  std::vector<Sequence> sequences;
  for (int32_t completion = 0; completion < 4; ++completion) {
    sequences.push_back(sequence_of(request(1, std::vector<int32_t>(40, 3), 50), {completion}, 0));
    sequences.back().completion = completion;
  }
  const std::vector<const Sequence*> asked = {&sequences[0], &sequences[1], &sequences[2], &sequences[3]};
  auto drafts = proposed(*model, asked, 1);
  TW_CHECK_EQ(drafts[0].size() + drafts[1].size() + drafts[2].size() + drafts[3].size(), size_t{1});
  TW_CHECK_EQ(model->computed_tokens(), 41);
  drafts = proposed(*model, asked, 1);
  for (const auto& draft : drafts) TW_CHECK_EQ(draft.size(), size_t{1});
  TW_CHECK_EQ(model->computed_tokens(), 41 + 4);  // the whole prompt but the last token came from the cache
}

TW_TEST(a_start_costs_what_the_draft_model_has_missed) {
  const auto model = draft_model(draft_options(100, 1, 64));
  Sequence sequence = sequence_of(request(1, std::vector<int32_t>(20, 3), 50), {1}, 0);
  TW_CHECK(model->start_seconds(sequence) > 0);
  proposed(*model, {&sequence}, 2);
  TW_CHECK_EQ(model->start_seconds(sequence), 0.0);
  sequence.tokens.push_back(1);
  TW_CHECK_EQ(model->start_seconds(sequence), 0.0);  // the new token is computed to propose anyhow
  sequence.tokens.insert(sequence.tokens.end(), {4, 5, 6});
  TW_CHECK(model->start_seconds(sequence) > 0);
}

TW_TEST(sequences_that_were_asked_for_long_ago_give_up_their_blocks) {
  DraftModelOptions o = draft_options(12, 3, 64);  // room for one of these sequences and a half
  o.prefix_cache = false;
  const auto model = draft_model(o);
  std::vector<Sequence> sequences;
  for (int64_t id = 0; id < 3; ++id)
    sequences.push_back(
        sequence_of(request(id, std::vector<int32_t>(27, static_cast<int32_t>(id)), 50), {1}, 0));
  for (int round = 0; round < 2; ++round) {
    for (const Sequence& sequence : sequences)
      TW_CHECK(proposed(*model, {&sequence}, 3)[0] == afresh(sequence, 3, 1, 0));
  }
}

TW_TEST(long_prompts_are_caught_up_with_in_bounded_passes) {
  const auto model = draft_model(draft_options(100, 2, 16));
  const Sequence sequence = sequence_of(request(1, std::vector<int32_t>(40, 3), 50), {1}, 0);
  TW_CHECK(proposed(*model, {&sequence}, 3)[0].empty());
  TW_CHECK_EQ(model->computed_tokens(), 16);
  TW_CHECK(proposed(*model, {&sequence}, 3)[0].empty());
  TW_CHECK_EQ(proposed(*model, {&sequence}, 3)[0].size(), size_t{3});
}

TW_TEST(vocabularies_of_other_sizes_and_short_contexts_give_fewer_proposals) {
  const Sequence sequence = sequence_of(request(1, {1, 2, 3}, 50), {4}, 0);
  for (int32_t vocab : {kVocab - 7, kVocab + 9}) {
    const auto model = draft_model(draft_options(100, 1, 64), {}, vocab);
    const std::vector<int32_t> draft = proposed(*model, {&sequence}, 8)[0];
    TW_CHECK_EQ(draft.size(), size_t{8});
    for (int32_t token : draft) TW_CHECK(token >= 0 && token < std::min(vocab, kVocab));
  }
  const auto small = draft_model(draft_options(100, 1, 64), {}, 4);
  TW_CHECK(proposed(*small, {&sequence}, 8)[0].empty());  // it has no token 4
  const auto brief = draft_model(draft_options(100, 1, 64), {}, kVocab, 6);
  TW_CHECK_EQ(proposed(*brief, {&sequence}, 8)[0].size(), size_t{3});  // behind positions 3, 4 and 5
  TW_CHECK_EQ(brief->mirrors(), 1);
  const Sequence longer = sequence_of(request(1, {1, 2, 3, 4, 5, 6}, 50), {4}, 0);
  TW_CHECK(proposed(*brief, {&longer}, 8)[0].empty());
  TW_CHECK_EQ(brief->mirrors(), 0);
}

TW_TEST(a_pass_that_fails_is_forgotten) {
  FakeBehaviour behaviour;
  behaviour.late_token = 9;  // the pass has written to the cache when it throws
  const auto model = draft_model(draft_options(100, 2, 64), behaviour);
  Sequence good = sequence_of(request(1, {1, 2, 3}, 50), {4}, 0),
           bad = sequence_of(request(2, {5}, 50), {9}, 0);
  bool threw = false;
  try {
    proposed(*model, {&good, &bad}, 2);
  } catch (const std::exception&) {
    threw = true;
  }
  TW_CHECK(threw);
  model->check();
  const auto draft = proposed(*model, {&good}, 2)[0];
  if (std::ranges::find(draft, 9) == draft.end()) TW_CHECK(draft == afresh(good, 2, 1, 0));
}

TW_TEST(a_model_with_states_is_refused) {
  FakeBehaviour behaviour = with_states();
  bool refused = false;
  try {
    draft_model(draft_options(10, 1, 16), behaviour);
  } catch (const Error& error) {
    refused = error.type() == "InvalidOptionError";
  }
  TW_CHECK(refused);
}

TW_TEST(the_engine_says_with_a_draft_what_it_says_without) {
  std::mt19937 random(11);
  int64_t accepted = 0, proposed = 0, preemptions = 0, drawn = 0;
  for (int round = 0; round < 16; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 12; ++id)
      requests.push_back(random_request(random, id, 1 + static_cast<int32_t>(random() % 3), 40));
    EngineOptions o =
        options(30 + static_cast<int32_t>(random() % 40), 6, 8 + static_cast<int32_t>(random() % 60));
    o.speculation.tokens = 1 + round % 6;
    o.debug_preempt_every = round % 4;
    o.debug_seed = static_cast<uint64_t>(round);
    // The same model as the target: what it proposes is right wherever nothing else differs.
    // In every other round its executor draws what it proposes, as far as it is sure.
    FakeBehaviour behaviour;
    behaviour.draws = round % 2 == 1;
    behaviour.drawn = &drawn;
    EngineCore core(fake(), o, nullptr, draft_model(draft_options(20 + 20 * (round % 3), 6, 32), behaviour));
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests)
      for (int32_t i = 0; i < r.sampling.n; ++i)
        TW_CHECK(same(outcomes[r.id + kNext * i], solo_completion(r, i)));
    accepted += core.stats().speculation.accepted;
    proposed += core.stats().speculation.proposed;
    preemptions += core.stats().steps.preemptions;
    TW_CHECK_EQ(core.stats().speculation.failures, 0);
  }
  TW_CHECK(proposed > 500 && preemptions > 10 && drawn > 100);
  // The same draw by seed and position: all are right, but those behind an end.
  TW_CHECK(accepted * 10 > proposed * 8);
}

TW_TEST_MAIN()
