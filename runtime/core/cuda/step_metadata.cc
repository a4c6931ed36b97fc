#include "runtime/core/cuda/step_metadata.h"

#include <algorithm>

#include "runtime/core/cuda/cuda_plan.h"
#include "runtime/core/cuda/draw_fields.h"

namespace tensorwright {

namespace {

size_t numbers(size_t count) {
  return (count * sizeof(int32_t) + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment;
}

// Copies what the step has, and returns where what it lacks begins.
int32_t* put(char* to, const std::vector<int32_t>& values) {
  return std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(to));
}

// Writes the slots of the positions behind the tokens of the rows.
void put_next_slots(const Step& step, const StepShape& shape, int32_t spare, int32_t block_size,
                    int32_t* to) {
  std::fill_n(to, shape.rows, spare * block_size);
  if (!shape.heads) return;
  const GroupTables& tables = step.groups[static_cast<size_t>(shape.feature_group)];
  for (size_t row = 0; row < step.logit_rows.size(); ++row) {
    const int32_t token = step.logit_rows[row], next = step.positions[static_cast<size_t>(token)] + 1;
    if (next / block_size >= tables.max_blocks) continue;
    const auto behind = std::ranges::upper_bound(step.seq_starts, token);
    const auto seq = behind - step.seq_starts.begin() - 1;
    const int32_t block =
        tables.block_tables[static_cast<size_t>(int64_t{seq} * tables.max_blocks + next / block_size)];
    if (block >= 0) to[row] = block * block_size + next % block_size;
  }
}

}  // namespace

MetadataLayout::MetadataLayout(const StepShape& shape) {
  const auto tokens = static_cast<size_t>(shape.tokens), rows = static_cast<size_t>(shape.rows),
             seqs = static_cast<size_t>(shape.seqs);
  const auto add = [this](size_t count) {
    offsets.push_back(bytes);
    bytes += numbers(count);
  };
  for (const size_t count : {tokens, tokens, seqs + 1, seqs, rows}) add(count);
  for (size_t g = 0; g < shape.max_blocks.size(); ++g) add(tokens);
  for (const int32_t blocks : shape.max_blocks) add(seqs * static_cast<size_t>(blocks));
  add(rows * kDrawFields);
  if (shape.states) add(seqs);
  if (shape.feature_group >= 0) add(rows);
}

void pack_step(const Step& step, const StepShape& shape, const std::vector<int32_t>& spare,
               int32_t spare_state, int32_t block_size, const MetadataLayout& layout, char* to) {
  const auto at = [&](Metadata part, size_t more = 0) {
    return to + layout.offsets[static_cast<size_t>(part) + more];
  };
  const int32_t missing = shape.seqs - step.seqs();
  std::fill_n(put(at(Metadata::kTokenIds), step.token_ids), missing, 0);
  std::fill_n(put(at(Metadata::kPositions), step.positions), missing, 0);
  std::fill_n(put(at(Metadata::kContextLens), step.context_lens), missing, 1);
  int32_t* starts = put(at(Metadata::kSeqStarts), step.seq_starts);
  int32_t* rows = put(at(Metadata::kLogitRows), step.logit_rows);
  for (int32_t i = 0; i < missing; ++i) {
    starts[i] = step.tokens() + i + 1;
    if (i < shape.rows - step.rows()) rows[i] = step.tokens() + i;
  }
  const size_t groups = step.groups.size();
  auto* draw = reinterpret_cast<int32_t*>(at(Metadata::kGroups, 2 * groups));
  for (int32_t r = 0; r < shape.rows; ++r, draw += kDrawFields) {
    const auto row = static_cast<size_t>(r);
    write_draw(row < step.draws.size() ? step.draws[row] : RowDraw{}, draw);
  }
  if (shape.states)
    std::fill_n(put(at(Metadata::kGroups, 2 * groups + 1), step.state_slots), missing, spare_state);
  if (shape.feature_group >= 0) {
    put_next_slots(step, shape, spare[static_cast<size_t>(shape.feature_group)], block_size,
                   reinterpret_cast<int32_t*>(at(Metadata::kGroups, 2 * groups + (shape.states ? 2 : 1))));
  }
  for (size_t g = 0; g < groups; ++g) {
    const GroupTables& tables = step.groups[g];
    std::fill_n(put(at(Metadata::kGroups, g), tables.slots), missing, spare[g] * block_size);
    auto* row = reinterpret_cast<int32_t*>(at(Metadata::kGroups, groups + g));
    const int32_t columns = shape.max_blocks[g];
    for (int32_t s = 0; s < shape.seqs; ++s, row += columns) {
      std::fill_n(row, columns, -1);
      if (s < step.seqs()) {
        const int32_t* own = tables.block_tables.data() + int64_t{s} * tables.max_blocks;
        std::copy_n(own, tables.max_blocks, row);
      } else {
        row[0] = spare[g];
      }
    }
  }
}

}  // namespace tensorwright
