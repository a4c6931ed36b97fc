// States of recurrent layers: which slots there are, which prefixes are found again, what a failed step
// costs.
#include "runtime/core/base/invariants.h"
#include "tests/cpp/scheduler_simulation.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// Blocks of 4 tokens, steps of 64.
Simulation simulation(int32_t snapshots, int32_t blocks = 200, int32_t max_seqs = 4) {
  return Simulation(blocks, 4, {max_seqs, 64, 0}, true, 0, {max_seqs, snapshots});
}

// A prompt of `shared` tokens that all have and `own` ones.
std::unique_ptr<Sequence> prompt(int64_t id, int32_t shared, int32_t own, int32_t max_tokens = 1) {
  auto sequence = make(id, shared, max_tokens);
  for (int32_t i = 0; i < own; ++i) sequence->tokens.push_back(static_cast<int32_t>(10000 + 100 * id) + i);
  sequence->prompt_tokens = sequence->size();
  return sequence;
}

// Runs one request and returns how many of its tokens the prefix cache had.
int64_t hit_of(Simulation& s, std::unique_ptr<Sequence> sequence) {
  const int64_t before = s.scheduler.stats().prefix_hit_tokens;
  s.scheduler.add(std::move(sequence));
  s.run();
  return s.scheduler.stats().prefix_hit_tokens - before;
}

std::vector<int32_t> chunks_of(Simulation& s, std::unique_ptr<Sequence> sequence) {
  std::vector<int32_t> chunks;
  s.scheduler.add(std::move(sequence));
  while (!s.scheduler.idle()) {
    StepPlan plan = s.scheduler.plan();
    for (const PlannedChunk& chunk : plan.chunks) chunks.push_back(chunk.tokens);
    s.scheduler.rollback(plan);  // a look; step() plans the same
    s.step();
  }
  return chunks;
}

}  // namespace

TW_TEST(a_prompt_is_found_again_up_to_its_last_whole_block) {
  Simulation s = simulation(3);
  TW_CHECK(chunks_of(s, prompt(1, 22, 0)) == (std::vector<int32_t>{20, 2}));
  TW_CHECK_EQ(s.kv.snapshots(), 1);
  TW_CHECK(chunks_of(s, prompt(2, 22, 0)) == (std::vector<int32_t>{2}));
  TW_CHECK_EQ(s.scheduler.stats().snapshot_hits, 1);
  // With a whole number of blocks, the last block is computed for its logits.
  TW_CHECK(chunks_of(s, prompt(3, 24, 0)) == (std::vector<int32_t>{4}));
  TW_CHECK_EQ(s.kv.snapshots(), 1);
}

TW_TEST(a_beginning_that_two_prompts_share_is_kept_at_the_second_and_found_by_the_third) {
  Simulation s = simulation(8);
  TW_CHECK_EQ(hit_of(s, prompt(1, 30, 20)), 0);
  TW_CHECK(chunks_of(s, prompt(2, 30, 20)) == (std::vector<int32_t>{28, 20, 2}));
  TW_CHECK_EQ(hit_of(s, prompt(3, 30, 20)), 28);
  TW_CHECK_EQ(hit_of(s, prompt(1, 30, 20)), 48);
}

TW_TEST(without_snapshots_nothing_is_reused_and_no_chunk_is_cut) {
  Simulation s = simulation(0);
  for (int64_t id = 1; id <= 2; ++id) TW_CHECK(chunks_of(s, prompt(id, 22, 0)) == (std::vector<int32_t>{22}));
  TW_CHECK_EQ(s.kv.snapshots(), 0);
  TW_CHECK_EQ(s.kv.state_slots(), 4);
  TW_CHECK_EQ(s.kv.group(0).free(), 200);
}

TW_TEST(the_snapshot_used_longest_ago_goes_first) {
  Simulation s = simulation(2);
  hit_of(s, prompt(1, 0, 22));
  hit_of(s, prompt(2, 0, 22));
  TW_CHECK_EQ(hit_of(s, prompt(1, 0, 22)), 20);
  hit_of(s, prompt(3, 0, 22));  // in place of that of 2
  TW_CHECK_EQ(s.kv.snapshot_stats().evicted, 1);
  TW_CHECK_EQ(hit_of(s, prompt(1, 0, 22)), 20);
  TW_CHECK_EQ(hit_of(s, prompt(2, 0, 22)), 0);
  TW_CHECK_EQ(s.kv.snapshots(), 2);
}

