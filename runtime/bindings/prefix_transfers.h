// Prefixes of an engine's cache in Python: what it gives to other engines and takes from them.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_PREFIX_TRANSFERS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_PREFIX_TRANSFERS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/live_engines.h"

namespace tensorwright {

// Does not keep the engine alive. Every call waits for the engine's loop without the GIL, at most timeout_s,
// and throws what Engine::between_steps and PrefixTransfer throw; EngineStoppedError if the engine is gone.
class PrefixTransfers {
 public:
  using Tokens =
      nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  // [pieces, 2]: group and index of each.
  using Pieces =
      nanobind::ndarray<const int32_t, nanobind::shape<-1, 2>, nanobind::c_contig, nanobind::device::cpu>;
  using Bytes =
      nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  using Room = nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  using NumpyPieces = nanobind::ndarray<nanobind::numpy, int32_t, nanobind::ndim<2>>;

  explicit PrefixTransfers(const std::shared_ptr<RunningEngine>& engine)
      : engine_(engine), facts_(engine->engine->facts()) {}

  // Returns block_size, block_bytes and windows by cache group, and state_bytes.
  Facts layout() const;

  // Returns the number of blocks, and whether there are states behind them.
  std::tuple<int32_t, bool> extent(const Tokens& prompt, const std::string& salt, double timeout_s) const;
  void read(const Tokens& tokens, const std::string& salt, const Pieces& pieces, const Room& out,
            double timeout_s) const;
  void read_state(const Tokens& tokens, const std::string& salt, const Room& out, double timeout_s) const;
  // Returns the import's number, the pieces that it needs, and whether it needs the states.
  std::tuple<int64_t, NumpyPieces, bool> begin(const Tokens& tokens, const std::string& salt,
                                               double timeout_s) const;
  void write(int64_t import, const Pieces& pieces, const Bytes& bytes, double timeout_s) const;
  void finish(int64_t import, const Bytes& states, double timeout_s) const;
  void drop(int64_t import, double timeout_s) const;
  int64_t imports(double timeout_s) const;
  // See PrefixPins.
  int32_t pin(int64_t number, const Tokens& tokens, const std::string& salt, double timeout_s) const;
  void unpin(int64_t number, double timeout_s) const;

 private:
  void visit(const std::function<void(EngineCore&)>& work, size_t bytes, double timeout_s) const;

  std::weak_ptr<RunningEngine> engine_;
  const ModelFacts facts_;
};

void bind_prefix_transfers(nanobind::module_& m);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_PREFIX_TRANSFERS_H_
