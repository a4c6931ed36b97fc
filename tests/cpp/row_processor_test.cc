// Requests whose rows the caller's own code changes: it runs once for all rows that are drawn together, and
// what it throws is of its request.
#include "runtime/core/scheduler/row_processor.h"

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

struct Counts {
  int calls = 0, rows = 0;
};

// Adds to the logit of a token that the text before decides.
struct Biased : RowProcessor {
  explicit Biased(Counts* counts, size_t fails_at = SIZE_MAX) : counts(counts), fails_at(fails_at) {}

  void process(std::span<ProcessedRow> rows) const override {
    ++counts->calls;
    for (ProcessedRow& row : rows) {
      ++counts->rows;
      TW_CHECK_EQ(row.row->size(), static_cast<size_t>(kVocab));
      if (row.tokens.size() >= static_cast<const Biased*>(row.processor)->fails_at) {
        row.error = std::make_exception_ptr(Error("LogitsProcessorError", "on purpose"));
        continue;
      }
      (*row.row)[static_cast<size_t>(row.tokens.back() * 7 + 3) % kVocab] += 5;
    }
  }

  Counts* counts;
  size_t fails_at;
};

Request processed(int64_t id, std::shared_ptr<const RowProcessor> processor) {
  Request r = request(id, {1, 2, static_cast<int32_t>(id)}, 12);
  r.sampling.processor = std::move(processor);
  r.sampling.temperature = id % 2 ? 0.8 : 0;
  r.sampling.seed = 9;
  r.sampling.logprobs = 1;
  return r;
}

}  // namespace

TW_TEST(all_rows_of_a_step_are_processed_by_one_call) {
  Counts counts, alone;
  const auto processor = std::make_shared<const Biased>(&counts);
  std::vector<Request> requests;
  for (int64_t id = 0; id < 6; ++id) requests.push_back(processed(id, id == 5 ? nullptr : processor));
  EngineCore core(fake(), options(60, 8, 64));
  Outcomes outcomes = run_core(core, requests);
  int64_t tokens = 0;
  for (Request r : requests) {
    const Outcome& outcome = outcomes[r.id];
    if (r.sampling.processor) tokens += static_cast<int64_t>(outcome.tokens.size());
    if (r.sampling.processor) r.sampling.processor = std::make_shared<const Biased>(&alone);
    TW_CHECK(same(outcome, solo(r)));
    r.sampling.processor = nullptr;
    TW_CHECK_EQ(outcome.tokens != solo(r).tokens, r.id != 5);
  }
  TW_CHECK_EQ(counts.rows, tokens);
  TW_CHECK_EQ(alone.rows, tokens);
  TW_CHECK(counts.calls <= core.stats().steps.steps);
  TW_CHECK_EQ(alone.calls, tokens);
}

TW_TEST(what_a_processor_throws_ends_its_request_alone) {
  Counts counts;
  std::vector<Request> requests;
  for (int64_t id = 0; id < 4; ++id)
    requests.push_back(processed(id, std::make_shared<const Biased>(&counts, id == 2 ? 6 : SIZE_MAX)));
  requests[2].sampling.n = 2;
  EngineCore core(fake(), options(60, 8, 64));
  Outcomes outcomes = run_core(core, requests);
  for (int64_t id : {0, 1, 3}) TW_CHECK(same(outcomes[id], solo(requests[static_cast<size_t>(id)])));
  for (int64_t at : {int64_t{2}, 2 + kNext}) {
    TW_CHECK(outcomes[at].last.finish == "error");
    TW_CHECK(outcomes[at].last.error_type == "LogitsProcessorError");
    TW_CHECK_EQ(outcomes[at].tokens.size(), 3u);
  }
  TW_CHECK_EQ(core.stats().failed, 1);
}

TW_TEST(a_beam_search_has_none) {
  Counts counts;
  Request r = processed(1, std::make_shared<const Biased>(&counts));
  r.sampling.beam_width = 2;
  EngineCore core(fake(), options(60, 8, 64));
  TW_CHECK_ERROR(validate_request(r, core.facts(), core.groups(), 8), "InvalidRequestError");
}

TW_TEST_MAIN()
