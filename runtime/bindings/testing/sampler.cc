// The sampler alone in Python, for tests and benchmarks.
#include "runtime/core/sampling/sampler.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "runtime/bindings/conversions.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/philox.h"
#include "runtime/core/base/thread_team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Ints = std::vector<int32_t>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Checks the tokens that a caller of the sampler alone gives. The engine's own tokens are always valid.
History history(const Row& logits, const Ints& tokens, int32_t prompt_tokens) {
  bool known = std::ranges::all_of(
      tokens, [&](int32_t token) { return token >= 0 && static_cast<size_t>(token) < logits.size(); });
  if (!known || prompt_tokens < 0 || static_cast<size_t>(prompt_tokens) > tokens.size())
    throw Error("InvalidRequestError",
                "[sampler] tokens must be ids of the row, and hold the prompt; they do not");
  return {tokens, prompt_tokens};
}

// Returns the mask; None means no mask.
MaskWords mask_of(const Row& logits, nb::handle bits) {
  if (bits.is_none()) return {};
  MaskWords words = to_mask(bits, "mask");
  if (words.size() == mask_words(static_cast<int32_t>(logits.size()))) return words;
  throw Error("InvalidRequestError", "[sampler] mask must have a bit for each of the row's values; it has " +
                                         std::to_string(words.size()) + " words of 32 for " +
                                         std::to_string(logits.size()));
}

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Draws from the rows of a step as an engine does: on threads, each with a sampler that it keeps.
class RowSampler {
 public:
  explicit RowSampler(int threads) : team_(threads), samplers_(static_cast<size_t>(team_.threads())) {}

  Ints sample(const Rows& logits, const Sampling& sampling, uint64_t seed, int64_t position) {
    const size_t vocab = logits.shape(1);
    Ints tokens(logits.shape(0));
    nb::gil_scoped_release release;
    team_.run(static_cast<int>(tokens.size()), [&](int row, int thread) {
      const DenormalGuard guard(false);
      const auto i = static_cast<size_t>(row);
      tokens[i] = samplers_[static_cast<size_t>(thread)]
                      .sample({logits.data() + i * vocab, vocab}, sampling, seed, position + row)
                      .token;
    });
    return tokens;
  }

 private:
  ThreadTeam team_;
  std::vector<Sampler> samplers_;
};

void bind_sampler(nb::module_& m) {
  nb::class_<RowSampler>(m, "RowSampler", "Draws from the rows of a step on threads, for benchmarks.")
      .def(nb::init<int>(), "threads"_a)
      .def("sample", &RowSampler::sample, "logits"_a, "sampling"_a, "seed"_a, "position"_a,
           "A token of each row of float32 [rows, vocab]; row i is drawn at position + i.");
  m.def(
      "philox_uniform",
      [](uint64_t seed, int64_t position) { return philox_uniform(seed, static_cast<uint64_t>(position)); },
      "seed"_a, "position"_a, "The number in [0, 1) that a token is drawn with.");
  m.def("completion_seed", &completion_seed, "seed"_a, "completion"_a, "What a completion draws with.");
  m.def(
      "sample",
      [](Row logits, const Sampling& sampling, uint64_t seed, int64_t position, const Ints& tokens,
         int32_t prompt_tokens, nb::handle mask) {
        Sample sample = Sampler().sample({logits.data(), logits.size()}, sampling, seed, position,
                                         history(logits, tokens, prompt_tokens), mask_of(logits, mask));
        return std::make_tuple(sample.token, to_tuples(sample.logprobs));
      },
      "logits"_a, "sampling"_a, "seed"_a, "position"_a, "tokens"_a = Ints(), "prompt_tokens"_a = 0,
      "mask"_a = nb::none(), "One draw from float32 [vocab]: (token, logprobs).");
  m.def(
      "token_set",
      [](Row logits, const Sampling& sampling, const Ints& tokens, int32_t prompt_tokens, nb::handle mask,
         double coin) {
        return Sampler().token_set({logits.data(), logits.size()}, sampling,
                                   history(logits, tokens, prompt_tokens), mask_of(logits, mask), coin);
      },
      "logits"_a, "sampling"_a, "tokens"_a = Ints(), "prompt_tokens"_a = 0, "mask"_a = nb::none(),
      "coin"_a = 1.0,
      "The ids of float32 [vocab] that may be drawn after `tokens`, ascending. XTC excludes tokens if its "
      "probability is above `coin`.");
}

const RegisteredBindings registered_sampler(&bind_sampler);

}  // namespace
}  // namespace tensorwright
