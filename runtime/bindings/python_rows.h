// Logits processors that are written in Python.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_ROWS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_ROWS_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <span>

#include "runtime/core/scheduler/row_processor.h"

namespace tensorwright {

// It calls chain(token_ids, row) for each row, with int32 [tokens], which is read-only, and float32
// [vocab_size], which the chain changes in place. Both live as long as Python keeps them. The GIL is taken
// once for all rows. An exception of Python becomes an Error: a LogitsProcessorError with its words.
class PythonRows final : public RowProcessor {
 public:
  // Must be called with the GIL held.
  explicit PythonRows(nanobind::object chain);
  // Any thread may call it, with the GIL or without it, and with any mutex held: it does not wait for the
  // GIL. The chain is released by the next thread that has it here or calls release_dropped().
  ~PythonRows() override;

  void process(std::span<ProcessedRow> rows) const override;
  const nanobind::object& chain() const { return chain_; }

  // Returns whether the caller is inside a processor: it is then the thread of an engine, which cannot wait
  // for itself.
  static bool calls_here();
  // Releases the chains of requests that have ended. Must be called with the GIL held.
  static void release_dropped();

 private:
  void process_one(ProcessedRow& row) const;

  nanobind::object chain_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_PYTHON_ROWS_H_
