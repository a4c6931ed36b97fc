// The interface of the caller's own code that changes a row of logits before a token is drawn from it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ROW_PROCESSOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_ROW_PROCESSOR_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

namespace tensorwright {

class RowProcessor;

struct ProcessedRow {
  const RowProcessor* processor;
  std::span<const int32_t> tokens;          // of the sequence so far, with its prompt
  std::shared_ptr<std::vector<float>> row;  // [vocab_size], a copy of the logits, which the processor changes
  std::exception_ptr error = nullptr;       // what the processor threw
};

class RowProcessor {
 public:
  virtual ~RowProcessor() = default;
  // Runs the processor of each row on it. All of them are of the class of this one. The engine's loop calls
  // it once for all rows that it draws from together. It throws nothing of one row: that is its error.
  virtual void process(std::span<ProcessedRow> rows) const = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_PROCESSOR_H_
