#include "runtime/bindings/prefix_transfers.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

namespace {

std::span<const int32_t> span_of(const PrefixTransfers::Tokens& tokens) {
  return {tokens.data(), tokens.size()};
}

std::span<const char> span_of(const PrefixTransfers::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<char> span_of(const PrefixTransfers::Room& room) {
  return {reinterpret_cast<char*>(room.data()), room.size()};
}

std::vector<PrefixPiece> pieces_of(const PrefixTransfers::Pieces& pieces) {
  std::vector<PrefixPiece> found(pieces.shape(0));
  const int32_t* at = pieces.data();
  for (PrefixPiece& piece : found) {
    piece.group = *at++;
    piece.index = *at++;
  }
  return found;
}

PrefixTransfers::NumpyPieces to_numpy(const std::vector<PrefixPiece>& pieces) {
  auto values = std::make_unique<int32_t[]>(pieces.size() * 2);
  int32_t* at = values.get();
  for (const PrefixPiece& piece : pieces) {
    *at++ = piece.group;
    *at++ = piece.index;
  }
  int32_t* data = values.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
  return PrefixTransfers::NumpyPieces(data, {pieces.size(), 2}, owner);
}

}  // namespace

void PrefixTransfers::visit(const std::function<void(EngineCore&)>& work, size_t bytes,
                            double timeout_s) const {
  nb::gil_scoped_release release;
  const std::shared_ptr<RunningEngine> running = engine_.lock();
  if (!running || !running->is_here())
    throw Error("EngineStoppedError", "[engine] a transfer needs a running engine of this process, got none");
  running->engine->between_steps(work, bytes, timeout_s);
}

Facts PrefixTransfers::layout() const {
  Facts d;
  d["block_size"] = facts_.block_size;
  d["block_bytes"] = facts_.block_bytes;
  d["windows"] = facts_.group_windows;
  d["state_bytes"] = facts_.state_bytes;
  return d;
}

std::tuple<int32_t, bool> PrefixTransfers::extent(const Tokens& prompt, const std::string& salt,
                                                  double timeout_s) const {
  PrefixExtent extent;
  visit([&](EngineCore& core) { extent = core.transfer().extent(span_of(prompt), salt); }, 0, timeout_s);
  return {extent.blocks, extent.state};
}

void PrefixTransfers::read(const Tokens& tokens, const std::string& salt, const Pieces& pieces,
                           const Room& out, double timeout_s) const {
  const std::vector<PrefixPiece> wanted = pieces_of(pieces);
  visit([&](EngineCore& core) { core.transfer().read(span_of(tokens), salt, wanted, span_of(out)); },
        out.size(), timeout_s);
}

void PrefixTransfers::read_state(const Tokens& tokens, const std::string& salt, const Room& out,
                                 double timeout_s) const {
  visit([&](EngineCore& core) { core.transfer().read_state(span_of(tokens), salt, span_of(out)); },
        out.size(), timeout_s);
}

std::tuple<int64_t, PrefixTransfers::NumpyPieces, bool> PrefixTransfers::begin(const Tokens& tokens,
                                                                               const std::string& salt,
                                                                               double timeout_s) const {
  PrefixNeeds needs;
  visit([&](EngineCore& core) { needs = core.transfer().begin(span_of(tokens), salt); }, 0, timeout_s);
  return {needs.import, to_numpy(needs.pieces), needs.state};
}

void PrefixTransfers::write(int64_t import, const Pieces& pieces, const Bytes& bytes,
                            double timeout_s) const {
  const std::vector<PrefixPiece> given = pieces_of(pieces);
  visit([&](EngineCore& core) { core.transfer().write(import, given, span_of(bytes)); }, bytes.size(),
        timeout_s);
}

void PrefixTransfers::finish(int64_t import, const Bytes& states, double timeout_s) const {
  visit([&](EngineCore& core) { core.transfer().finish(import, span_of(states)); }, states.size(), timeout_s);
}

void PrefixTransfers::drop(int64_t import, double timeout_s) const {
  visit([&](EngineCore& core) { core.transfer().drop(import); }, 0, timeout_s);
}

int64_t PrefixTransfers::imports(double timeout_s) const {
  int64_t imports = 0;
  visit([&](EngineCore& core) { imports = static_cast<int64_t>(core.transfer().imports()); }, 0, timeout_s);
  return imports;
}

int32_t PrefixTransfers::pin(int64_t number, const Tokens& tokens, const std::string& salt,
                             double timeout_s) const {
  int32_t found = 0;
  visit([&](EngineCore& core) { found = core.pins().pin(number, span_of(tokens), salt); }, 0, timeout_s);
  return found;
}

void PrefixTransfers::unpin(int64_t number, double timeout_s) const {
  visit([&](EngineCore& core) { core.pins().unpin(number); }, 0, timeout_s);
}

void bind_prefix_transfers(nb::module_& m) {
  nb::class_<PrefixTransfers>(m, "PrefixTransfers",
                              "Prefixes of an engine's cache, to give to other engines, to take from them, "
                              "and to pin. Each call runs "
                              "between two steps and waits for that at most timeout_s.")
      .def("layout", &PrefixTransfers::layout,
           "block_size, block_bytes and windows by cache group, and state_bytes.")
      .def(
          "extent", &PrefixTransfers::extent, "prompt"_a, "salt"_a, "timeout_s"_a,
          "(blocks, state): the full blocks that a sequence can go on behind, and whether states are behind.")
      .def("read", &PrefixTransfers::read, "tokens"_a, "salt"_a, "pieces"_a, "out"_a, "timeout_s"_a,
           "Fills out, uint8, with pieces, int32 [n, 2] of (group, block), one behind the other.")
      .def("read_state", &PrefixTransfers::read_state, "tokens"_a, "salt"_a, "out"_a, "timeout_s"_a,
           "Fills out, uint8, with the states behind all of tokens.")
      .def("begin", &PrefixTransfers::begin, "tokens"_a, "salt"_a, "timeout_s"_a,
           "(import, pieces, state): begins an import, and says what it needs.")
      .def("write", &PrefixTransfers::write, "import_"_a, "pieces"_a, "bytes"_a, "timeout_s"_a,
           "Puts pieces into free blocks. A failure drops the import.")
      .def("finish", &PrefixTransfers::finish, "import_"_a, "states"_a, "timeout_s"_a,
           "Remembers the prefix; states are empty if none were needed. A failure drops the import.")
      .def("drop", &PrefixTransfers::drop, "import_"_a, "timeout_s"_a, "Forgets an import, if it is there.")
      .def("imports", &PrefixTransfers::imports, "timeout_s"_a, "The number of imports under way.")
      .def("pin", &PrefixTransfers::pin, "number"_a, "tokens"_a, "salt"_a, "timeout_s"_a,
           "Keeps the full blocks of tokens from being evicted, and returns how many of them the cache has; "
           "if "
           "it lacks some, nothing is pinned.")
      .def("unpin", &PrefixTransfers::unpin, "number"_a, "timeout_s"_a, "Ends a pin, if it is there.");
}

}  // namespace tensorwright
