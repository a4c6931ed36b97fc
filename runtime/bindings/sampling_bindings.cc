// Sampling, the parameters of a request, in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "runtime/bindings/adapters.h"
#include "runtime/bindings/bindings.h"
#include "runtime/bindings/conversions.h"
#include "runtime/bindings/python_rows.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/sampling/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

namespace {

using Ints = std::vector<int32_t>;

struct PyDryBreakers {
  std::shared_ptr<const DryBreakers> breakers;
};

// Sets the seed. An int out of range is an error that names the seed: taking its low bits would change the
// seed silently.
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

constexpr std::array<const char*, 3> kEarlyStopping = {"no", "yes", "never"};

std::string early_stopping(const Sampling& sampling) {
  return kEarlyStopping[static_cast<size_t>(sampling.early_stopping)];
}

void set_early_stopping(Sampling& sampling, const std::string& name) {
  const auto found = std::ranges::find(kEarlyStopping, name);
  if (found == kEarlyStopping.end()) {
    throw Error("InvalidRequestError",
                "[request] early_stopping must be no, yes or never, got '" + name + "'; use one of them");
  }
  sampling.early_stopping = static_cast<EarlyStopping>(found - kEarlyStopping.begin());
}

constexpr std::array<const char*, 3> kPooling = {"none", "last", "mean"};

std::string pooling(const Sampling& sampling) { return kPooling[static_cast<size_t>(sampling.pooling)]; }

void set_pooling(Sampling& sampling, const std::string& name) {
  const auto found = std::ranges::find(kPooling, name);
  if (found == kPooling.end()) {
    throw Error("InvalidRequestError",
                "[request] pooling must be none, last or mean, got '" + name + "'; use one of them");
  }
  sampling.pooling = static_cast<Pooling>(found - kPooling.begin());
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<PyDryBreakers>(m, "DryBreakers", "The sequence breakers of DRY, which many requests may share.")
      .def(
          "__init__",
          [](PyDryBreakers* self, std::vector<std::pair<Ints, Ints>> spellings) {
            std::vector<DryBreakers::Spelling> given;
            for (auto& [tail, heads] : spellings) given.push_back({std::move(tail), std::move(heads)});
            new (self) PyDryBreakers{std::make_shared<const DryBreakers>(std::move(given))};
          },
          "spellings"_a, "(tail, heads): each of the tokens `heads` with the tokens `tail` behind it");
  nb::class_<Sampling>(m, "Sampling", "How one request is sampled, and when it ends.")
      .def(nb::init<>())
      .def_rw("n", &Sampling::n, "completions; number i draws with completion_seed(seed, i)")
      .def_rw("beam_width", &Sampling::beam_width, "above 1: the completions are the best of a beam search")
      .def_rw("length_penalty", &Sampling::length_penalty, "a beam's score is its sum / length ^ this")
      .def_prop_rw(
          "early_stopping", &early_stopping, &set_early_stopping,
          "when a beam search with enough answers ends: 'no': when the best beam scores no better at its "
          "length, 'yes': at once, 'never': when no beam can come to score better")
      .def_rw("max_tokens", &Sampling::max_tokens)
      .def_rw("temperature", &Sampling::temperature, "0: greedy")
      .def_rw("top_k", &Sampling::top_k, "0 or -1: off")
      .def_rw("top_p", &Sampling::top_p, "1: off")
      .def_rw("min_p", &Sampling::min_p, "0: off")
      .def_rw("typical_p", &Sampling::typical_p, "1: off")
      .def_rw("xtc_threshold", &Sampling::xtc_threshold, "of the tokens at least so likely one is left")
      .def_rw("xtc_probability", &Sampling::xtc_probability, "0: off; how often")
      .def_rw("dry_multiplier", &Sampling::dry_multiplier, "0: off")
      .def_rw("dry_base", &Sampling::dry_base)
      .def_rw("dry_allowed_length", &Sampling::dry_allowed_length, "the longest repetition that is free")
      .def_rw("dry_penalty_last_n", &Sampling::dry_penalty_last_n, "tokens to look back; -1: all, 0: off")
      .def_prop_rw(
          "dry_breakers", [](const Sampling& s) { return PyDryBreakers{s.dry_breakers}; },
          [](Sampling& s, const PyDryBreakers* breakers) {
            s.dry_breakers = breakers ? breakers->breakers : nullptr;
          },
          nb::for_setter(nb::arg("breakers").none()), "across which nothing repeats; None: there are none")
      .def_rw("no_repeat_ngram_size", &Sampling::no_repeat_ngram_size, "0: off")
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
      .def_rw("tenant", &Sampling::tenant,
              "of equal priorities, those of the tenant start first that has had the least for its weight")
      .def_rw("tenant_weight", &Sampling::tenant_weight, "0.001 to 1000")
      .def_rw("deadline_s", &Sampling::deadline_s,
              "from arrival to the end, negative: none; what cannot end by then ends with DeadlineError")
      .def_rw("ignore_eos", &Sampling::ignore_eos)
      .def_rw("logprobs", &Sampling::logprobs,
              "-1: none, 0: of the sampled token, n: of the n likeliest as well")
      .def_rw("prompt_logprobs", &Sampling::prompt_logprobs, "the same of each prompt token but the first")
      .def_rw("cache_salt", &Sampling::cache_salt,
              "what the prefix cache remembers of it is found by requests with the same alone")
      .def_prop_rw(
          "adapter",
          [](const Sampling& s) -> std::optional<PyAdapter> {
            if (!s.adapter) return std::nullopt;
            return PyAdapter{s.adapter};
          },
          [](Sampling& s, const PyAdapter* adapter) { s.adapter = adapter ? adapter->adapter : nullptr; },
          nb::for_setter(nb::arg("adapter").none()),
          "an adapter that the engine has made; None: the model alone")
      .def_prop_rw(
          "processor",
          [](const Sampling& s) -> nb::object {
            const auto* rows = dynamic_cast<const PythonRows*>(s.processor.get());
            return rows ? rows->chain() : nb::none();
          },
          [](Sampling& s, nb::object chain) {
            s.processor = chain.is_none() ? nullptr : std::make_shared<const PythonRows>(std::move(chain));
          },
          nb::for_setter(nb::arg("chain").none()),
          "called with int32 [tokens] and float32 [vocab] before each draw, it changes the latter in place")
      .def_prop_rw(
          "pooling", &pooling, &set_pooling,
          "'none': tokens are wanted; 'last' or 'mean': the row of the last position, or the mean of all")
      .def_rw("pooled_columns", &Sampling::pooled_columns, "of the pooled row, in this order; []: all")
      .def_rw("guided", &Sampling::guided, "no token is sampled before its mask was set");
}

}  // namespace tensorwright
