#include "runtime/core/ranks/parallel_executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/core/base/concat.h"

namespace tensorwright {
namespace {

enum Tag : uint32_t { kLength = 1, kCommand, kFacts, kLogits, kTimes };
enum Command : int32_t { kAllocate = 1, kRun, kCopyBlock, kCopyState, kEnd };

// A message of ints has a head of fixed size: how many there are, and their checksum.
struct Length {
  uint64_t ints;
  uint64_t sum;
};

constexpr uint64_t kMostInts = uint64_t{1} << 30;

}  // namespace

int32_t RankWork::microbatches(int32_t tokens) const {
  if (place_.stages == 1) return 1;
  return std::clamp(tokens / kLeastTokens, 1, 2 * place_.stages);
}

// A stage may lack the last cache groups of the model.
Step RankWork::own_part(Step step) const {
  step.groups.resize(own_->facts().block_bytes.size());
  if (own_->facts().state_bytes == 0) step.state_slots.clear();
  return step;
}

void RankWork::allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                        int32_t max_seqs, int32_t state_slots) {
  std::vector<int32_t> own(blocks);
  own.resize(own_->facts().block_bytes.size());
  own_->allocate(own, max_tokens, max_rows, max_seqs, own_->facts().state_bytes > 0 ? state_slots : 0);
}

LogitRows RankWork::run(const Step& step, bool timed, Timeline* timeline) {
  const int32_t vocab = own_->facts().columns();
  const std::vector<Step> parts = cut_step(step, microbatches(step.tokens()));
  const bool last = place_.stage() + 1 == place_.stages, gives = last && place_.number() == 0;
  if (parts.size() == 1 && place_.stages == 1) return own_->run(own_part(step));
  const auto size = static_cast<size_t>(step.rows()) * static_cast<size_t>(vocab);
  logits_.resize(gives || place_.ranks->rank() == 0 ? size : 0);
  float* to = logits_.data();
  std::vector<int64_t> times;  // begin, end and tokens of every microbatch
  for (const Step& part : parts) {
    const int64_t begin = Timeline::now();
    const LogitRows rows = own_->run(own_part(part));
    for (const int64_t value :
         {std::max(begin, place_.ranks->received_at()), Timeline::now(), int64_t{part.tokens()}})
      times.push_back(value);
    for (int32_t row = 0; gives && row < rows.rows; ++row, to += vocab)
      std::copy_n(rows.data + row * rows.stride, vocab, to);
  }
  // The first stage has no hands free for logits before it has sent its last microbatch, so they go at the
  // end.
  const size_t bytes = size * sizeof(float);
  const int giver = (place_.stages - 1) * place_.tensor;
  if (gives) {
    const Outgoing out[] = {{0, logits_.data(), bytes}};
    place_.ranks->exchange(kLogits, out, {});
  } else if (place_.ranks->rank() == 0) {
    const Incoming in[] = {{giver, logits_.data(), bytes}};
    place_.ranks->exchange(kLogits, {}, in);
  }
  if (timed && place_.number() == 0) tell_times(times, timeline);
  return {logits_.data(), vocab, step.rows()};
}

// The first rank of each stage tells rank 0 when it computed.
void RankWork::tell_times(const std::vector<int64_t>& times, Timeline* timeline) const {
  const size_t bytes = times.size() * sizeof(int64_t);
  if (place_.stage() > 0) {
    const Outgoing out[] = {{0, times.data(), bytes}};
    place_.ranks->exchange(kTimes, out, {});
    return;
  }
  std::vector<int64_t> theirs(times);
  for (int stage = 0; stage < place_.stages; ++stage) {
    if (stage > 0) {
      const Incoming in[] = {{stage * place_.tensor, theirs.data(), bytes}};
      place_.ranks->exchange(kTimes, {}, in);
    }
    for (size_t i = 0; i + 2 < theirs.size(); i += 3) {
      Span span{theirs[i], theirs[i + 1], static_cast<int64_t>(i / 3), SpanKind::kMicrobatch, stage};
      span.a = static_cast<int32_t>(theirs[i + 2]);
      timeline->add(span);
    }
  }
}

