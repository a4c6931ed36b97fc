// What ranks do together. Rows go through packed memory, for buffers have padding behind each row.
//
// all_reduce: y = the sum of x over the ranks of a stage, in the order of ranks. Few numbers go whole to
//   every rank; of many, each rank sums a part and sends it to the others. Both give the same bits.
// all_gather: y = the columns of all ranks of a stage.
// send, receive: rows from one stage to the next.
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/core/interface/ranks.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

enum Tag : uint32_t { kWhole = 0x100, kParts, kSums, kColumns, kPlaces, kMessage = 0x1000 };

// Up to so many floats go whole to every rank: one exchange, where parts need two.
constexpr int64_t kFewFloats = 8192;

size_t as_size(int64_t n) { return static_cast<size_t>(n); }

void require_ranks(const InstructionCheck& c) {
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_float32("y", c.out(0));
}

// Copies rows without their padding.
void pack(const BufferRef& from, const StepView& view, float* to, ThreadTeam& team) {
  split_rows(team, from.rows(view), from.cols, [&](int32_t begin, int32_t end) {
    for (int32_t row = begin; row < end; ++row)
      std::memcpy(to + int64_t{row} * from.cols, from.floats(view, row), as_size(from.row_bytes()));
  });
}

void unpack(const float* from, const BufferRef& to, const StepView& view, ThreadTeam& team) {
  split_rows(team, to.rows(view), to.cols, [&](int32_t begin, int32_t end) {
    for (int32_t row = begin; row < end; ++row)
      std::memcpy(to.floats(view, row), from + int64_t{row} * to.cols, as_size(to.row_bytes()));
  });
}

// The most rows of a buffer in a step, and the bytes of so many rows.
int64_t most_rows(const BufferRef& buffer, const StepLimits& limits) {
  return buffer.kind == static_cast<int>(BufferKind::kTokens) ? limits.tokens : limits.rows;
}

size_t bytes_of(int64_t rows, int64_t cols, int64_t copies) {
  size_t bytes = 0;
  const bool fits =
      !__builtin_mul_overflow(as_size(rows) * as_size(copies), as_size(cols) * sizeof(float), &bytes);
  return fits ? bytes : std::numeric_limits<size_t>::max() / 2;
}

class AllReduce : public Operation {
 public:
  AllReduce(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        place_(context.place) {}

  size_t reserve(const StepLimits& limits, int) override {
    return bytes_of(most_rows(x_, limits), x_.cols, 2 * place_.tensor);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int64_t floats = int64_t{x_.rows(view)} * x_.cols;
    if (floats == 0) return;
    float* own = reinterpret_cast<float*>(view.scratch);
    pack(x_, view, own, team);
    if (floats <= kFewFloats) {
      sum_whole(own, floats, team);
    } else {
      sum_parts(own, floats, team);
    }
    unpack(own, y_, view, team);
  }

  // The rows of the others arrive in memory and are read once.
  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    return {(2 + 2 * place_.tensor) * rows * y_.row_bytes(), (place_.tensor - 1) * rows * y_.cols};
  }

 private:
  void sum_whole(float* own, int64_t floats, ThreadTeam& team) {
    float* others = own + floats;
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<const float*> terms;
    for (int i = 0; i < place_.tensor; ++i) {
      if (i == place_.number()) {
        terms.push_back(own);
        continue;
      }
      const size_t bytes = as_size(floats) * sizeof(float);
      out.push_back({place_.first() + i, own, bytes});
      in.push_back({place_.first() + i, others, bytes});
      terms.push_back(others);
      others += floats;
    }
    place_.ranks->exchange(kWhole, out, in);
    sum(terms, 0, floats, own, team);
  }

