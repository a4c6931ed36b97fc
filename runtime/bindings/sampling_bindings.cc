// Sampling in Python, and the sampler alone for its tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/sampling/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

LogprobTuples to_tuples(const std::vector<TokenLogprob>& logprobs) {
  LogprobTuples tuples;
  for (const TokenLogprob& entry : logprobs) tuples.emplace_back(entry.token, entry.logprob, entry.rank);
  return tuples;
}

MaskWords to_mask(nb::handle bits, const char* what) {
  nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(bits, array, false)) return MaskWords(array.data(), array.data() + array.size());
  throw Error("InvalidRequestError", std::string("[request] ") + what +
                                         " must be a contiguous one-dimensional uint32 array, got " +
                                         nb::repr(bits.type()).c_str() + "; convert it");
}

namespace {

using Ints = std::vector<int32_t>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The engine's own are valid; what a caller of the sampler alone gives is checked.
History history(const Row& logits, const Ints& tokens, int32_t prompt_tokens) {
  bool known = std::ranges::all_of(
      tokens, [&](int32_t token) { return token >= 0 && static_cast<size_t>(token) < logits.size(); });
  if (!known || prompt_tokens < 0 || static_cast<size_t>(prompt_tokens) > tokens.size())
    throw Error("InvalidRequestError",
                "[sampler] tokens must be ids of the row, and hold the prompt; they do not");
  return {tokens, prompt_tokens};
}

// None: no mask.
MaskWords mask_of(const Row& logits, nb::handle bits) {
  if (bits.is_none()) return {};
  MaskWords words = to_mask(bits, "mask");
  if (words.size() == mask_words(static_cast<int32_t>(logits.size()))) return words;
  throw Error("InvalidRequestError", "[sampler] mask must have a bit for each of the row's values; it has " +
                                         std::to_string(words.size()) + " words of 32 for " +
                                         std::to_string(logits.size()));
}

// Any Python int by its low bits would be a silent change of the seed; out of range is an error by name.
void set_seed(Sampling& sampling, nb::handle seed) {
  if (seed.is_none()) {
    sampling.seed.reset();
    return;
  }
  uint64_t value = 0;
  if (!nb::try_cast(seed, value)) {
    throw Error("InvalidRequestError", "[request] seed must be None or an int in [0, 2**64), got " +
                                           std::string(nb::repr(seed).c_str()) + "; use one in range");
  }
  sampling.seed = value;
}

void bind_parameters(nb::module_& m) {
  nb::class_<Sampling>(m, "Sampling", "How one request is sampled, and when it ends.")
      .def(nb::init<>())
      .def_rw("n", &Sampling::n, "completions; number i draws with completion_seed(seed, i)")
      .def_rw("max_tokens", &Sampling::max_tokens)
      .def_rw("temperature", &Sampling::temperature, "0: greedy")
      .def_rw("top_k", &Sampling::top_k, "0 or -1: off")
      .def_rw("top_p", &Sampling::top_p, "1: off")
      .def_rw("min_p", &Sampling::min_p, "0: off")
      .def_rw("min_tokens", &Sampling::min_tokens, "no end-of-sequence or stop token before so many")
      .def_rw("repetition_penalty", &Sampling::repetition_penalty, "1: off; over prompt and output")
      .def_rw("presence_penalty", &Sampling::presence_penalty, "0: off; over the output")
      .def_rw("frequency_penalty", &Sampling::frequency_penalty, "0: off; over the output")
      .def_rw("logit_bias", &Sampling::logit_bias, "(token, bias) pairs")
      .def_prop_rw(
          "bad_words", [](const Sampling& s) { return s.bad_words.words(); },
          [](Sampling& s, std::vector<Ints> words) { s.bad_words = BannedWords(std::move(words)); },
          "lists of tokens that must not occur")
      .def_prop_rw(
          "seed", [](const Sampling& s) { return s.seed; }, set_seed, nb::for_setter(nb::arg("seed").none()),
          "None: drawn once per request")
      .def_prop_rw(
          "stop_token_ids", [](const Sampling& s) { return s.stop_token_ids.ids(); },
          [](Sampling& s, Ints ids) { s.stop_token_ids = TokenSet(std::move(ids)); },
          "ascending; end the request even with ignore_eos")
      .def_prop_rw(
          "eos_token_ids", [](const Sampling& s) { return s.eos_token_ids.ids(); },
          [](Sampling& s, Ints ids) { s.eos_token_ids = TokenSet(std::move(ids)); }, "ascending")
      .def_rw("timeout_s", &Sampling::timeout_s, "from arrival to the end, negative: none")
      .def_rw("priority", &Sampling::priority, "higher ones start first")
      .def_rw("ignore_eos", &Sampling::ignore_eos)
      .def_rw("logprobs", &Sampling::logprobs,
              "-1: none, 0: of the sampled token, n: of the n likeliest as well")
      .def_rw("prompt_logprobs", &Sampling::prompt_logprobs, "the same of each prompt token but the first")
      .def_rw("cache_salt", &Sampling::cache_salt,
              "what the prefix cache remembers of it is found by requests with the same alone")
      .def_rw("guided", &Sampling::guided, "no token is sampled before its mask was set");
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
      [](Row logits, const Sampling& sampling, const Ints& tokens, int32_t prompt_tokens, nb::handle mask) {
        return Sampler().token_set({logits.data(), logits.size()}, sampling,
                                   history(logits, tokens, prompt_tokens), mask_of(logits, mask));
      },
      "logits"_a, "sampling"_a, "tokens"_a = Ints(), "prompt_tokens"_a = 0, "mask"_a = nb::none(),
      "The ids of float32 [vocab] that may be drawn after `tokens`, ascending.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  bind_parameters(m);
  bind_sampler(m);
}

}  // namespace tensorwright