TW_TEST(a_snapshot_goes_with_its_block) {
  Simulation s = simulation(8, 12);
  hit_of(s, prompt(1, 0, 22));
  TW_CHECK_EQ(s.kv.snapshots(), 1);
  hit_of(s, prompt(2, 0, 46));  // takes all blocks
  TW_CHECK_EQ(s.kv.snapshots(), 1);
  TW_CHECK_EQ(s.kv.used_state_slots(), 1);
  TW_CHECK_EQ(hit_of(s, prompt(1, 0, 22)), 0);
}

// A sequence that decodes keeps one snapshot of its answer, which moves along; so the next turn begins there.
TW_TEST(the_next_turn_of_a_conversation_begins_behind_the_answer) {
  Simulation s = simulation(8);
  auto first = prompt(1, 0, 10, 31);
  s.scheduler.add(std::move(first));
  std::vector<int32_t> tokens;
  while (s.scheduler.waiting() + s.scheduler.running() > 0) {
    s.scheduler.for_each([&](const Sequence& sequence) { tokens = sequence.tokens; });
    s.step();
    TW_CHECK(s.kv.snapshots() <= 2);
  }
  TW_CHECK_EQ(s.kv.snapshots(), 2);  // of the prompt, and of the answer
  auto next = make(2, 0, 1);
  next->tokens = tokens;  // 40, all but the last token of the answer
  next->tokens.resize(50, 7);
  next->prompt_tokens = 50;
  TW_CHECK_EQ(hit_of(s, std::move(next)), 40);
}

TW_TEST(a_snapshot_that_another_sequence_began_with_stays) {
  Simulation s = simulation(8);
  s.scheduler.add(prompt(1, 0, 10, 20));
  std::vector<int32_t> tokens;
  for (int i = 0; i < 8; ++i) s.step();
  s.scheduler.for_each([&](const Sequence& sequence) { tokens = sequence.tokens; });
  auto other = make(2, 0, 1);
  other->tokens.assign(tokens.begin(), tokens.begin() + 16);
  other->tokens.resize(18, 7);
  other->prompt_tokens = 18;
  TW_CHECK_EQ(hit_of(s, std::move(other)), 16);  // while 1 decodes, and to its end
  s.scheduler.check();
  auto third = make(3, 0, 1);
  third->tokens.assign(tokens.begin(), tokens.begin() + 16);
  third->tokens.resize(18, 8);
  third->prompt_tokens = 18;
  TW_CHECK_EQ(hit_of(s, std::move(third)), 16);
}

TW_TEST(completions_have_states_of_their_own) {
  Simulation s = simulation(0);
  s.scheduler.add(make(1, 9, 6, 0, 0, 4));
  s.step();
  TW_CHECK_EQ(s.kv.used_state_slots(), 4);
  s.run();  // checks the states in every step
  TW_CHECK_EQ(s.kv.used_state_slots(), 0);
}

TW_TEST(a_preempted_sequence_gives_its_slot_back_and_goes_on_from_a_snapshot) {
  Simulation s = simulation(2);
  s.scheduler.add(prompt(1, 0, 10, 20));
  for (int i = 0; i < 9; ++i) s.step();
  TW_CHECK(s.scheduler.preempt(1));
  TW_CHECK_EQ(s.kv.used_state_slots(), s.kv.snapshots());
  StepPlan plan = s.checked_plan();
  TW_CHECK_EQ(plan.chunks[0].sequence->computed, 16);
  s.scheduler.rollback(plan);
  s.run();
}

TW_TEST(a_step_that_failed_in_the_middle_is_computed_again_from_a_snapshot) {
  Simulation s = simulation(2);
  s.scheduler.add(prompt(1, 0, 10, 20));
  for (int i = 0; i < 9; ++i) s.step();
  StepPlan plan = s.checked_plan();
  s.fail(plan);
  TW_CHECK_EQ(s.scheduler.running(), 0);
  TW_CHECK_EQ(s.scheduler.waiting(), 1);
  plan = s.checked_plan();
  TW_CHECK_EQ(plan.chunks[0].sequence->computed, 16);
  s.scheduler.rollback(plan);  // this one did not run
  s.run();
}

TW_TEST(a_slot_that_nobody_holds_is_found) {
  Simulation s = simulation(2);
  s.scheduler.add(prompt(1, 0, 10, 20));
  s.step();
  s.scheduler.check();
  SequenceBlocks lost;
  s.kv.attach(s.kv.match({}), lost);
  TW_CHECK_THROWS(s.scheduler.check(), InvariantError);
  s.kv.release(lost);
  s.scheduler.check();
}

TW_TEST_MAIN()