  void sum_parts(float* own, int64_t floats, ThreadTeam& team) {
    const int n = place_.tensor, me = place_.number();
    const auto begin = [&](int part) { return floats * part / n; };
    const auto size = [&](int part) { return begin(part + 1) - begin(part); };
    float* others = own + floats;
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<const float*> terms;
    for (int i = 0; i < n; ++i) {
      if (i == me) {
        terms.push_back(own + begin(me));
        continue;
      }
      out.push_back({place_.first() + i, own + begin(i), as_size(size(i)) * sizeof(float)});
      in.push_back({place_.first() + i, others, as_size(size(me)) * sizeof(float)});
      terms.push_back(others);
      others += size(me);
    }
    place_.ranks->exchange(kParts, out, in);
    sum(terms, 0, size(me), own + begin(me), team);
    for (size_t at = 0; at < out.size(); ++at) {
      const int i = out[at].rank - place_.first();
      out[at] = {out[at].rank, own + begin(me), as_size(size(me)) * sizeof(float)};
      in[at] = {in[at].rank, own + begin(i), as_size(size(i)) * sizeof(float)};
    }
    place_.ranks->exchange(kSums, out, in);
  }

  // One of the terms may be `total` itself.
  static void sum(const std::vector<const float*>& terms, int64_t begin, int64_t end, float* total,
                  ThreadTeam& team) {
    constexpr int64_t kBlock = 4096;
    const auto blocks = static_cast<int>((end - begin + kBlock - 1) / kBlock);
    team.run(blocks, [&](int block, int) {
      const int64_t from = begin + block * kBlock, to = std::min(end, from + kBlock);
      float sums[kBlock];
      std::copy(terms[0] + from, terms[0] + to, sums);
      for (size_t t = 1; t < terms.size(); ++t) {
        const float* term = terms[t] + from;
        for (int64_t i = 0; i < to - from; ++i) sums[i] += term[i];
      }
      std::copy(sums, sums + (to - from), total + from);
    });
  }

  BufferRef x_, y_;
  RankPlace place_;
};

class AllGather : public Operation {
 public:
  AllGather(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        first_(instruction.ints[0]),
        place_(context.place) {}

  // All ranks call it at the same time, and tell each other which columns they have.
  size_t reserve(const StepLimits& limits, int) override {
    const size_t n = as_size(place_.tensor);
    places_.assign(n, {});
    places_[as_size(place_.number())] = {first_, x_.cols};
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int i = 0; i < place_.tensor; ++i) {
      if (i == place_.number()) continue;
      out.push_back({place_.first() + i, &places_[as_size(place_.number())], sizeof(Columns)});
      in.push_back({place_.first() + i, &places_[as_size(i)], sizeof(Columns)});
    }
    place_.ranks->exchange(kPlaces, out, in);
    int32_t end = 0;
    for (const Columns& part : places_) {
      if (part.first != end || part.count < 0 || part.count > y_.cols - end)
        throw RankError(concat("[ranks] the columns of a join must follow each other to ", y_.cols, ", got ",
                               part.count, " from ", part.first, " on after ", end));
      end += part.count;
    }
    if (end != y_.cols) throw RankError(concat("[ranks] a join has ", end, " of ", y_.cols, " columns"));
    return bytes_of(most_rows(y_, limits), int64_t{y_.cols} + x_.cols, 1);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int64_t rows = y_.rows(view);
    if (rows == 0) return;
    float* own = reinterpret_cast<float*>(view.scratch);
    float* others = own + rows * x_.cols;
    pack(x_, view, own, team);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<const float*> parts;
    for (int i = 0; i < place_.tensor; ++i) {
      if (i == place_.number()) {
        parts.push_back(own);
        continue;
      }
      const int64_t floats = rows * places_[as_size(i)].count;
      out.push_back({place_.first() + i, own, as_size(rows * x_.cols) * sizeof(float)});
      in.push_back({place_.first() + i, others, as_size(floats) * sizeof(float)});
      parts.push_back(others);
      others += floats;
    }
    place_.ranks->exchange(kColumns, out, in);
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        for (size_t i = 0; i < parts.size(); ++i) {
          const auto [first, count] = places_[i];
          std::copy_n(parts[i] + int64_t{row} * count, count, y_.floats(view, row) + first);
        }
      }
    });
  }

  Cost cost(const StepView& view) const override { return {4 * y_.rows(view) * y_.row_bytes(), 0}; }

 private:
  struct Columns {
    int32_t first = 0, count = 0;
  };

  BufferRef x_, y_;
  int32_t first_;
  RankPlace place_;
  std::vector<Columns> places_;  // of every rank of the stage
};

