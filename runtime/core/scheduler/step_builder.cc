#include "runtime/core/scheduler/step_builder.h"

#include <algorithm>

namespace tensorwright {

namespace {

void build_group(const StepPlan& plan, int32_t group, int32_t block_size, GroupTables* out) {
  out->max_blocks = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    out->max_blocks = std::max(out->max_blocks, chunk.sequence->blocks.tables[group].size());
  }
  out->block_tables.assign(plan.chunks.size() * static_cast<size_t>(out->max_blocks), -1);
  out->slots.clear();
  int32_t* row = out->block_tables.data();
  for (const PlannedChunk& chunk : plan.chunks) {
    const BlockTable& table = chunk.sequence->blocks.tables[group];
    // Dropped blocks are never read. Block 0 stands in for them, because it always exists.
    for (int32_t i = 0; i < table.size(); ++i) row[i] = std::max(table[i], 0);
    row += out->max_blocks;
    int32_t first = chunk.sequence->computed;
    for (int32_t position = first; position < first + chunk.tokens + chunk.drafted; ++position) {
      out->slots.push_back(table[position / block_size] * block_size + position % block_size);
    }
  }
}

}  // namespace

void build_step(const StepPlan& plan, int32_t groups, int32_t block_size, Step* step, bool prompts) {
  step->token_ids.clear();
  step->positions.clear();
  step->context_lens.clear();
  step->logit_rows.clear();
  step->state_slots.clear();
  step->adapters.clear();
  step->prompt_lens.clear();
  step->seq_starts.assign(1, 0);
  for (const PlannedChunk& chunk : plan.chunks) {
    const Sequence& sequence = *chunk.sequence;
    int32_t end = sequence.computed + chunk.tokens + chunk.drafted;
    for (int32_t position = sequence.computed; position < end; ++position) {
      const int32_t ahead = position - sequence.size();
      step->token_ids.push_back(ahead < 0 ? sequence.tokens[position] : sequence.draft[ahead]);
      step->positions.push_back(position);
    }
    step->seq_starts.push_back(step->tokens());
    step->context_lens.push_back(end);
    if (prompts) step->prompt_lens.push_back(sequence.prompt_tokens);
    if (sequence.blocks.state) step->state_slots.push_back(sequence.blocks.state.id());
    int32_t row = step->tokens() - chunk.tokens + sequence.scored - sequence.computed;
    for (int32_t i = 0; i < chunk.prompt_rows; ++i) step->logit_rows.push_back(row + i);
    if (!chunk.last()) continue;
    for (int32_t i = chunk.drafted; i >= 0; --i) step->logit_rows.push_back(step->tokens() - 1 - i);
  }
  const auto has_adapter = [](const PlannedChunk& chunk) {
    return chunk.sequence->sampling->adapter != nullptr;
  };
  if (std::ranges::any_of(plan.chunks, has_adapter)) {
    for (const PlannedChunk& chunk : plan.chunks)
      step->adapters.push_back(chunk.sequence->sampling->adapter.get());
  }
  step->groups.resize(groups);
  for (int32_t group = 0; group < groups; ++group) build_group(plan, group, block_size, &step->groups[group]);
}

}  // namespace tensorwright
