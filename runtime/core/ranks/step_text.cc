#include "runtime/core/ranks/step_text.h"

#include <algorithm>

#include "runtime/core/interface/ranks.h"

namespace tensorwright {

void IntWriter::add(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  add(static_cast<int32_t>(static_cast<uint32_t>(bits)));
  add(static_cast<int32_t>(static_cast<uint32_t>(bits >> 32)));
}

void IntWriter::add(const std::vector<int32_t>& values) {
  add(static_cast<int32_t>(values.size()));
  ints_.insert(ints_.end(), values.begin(), values.end());
}

int32_t IntReader::next() {
  if (ints_.empty()) throw RankError("[ranks] a message ends too early");
  const int32_t value = ints_.front();
  ints_ = ints_.subspan(1);
  return value;
}

int64_t IntReader::next_long() {
  const auto low = static_cast<uint32_t>(next()), high = static_cast<uint32_t>(next());
  return static_cast<int64_t>(uint64_t{high} << 32 | low);
}

std::vector<int32_t> IntReader::list() {
  const int32_t count = next();
  if (count < 0 || static_cast<size_t>(count) > ints_.size())
    throw RankError("[ranks] a list in a message is longer than the message");
  std::vector<int32_t> values(ints_.begin(), ints_.begin() + count);
  ints_ = ints_.subspan(static_cast<size_t>(count));
  return values;
}

void write_step(const Step& step, IntWriter& to) {
  for (const std::vector<int32_t>* list : {&step.token_ids, &step.positions, &step.seq_starts,
                                           &step.context_lens, &step.logit_rows, &step.state_slots})
    to.add(*list);
  to.add(static_cast<int32_t>(step.groups.size()));
  for (const GroupTables& group : step.groups) {
    to.add(group.max_blocks);
    to.add(group.block_tables);
    to.add(group.slots);
  }
}

Step read_step(IntReader& from) {
  Step step;
  for (std::vector<int32_t>* list : {&step.token_ids, &step.positions, &step.seq_starts, &step.context_lens,
                                     &step.logit_rows, &step.state_slots})
    *list = from.list();
  const int32_t groups = from.next();
  for (int32_t i = 0; i < groups; ++i) {
    GroupTables& group = step.groups.emplace_back();
    group.max_blocks = from.next();
    group.block_tables = from.list();
    group.slots = from.list();
  }
  return step;
}

void write_facts(const ModelFacts& facts, IntWriter& to) {
  for (const int32_t fact :
       {facts.vocab_size, facts.max_seq_len, facts.block_size, facts.hidden_width, facts.chunk_multiple})
    to.add(fact);
  to.add(facts.state_bytes);
  to.add(static_cast<int32_t>(facts.block_bytes.size()));
  for (size_t g = 0; g < facts.block_bytes.size(); ++g) {
    to.add(facts.block_bytes[g]);
    to.add(facts.group_windows[g]);
    to.add(int32_t{facts.chunked(g)});
    to.add(facts.sink_tokens(g));
  }
}

ModelFacts read_facts(IntReader& from) {
  ModelFacts facts;
  for (int32_t* fact :
       {&facts.vocab_size, &facts.max_seq_len, &facts.block_size, &facts.hidden_width, &facts.chunk_multiple})
    *fact = from.next();
  facts.state_bytes = from.next_long();
  const int32_t groups = from.next();
  for (int32_t g = 0; g < groups; ++g) {
    facts.block_bytes.push_back(from.next_long());
    facts.group_windows.push_back(from.next());
    facts.group_chunked.push_back(static_cast<uint8_t>(from.next()));
    facts.group_sink_tokens.push_back(from.next());
  }
  return facts;
}

uint64_t checksum(std::span<const int32_t> ints) {
  uint64_t sum = 0x9e3779b97f4a7c15u ^ ints.size();
  for (const int32_t value : ints) {
    sum ^= static_cast<uint32_t>(value);
    sum *= 0xff51afd7ed558ccdu;
    sum ^= sum >> 32;
  }
  return sum;
}

std::vector<Step> cut_step(const Step& step, int32_t count) {
  const int32_t tokens = step.tokens();
  const int32_t parts = std::max(1, std::min(count, tokens));
  std::vector<Step> cuts(static_cast<size_t>(parts));
  for (int32_t part = 0; part < parts; ++part) {
    Step& own = cuts[static_cast<size_t>(part)];
    const auto begin = static_cast<int32_t>(int64_t{tokens} * part / parts);
    const auto end = static_cast<int32_t>(int64_t{tokens} * (part + 1) / parts);
    const auto slice = [&](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + begin, all.begin() + end);
    };
    own.token_ids = slice(step.token_ids);
    own.positions = slice(step.positions);
    own.seq_starts.push_back(0);
    for (const GroupTables& group : step.groups)
      own.groups.push_back({group.max_blocks, {}, slice(group.slots)});
    for (int32_t seq = 0; seq < step.seqs(); ++seq) {
      const auto s = static_cast<size_t>(seq);
      const int32_t first = std::max(begin, step.seq_starts[s]), last = std::min(end, step.seq_starts[s + 1]);
      if (first >= last) continue;
      own.seq_starts.push_back(last - begin);
      own.context_lens.push_back(step.context_lens[s] - (step.seq_starts[s + 1] - last));
      if (!step.state_slots.empty()) own.state_slots.push_back(step.state_slots[s]);
      for (size_t g = 0; g < step.groups.size(); ++g) {
        const GroupTables& group = step.groups[g];
        const auto row = group.block_tables.begin() + int64_t{seq} * group.max_blocks;
        own.groups[g].block_tables.insert(own.groups[g].block_tables.end(), row, row + group.max_blocks);
      }
    }
    for (const int32_t row : step.logit_rows) {
      if (row >= begin && row < end) own.logit_rows.push_back(row - begin);
    }
  }
  return cuts;
}

}  // namespace tensorwright