class Send : public Operation {
 public:
  Send(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        message_(instruction.ints[0]),
        place_(context.place) {}

  size_t reserve(const StepLimits& limits, int) override {
    return bytes_of(most_rows(x_, limits), x_.cols, 1);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    float* rows = reinterpret_cast<float*>(view.scratch);
    pack(x_, view, rows, team);
    if (y_.at(view) != x_.at(view)) unpack(rows, y_, view, team);
    const size_t bytes = as_size(x_.rows(view)) * as_size(x_.row_bytes());
    const Outgoing out[] = {{place_.ranks->rank() + place_.tensor, rows, bytes}};
    place_.ranks->exchange(kMessage + static_cast<uint32_t>(message_), out, {});
  }

  Cost cost(const StepView& view) const override { return {3 * x_.rows(view) * x_.row_bytes(), 0}; }

 private:
  BufferRef x_, y_;
  int32_t message_;
  RankPlace place_;
};

class Receive : public Operation {
 public:
  Receive(const Instruction& instruction, const OpContext& context)
      : y_(context.buffer(instruction.out[0])), message_(instruction.ints[0]), place_(context.place) {}

  size_t reserve(const StepLimits& limits, int) override {
    return bytes_of(most_rows(y_, limits), y_.cols, 1);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    float* rows = reinterpret_cast<float*>(view.scratch);
    const size_t bytes = as_size(y_.rows(view)) * as_size(y_.row_bytes());
    const Incoming in[] = {{place_.ranks->rank() - place_.tensor, rows, bytes}};
    place_.ranks->exchange(kMessage + static_cast<uint32_t>(message_), {}, in);
    unpack(rows, y_, view, team);
  }

  Cost cost(const StepView& view) const override { return {3 * y_.rows(view) * y_.row_bytes(), 0}; }

 private:
  BufferRef y_;
  int32_t message_;
  RankPlace place_;
};

void check_message(const InstructionCheck& c) {
  const int32_t message = c.instruction.ints[0];
  c.require(message >= 0 && message < (1 << 16), "message must be 0 to ", (1 << 16) - 1, ", is ", message);
}

}  // namespace

void check_all_reduce(const InstructionCheck& c) {
  require_ranks(c);
  c.require_cols("x", c.in(0), c.out(0)->cols);
}

void check_all_gather(const InstructionCheck& c) {
  require_ranks(c);
  const int32_t first = c.instruction.ints[0];
  const uint64_t end = static_cast<uint64_t>(std::max(first, 0)) + c.in(0)->cols;
  c.require(first >= 0 && end <= c.out(0)->cols, "x must be columns of y from first on, is ", c.in(0)->cols,
            " from ", first, " on of ", c.out(0)->cols);
}

void check_send(const InstructionCheck& c) {
  require_ranks(c);
  check_message(c);
  c.require_kind("x", c.in(0), BufferKind::kTokens);
  c.require_cols("x", c.in(0), c.out(0)->cols);
}

void check_receive(const InstructionCheck& c) {
  check_message(c);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_float32("y", c.out(0));
}

std::unique_ptr<Operation> make_all_reduce(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<AllReduce>(instruction, context);
}

std::unique_ptr<Operation> make_all_gather(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<AllGather>(instruction, context);
}

std::unique_ptr<Operation> make_send(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Send>(instruction, context);
}

std::unique_ptr<Operation> make_receive(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Receive>(instruction, context);
}

}  // namespace tensorwright
