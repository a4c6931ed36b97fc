// StepChecker after more steps than 32 bits count.
#include "runtime/core/ops/step_check.h"

#include <utility>
#include <vector>

#include "runtime/core/base/error.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

// Facts of a model with one cache group, whose sequences have 16 positions in blocks of 4. window: 0 for
// none.
static ModelFacts one_group(int32_t window) {
  ModelFacts facts;
  facts.vocab_size = 10;
  facts.max_seq_len = 16;
  facts.block_size = 4;
  facts.block_bytes = {100};
  facts.group_windows = {window};
  return facts;
}

// Positions [begin, end) of one sequence, in blocks 0 to 3.
static Step positions(int32_t begin, int32_t end) {
  Step step;
  step.seq_starts = {0, end - begin};
  step.context_lens = {end};
  step.groups = {{4, {0, 1, 2, 3}, {}}};
  for (int32_t position = begin; position < end; ++position) {
    step.token_ids.push_back(1);
    step.positions.push_back(position);
    step.groups[0].slots.push_back(position);
  }
  return step;
}

// Two sequences of one token each, written to blocks 0 and `second`.
static Step two_sequences(int32_t second) {
  Step step;
  step.token_ids = {1, 2};
  step.positions = {0, 0};
  step.seq_starts = {0, 1, 2};
  step.context_lens = {1, 1};
  step.logit_rows = {0, 1};
  step.groups = {{1, {0, second}, {0, 4 * second}}};
  return step;
}

TW_TEST(two_writers_are_found_after_any_number_of_steps) {
  ModelFacts facts = one_group(0);
  for (int64_t steps :
       {int64_t{0}, (int64_t{1} << 31) - 1, (int64_t{1} << 32) - 1, int64_t{1} << 33, int64_t{1} << 40}) {
    StepChecker checker(facts, {8, 8, 8}, {4}, steps);
    for (int i = 0; i < 3; ++i) {
      checker.check(two_sequences(1));
      TW_CHECK_ERROR(checker.check(two_sequences(0)), "InvalidRequestError");
    }
  }
}

// With chunks of 8 positions and blocks of 4, position 8 sees no block before its own.
TW_TEST(blocks_before_a_chunk_may_be_absent) {
  ModelFacts facts = one_group(8);
  const auto step_at = [](int32_t position) {
    Step step;
    step.token_ids = {1};
    step.positions = {position};
    step.seq_starts = {0, 1};
    step.context_lens = {position + 1};
    step.groups = {{3, {-1, -1, 2}, {8 + position % 4}}};
    return step;
  };
  StepChecker sliding(facts, {8, 8, 8}, {4});
  TW_CHECK_ERROR(sliding.check(step_at(8)), "InvalidRequestError");
  facts.group_chunked = {1};
  StepChecker chunked(facts, {8, 8, 8}, {4});
  for (int32_t position = 8; position < 12; ++position) chunked.check(step_at(position));
  facts.group_windows = {9};  // position 8 then is in the first chunk
  StepChecker longer(facts, {8, 8, 8}, {4});
  TW_CHECK_ERROR(longer.check(step_at(8)), "InvalidRequestError");
  longer.check(step_at(11));
}

// With a window of 2 positions, 5 sink tokens and blocks of 4, position 15 sees the first two blocks and its
// own.
TW_TEST(blocks_of_sink_tokens_must_be_there) {
  ModelFacts facts = one_group(2);
  facts.group_sink_tokens = {5};
  Step step;
  step.token_ids = {1};
  step.positions = {15};
  step.seq_starts = {0, 1};
  step.context_lens = {16};
  step.groups = {{4, {0, 1, -1, 2}, {11}}};
  StepChecker checker(facts, {8, 8, 8}, {4});
  checker.check(step);
  step.groups[0].block_tables = {0, -1, -1, 2};
  TW_CHECK_ERROR(checker.check(step), "InvalidRequestError");
}

TW_TEST(a_step_crosses_no_position_where_blocks_are_forgotten) {
  ModelFacts facts = one_group(0);
  facts.max_seq_len = 64;
  facts.group_budgets = {{4, 1, 1, 8, 0}};
  StepChecker checker(facts, {8, 8, 8}, {4});
  checker.check(positions(0, 8));
  checker.check(positions(8, 11));
  TW_CHECK_ERROR(checker.check(positions(5, 9)), "InvalidRequestError");
}

// A prompt of 14 tokens has three whole blocks of 4, whose rows choose what they see.
TW_TEST(rows_that_choose_come_in_whole_blocks) {
  ModelFacts facts = one_group(0);
  facts.sparse_prefill = 8;
  const auto rows = [](int32_t begin, int32_t end, std::vector<int32_t> prompts) {
    Step step = positions(begin, end);
    step.prompt_lens = std::move(prompts);
    return step;
  };
  StepChecker checker(facts, {16, 8, 8}, {4});
  for (const auto& [begin, end] : {std::pair{0, 4}, {4, 12}, {8, 13}, {12, 13}, {13, 16}, {0, 14}})
    checker.check(rows(begin, end, {14}));
  for (const auto& [begin, end] : {std::pair{0, 5}, {2, 8}, {9, 12}, {4, 11}, {11, 14}})
    TW_CHECK_ERROR(checker.check(rows(begin, end, {14})), "InvalidRequestError");
  checker.check(rows(9, 11, {}));   // no row chooses
  checker.check(rows(9, 11, {3}));  // nor does an answer
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{0}, {17}, {14, 14}})
    TW_CHECK_ERROR(checker.check(rows(4, 8, wrong)), "InvalidRequestError");
  facts.sparse_prefill = 0;
  StepChecker dense(facts, {16, 8, 8}, {4});
  TW_CHECK_ERROR(dense.check(rows(4, 8, {14})), "InvalidRequestError");
}

TW_TEST(each_sequence_has_a_state_slot_of_its_own) {
  ModelFacts facts;
  facts.vocab_size = 10;
  facts.max_seq_len = 16;
  facts.block_size = 4;
  facts.state_bytes = 64;  // a model without attention: there is no cache group
  StepChecker checker(facts, {8, 8, 8, 3}, {});
  const auto with_slots = [](std::vector<int32_t> slots) {
    Step step = two_sequences(1);
    step.groups.clear();
    step.state_slots = std::move(slots);
    return step;
  };
  for (int i = 0; i < 2; ++i) {
    checker.check(with_slots({0, 2}));
    checker.check(with_slots({2, 0}));
    for (const std::vector<int32_t>& wrong :
         {std::vector<int32_t>{1, 1}, {0, 3}, {-1, 0}, {0}, {}, {0, 1, 2}})
      TW_CHECK_ERROR(checker.check(with_slots(wrong)), "InvalidRequestError");
  }
  facts.state_bytes = 0;
  StepChecker stateless(facts, {8, 8, 8}, {});
  stateless.check(with_slots({}));
  TW_CHECK_ERROR(stateless.check(with_slots({0, 1})), "InvalidRequestError");
}

TW_TEST_MAIN()