void RankWork::copy_block(int32_t group, int32_t from, int32_t to) {
  if (static_cast<size_t>(group) < own_->facts().block_bytes.size()) own_->copy_block(group, from, to);
}

void RankWork::copy_state(int32_t from, int32_t to) {
  if (own_->facts().state_bytes > 0) own_->copy_state(from, to);
}

ParallelExecutor::ParallelExecutor(std::shared_ptr<Ranks> ranks, std::unique_ptr<Executor> own,
                                   RankPlace place, uint64_t fingerprint, std::shared_ptr<Timeline> timeline)
    : ranks_(std::move(ranks)), work_(std::move(own), place), timeline_(std::move(timeline)) {
  join_facts(fingerprint);
}

void ParallelExecutor::end_thread() noexcept {
  if (std::exchange(ended_, true)) return;
  try {
    IntWriter command;
    command.add(int32_t{kEnd});
    tell(command);
  } catch (const std::exception&) {
    // The others have ended, or heard of a failure.
  }
}

// Every rank says what its part of the model is. A block takes as many bytes as on the rank that needs most.
void ParallelExecutor::join_facts(uint64_t fingerprint) {
  Ranks& ranks = *work_.place().ranks;
  facts_ = work_.own().facts();
  facts_.group_chunked.resize(facts_.block_bytes.size());  // an executor in Python says nothing of chunks
  facts_.group_sink_tokens.resize(facts_.block_bytes.size());
  for (int rank = 1; rank < ranks.size(); ++rank) {
    Length length{};
    const Incoming head[] = {{rank, &length, sizeof(length)}};
    ranks.exchange(kLength, {}, head, Patience::opening);
    std::vector<int32_t> ints(static_cast<size_t>(std::min(length.ints, kMostInts)));
    const Incoming body[] = {{rank, ints.data(), ints.size() * sizeof(int32_t)}};
    ranks.exchange(kFacts, {}, body);
    IntReader reader(ints);
    if (const auto theirs = static_cast<uint64_t>(reader.next_long()); theirs != fingerprint) {
      const std::string why = concat("[ranks] rank ", rank, " has opened another engine than rank 0");
      ranks.fail(why);
      throw RankError(why);
    }
    const ModelFacts theirs = read_facts(reader);
    facts_.state_bytes = std::max(facts_.state_bytes, theirs.state_bytes);
    facts_.chunk_multiple = std::max(facts_.chunk_multiple, theirs.chunk_multiple);
    for (size_t g = 0; g < theirs.block_bytes.size(); ++g) {
      if (g == facts_.block_bytes.size()) {
        facts_.block_bytes.push_back(0);
        facts_.group_windows.push_back(0);
        facts_.group_chunked.push_back(0);
        facts_.group_sink_tokens.push_back(0);
      }
      if (theirs.block_bytes[g] == 0) continue;
      facts_.block_bytes[g] = std::max(facts_.block_bytes[g], theirs.block_bytes[g]);
      facts_.group_windows[g] = theirs.group_windows[g];
      facts_.group_chunked[g] = theirs.group_chunked[g];
      facts_.group_sink_tokens[g] = theirs.group_sink_tokens[g];
    }
  }
}

void ParallelExecutor::tell(const IntWriter& command) {
  Ranks& ranks = *work_.place().ranks;
  const std::vector<int32_t>& ints = command.ints();
  const Length length{ints.size(), checksum(ints)};
  std::vector<Outgoing> heads, bodies;
  for (int rank = 1; rank < ranks.size(); ++rank) {
    heads.push_back({rank, &length, sizeof(length)});
    bodies.push_back({rank, ints.data(), ints.size() * sizeof(int32_t)});
  }
  ranks.exchange(kLength, heads, {});
  ranks.exchange(kCommand, bodies, {});
}

// Does this rank's part of what all were told. A fault of one rank leaves the others waiting for it, so it is
// the end of all.
template <typename Work>
auto ParallelExecutor::together(Work&& work) {
  try {
    return work();
  } catch (const RankError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = concat("[ranks] rank 0 failed: ", error.what());
    work_.place().ranks->fail(why);
    throw RankError(why);
  }
}

