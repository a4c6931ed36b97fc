#include "runtime/core/ops/step_check.h"

#include <algorithm>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/first_seen.h"
#include "runtime/core/base/sparse_prefill.h"

namespace tensorwright {
namespace {

template <typename... Parts>
void require(bool holds, const Parts&... fault) {
  if (!holds) throw Error("InvalidRequestError", concat("step: ", fault...));
}

template <typename T>
void require_length(const char* name, const std::vector<T>& array, int64_t length) {
  require(static_cast<int64_t>(array.size()) == length, name, " must have ", length, " entries, has ",
          array.size());
}

// Requires that all entries are in [first, end). The array is read without a branch, and searched only if an
// entry is not.
void require_below(const char* name, const std::vector<int32_t>& array, int32_t end, int32_t first = 0) {
  bool good = true;
  for (int32_t value : array) good &= value >= first && value < end;
  if (good) return;
  for (size_t i = 0; i < array.size(); ++i) {
    require(array[i] >= first && array[i] < end, name, "[", i, "] must be ", first, " to ", end - 1, ", is ",
            array[i]);
  }
}

}  // namespace

StepChecker::StepChecker(const ModelFacts& facts, const StepLimits& limits,
                         const std::vector<int32_t>& blocks, int64_t steps, int32_t group)
    : facts_(facts), limits_(limits), group_(group), steps_(steps) {
  for (int32_t count : blocks) writers_.emplace_back(static_cast<size_t>(count));
  state_writers_.resize(static_cast<size_t>(limits.state_slots));
}

void StepChecker::check(const Step& step, int32_t rows_before) {
  check_sizes(step);
  check_tokens(step, rows_before);
  check_sequences(step);
  check_prompts(step);
  ++steps_;
  check_states(step);
  for (size_t group = 0; group < step.groups.size(); ++group) {
    if (group_ < 0 || static_cast<size_t>(group_) == group) check_group(step, group);
  }
}

void StepChecker::check_sizes(const Step& step) const {
  const auto at_most = [](const char* what, size_t count, int32_t limit) {
    require(count <= static_cast<size_t>(limit), what, " must be at most ", limit, ", as allocated, are ",
            count);
  };
  at_most("tokens", step.token_ids.size(), limits_.tokens);
  at_most("logit rows", step.logit_rows.size(), limits_.rows);
  at_most("sequences", step.context_lens.size(), limits_.seqs);
  require_length("positions", step.positions, step.tokens());
  require_length("seq_starts", step.seq_starts, int64_t{step.seqs()} + 1);
  require(step.groups.size() == writers_.size(), "groups must be ", writers_.size(), ", are ",
          step.groups.size());
}

void StepChecker::check_tokens(const Step& step, int32_t rows_before) const {
  for (size_t i = 0; rows_before == 0 && i < step.token_ids.size(); ++i) {
    require(step.token_ids[i] >= 0, "token_ids[", i, "] is ", step.token_ids[i],
            "; no step is underway whose token it could be, so the token itself is needed");
  }
  require_below("token_ids", step.token_ids, facts_.vocab_size, -rows_before);
  require_below("positions", step.positions, facts_.max_seq_len);
  require_below("logit_rows", step.logit_rows, step.tokens());
}

void StepChecker::check_sequences(const Step& step) const {
  require(step.seq_starts.front() == 0 && step.seq_starts.back() == step.tokens(),
          "seq_starts must go from 0 to the number of tokens ", step.tokens(), ", go from ",
          step.seq_starts.front(), " to ", step.seq_starts.back());
  for (size_t seq = 0; seq < step.context_lens.size(); ++seq) {
    const int32_t start = step.seq_starts[seq], end = step.seq_starts[seq + 1],
                  context = step.context_lens[seq];
    require(start < end && end <= step.tokens(), "seq_starts must rise, goes from ", start, " to ", end,
            " at sequence ", seq);
    require(context >= end - start && context <= facts_.max_seq_len, "context_lens[", seq, "] must be ",
            end - start, " to ", facts_.max_seq_len, ", is ", context);
    const int32_t first = context - (end - start), stop = facts_.chunk_stop();
    require(stop == 0 || first / stop == (context - 1) / stop, "sequence ", seq, " has positions ", first,
            " to ", context - 1, "; a step must not cross a multiple of ", stop,
            ", where blocks are forgotten");
    for (int32_t token = start; token < end; ++token) {
      const int32_t expected = context - (end - token);
      require(step.positions[static_cast<size_t>(token)] == expected, "positions[", token, "] must be ",
              expected, ", as the tokens of sequence ", seq, " end its context of ", context, ", is ",
              step.positions[static_cast<size_t>(token)]);
    }
  }
}

void StepChecker::check_states(const Step& step) {
  require_length("state_slots", step.state_slots, facts_.state_bytes > 0 ? step.seqs() : 0);
  require_below("state_slots", step.state_slots, limits_.state_slots);
  for (size_t seq = 0; seq < step.state_slots.size(); ++seq) {
    Writer& last = state_writers_[static_cast<size_t>(step.state_slots[seq])];
    require(last.step != steps_, "sequence ", seq, " and sequence ", last.seq, " both have state slot ",
            step.state_slots[seq]);
    last = {steps_, static_cast<int32_t>(seq)};
  }
}

void StepChecker::check_prompts(const Step& step) const {
  if (step.prompt_lens.empty()) return;
  require_length("prompt_lens", step.prompt_lens, facts_.sparse_prefill > 0 ? step.seqs() : 0);
  for (int32_t seq = 0; seq < step.seqs(); ++seq) {
    const auto s = static_cast<size_t>(seq);
    const int32_t prompt = step.prompt_lens[s], begin = step.first_position(seq), end = step.context_lens[s];
    require(prompt >= 1 && prompt <= facts_.max_seq_len, "prompt_lens[", seq, "] must be 1 to ",
            facts_.max_seq_len, ", is ", prompt);
    const int32_t chosen = sparse_end(prompt, facts_.block_size);
    if (begin >= chosen) continue;
    require(begin % facts_.block_size == 0 && (end >= chosen || end % facts_.block_size == 0), "sequence ",
            seq, " has positions ", begin, " to ", end - 1, " of a prompt of ", prompt,
            ", where rows choose what they see in blocks of ", facts_.block_size,
            ": a step must hold whole ones");
  }
}

void StepChecker::check_group(const Step& step, size_t group) {
  const GroupTables& tables = step.groups[group];
  require(tables.max_blocks >= 0, "group ", group, ": max_blocks is ", tables.max_blocks);
  require_length("block_tables", tables.block_tables, int64_t{step.seqs()} * tables.max_blocks);
  require_length("slots", tables.slots, step.tokens());
  const int32_t blocks = static_cast<int32_t>(writers_[group].size());
  for (int32_t seq = 0; seq < step.seqs(); ++seq) {
    const auto s = static_cast<size_t>(seq);
    const int32_t queries = step.seq_starts[s + 1] - step.seq_starts[s], context = step.context_lens[s];
    if (queries == 0) continue;  // nothing of this sequence is read
    // The blocks of sink tokens, and those from the first position that the first query sees to the end of
    // the context, are read.
    const int64_t visible =
        tw_first_seen(context - queries, facts_.group_windows[group], facts_.chunked(group));
    const int32_t begin = static_cast<int32_t>(visible / facts_.block_size);
    const int32_t end = (context - 1) / facts_.block_size + 1;
    require(end <= tables.max_blocks, "group ", group, ": a context of ", context, " needs ", end,
            " blocks, the block table has ", tables.max_blocks);
    const int32_t* table = tables.block_tables.data() + int64_t{seq} * tables.max_blocks;
    const int32_t sinks = (facts_.sink_tokens(group) + facts_.block_size - 1) / facts_.block_size;
    for (int32_t i = sinks > 0 ? 0 : begin; i < end; ++i) {
      if (i >= sinks && i < begin) continue;
      require(table[i] >= 0 && table[i] < blocks, "group ", group, ": block_tables[", seq, "][", i,
              "] must be 0 to ", blocks - 1, ", is ", table[i]);
    }
    check_slots(step, group, seq);
  }
}

void StepChecker::check_slots(const Step& step, size_t group, int32_t seq) {
  const GroupTables& tables = step.groups[group];
  const int32_t* table = tables.block_tables.data() + int64_t{seq} * tables.max_blocks;
  const auto s = static_cast<size_t>(seq);
  for (auto token = static_cast<size_t>(step.seq_starts[s]);
       token < static_cast<size_t>(step.seq_starts[s + 1]); ++token) {
    const int32_t position = step.positions[token], offset = position % facts_.block_size;
    const int32_t block = table[position / facts_.block_size];
    const int64_t expected = int64_t{block} * facts_.block_size + offset;
    require(tables.slots[token] == expected, "group ", group, ": slots[", token, "] must be ", expected,
            ", where the block table has position ", position, ", is ", tables.slots[token]);
    Writer& last = writers_[group][static_cast<size_t>(block)];
    require(last.step != steps_ || last.seq == seq, "group ", group, ": sequence ", seq, " and sequence ",
            last.seq, " both write to block ", block);
    last = {steps_, seq};
  }
}

}  // namespace tensorwright