void ParallelExecutor::allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                                int32_t max_seqs, int32_t state_slots) {
  IntWriter command;
  command.add(int32_t{kAllocate});
  command.add(blocks);
  for (const int32_t limit : {max_tokens, max_rows, max_seqs, state_slots}) command.add(limit);
  tell(command);
  together([&] { work_.allocate(blocks, max_tokens, max_rows, max_seqs, state_slots); });
}

LogitRows ParallelExecutor::run(const Step& step) {
  IntWriter command;
  command.add(int32_t{kRun});
  command.add(steps_++);
  const bool timed = timeline_ && !timeline_->full();
  command.add(int32_t{timed});
  write_step(step, command);
  tell(command);
  return together([&] { return work_.run(step, timed, timeline_.get()); });
}

void ParallelExecutor::copy_block(int32_t group, int32_t from, int32_t to) {
  IntWriter command;
  for (const int32_t value : {int32_t{kCopyBlock}, group, from, to}) command.add(value);
  tell(command);
  together([&] { work_.copy_block(group, from, to); });
}

void ParallelExecutor::copy_state(int32_t from, int32_t to) {
  IntWriter command;
  for (const int32_t value : {int32_t{kCopyState}, from, to}) command.add(value);
  tell(command);
  together([&] { work_.copy_state(from, to); });
}

namespace {

void say_facts(const Executor& own, Ranks& ranks, uint64_t fingerprint) {
  IntWriter facts;
  facts.add(static_cast<int64_t>(fingerprint));
  write_facts(own.facts(), facts);
  const Length length{facts.ints().size(), checksum(facts.ints())};
  const Outgoing head[] = {{0, &length, sizeof(length)}};
  ranks.exchange(kLength, head, {});
  const Outgoing body[] = {{0, facts.ints().data(), facts.ints().size() * sizeof(int32_t)}};
  ranks.exchange(kFacts, body, {});
}

std::vector<int32_t> hear(Ranks& ranks) {
  Length length{};
  const Incoming head[] = {{0, &length, sizeof(length)}};
  ranks.exchange(kLength, {}, head, Patience::idle);
  std::vector<int32_t> ints(static_cast<size_t>(std::min(length.ints, kMostInts)));
  const Incoming body[] = {{0, ints.data(), ints.size() * sizeof(int32_t)}};
  ranks.exchange(kCommand, {}, body);
  if (checksum(ints) != length.sum)
    throw RankError(concat("[ranks] rank ", ranks.rank(), " got another step than rank 0 sent"));
  return ints;
}

// Returns false for the last command.
bool obey(RankWork& work, std::span<const int32_t> ints, int32_t* steps) {
  IntReader command(ints);
  switch (command.next()) {
    case kAllocate: {
      const std::vector<int32_t> blocks = command.list();
      int32_t limits[4];
      for (int32_t& limit : limits) limit = command.next();
      work.allocate(blocks, limits[0], limits[1], limits[2], limits[3]);
      return true;
    }
    case kRun:
      if (command.next() != (*steps)++) throw RankError("[ranks] a step was lost on its way");
      {
        const bool timed = command.next() != 0;
        work.run(read_step(command), timed);
      }
      return true;
    case kCopyBlock: {
      const int32_t group = command.next(), from = command.next();
      work.copy_block(group, from, command.next());
      return true;
    }
    case kCopyState: {
      const int32_t from = command.next();
      work.copy_state(from, command.next());
      return true;
    }
    case kEnd:
      return false;
    default:
      throw RankError("[ranks] rank 0 sent a command that is not known");
  }
}

}  // namespace

void follow_ranks(std::unique_ptr<Executor> own, RankPlace place, uint64_t fingerprint) {
  RankWork work(std::move(own), place);
  work.own().begin_thread();
  try {
    say_facts(work.own(), *place.ranks, fingerprint);
    int32_t steps = 0;
    while (obey(work, hear(*place.ranks), &steps)) {
    }
  } catch (const std::exception& error) {
    const std::string why = concat("[ranks] rank ", place.ranks->rank(), " failed: ", error.what());
    place.ranks->fail(why);
    throw RankError(dynamic_cast<const RankError*>(&error) ? error.what() : why);
  }
}

}  // namespace tensorwright
