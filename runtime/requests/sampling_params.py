"""Defines SamplingParams, which say how one request is sampled and when it stops."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from tensorwright.number_checks import MAX_INT32, real
from tensorwright.runtime.base import parameter_checks as checks
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.parameter_checks import check, check_int, check_range
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.requests.logits_processors import LogitsProcessor

GUIDED = "GuidedDecodingParams or None"

Words = tuple[str | tuple[int, ...], ...] | list[str | list[int]]
Biases = dict[int, float] | tuple[tuple[int, float], ...]


class AtMost(int):
    """A max_tokens that is only a default. If there is less room it is reduced, where a plain number is refused."""


@dataclass(frozen=True)
class SamplingParams(StrictKeywords):
    """The sampling parameters of one request. They are immutable.

    A value out of range raises InvalidRequestError, an unknown keyword raises InvalidOptionError. request_bounds.py
    bounds the number and the length of a list's entries.

    A parameter that is left out has the default below, not the model's; `LLM.default_sampling_params` has the model's.

    n: the number of completions per prompt. The prompt is computed once and its memory is shared; each completion
        counts for max_batch_size. Completion i draws with the seed `completion_seed(i)`, so completion 0 is the one
        that n=1 gives. Greedy completions are all equal.
    beam_width: above 1, the n completions are the best of a beam search of so many beams, each of which counts for
        max_batch_size. It draws nothing: temperature, top_k, top_p, min_p, typical_p and xtc_probability keep their
        defaults (or a temperature of 0), and a seed means nothing. Its tokens come at its end. Penalties, biases and
        bad words change logprobs, as in transformers. A search has no stop strings, no guided_decoding and no
        logits_processors.
    length_penalty: a beam's score is the sum of its logprobs / (its tokens ** length_penalty); above 0 favours long
        ones.
    early_stopping: when a search that has beam_width ended beams is over: True at once; False when the best of the
        others scores no better at its present length; "never" when none can come to score better.
    max_tokens: the most tokens to generate; None means as many as the engine's maximum length leaves room for.
    min_tokens: no end-of-sequence token and none of stop_token_ids is sampled before this number of tokens.
    temperature: 0 is greedy; 1 leaves the distribution as it is.
    top_k: sample among the k likeliest tokens; 0 or -1 means among all.
    top_p: sample among the likeliest tokens whose probabilities reach p together.
    min_p: sample among the tokens at least p times as likely as the likeliest; 0 means among all.
    typical_p: sample among the tokens whose information is nearest to the entropy and whose probabilities reach p
        together (Meister et al. 2023, as transformers computes it); 1 means among all.
    xtc_probability: how often a token is drawn without the likeliest ones ("Exclude Top Choices"): of the tokens whose
        probability is at least xtc_threshold, only the least likely one is left; 0 means never. The seed and the
        token's position decide when. A threshold above 0.5 excludes nothing.
    xtc_threshold: the probability from which on xtc_probability counts a token among the top choices.
    dry_multiplier: above 0 makes a token less likely with which the text would repeat an earlier part of prompt and
        output (DRY, as in llama.cpp): its logit loses dry_multiplier * dry_base ** (length - dry_allowed_length), where
        `length` is how many of the last tokens stood before it there too. 0 means off.
    dry_base: how fast the penalty grows with the length of the repeated text.
    dry_allowed_length: repeated texts that are shorter cost nothing.
    dry_penalty_last_n: the most tokens to look back; -1 means all of the last 8192, which are the most; 0 means off.
    dry_sequence_breakers: texts across which nothing counts as a repetition; () means none.
    no_repeat_ngram_size: n forbids every token that would complete n tokens that prompt and output have already (as
        transformers defines it); 0 means off.
    repetition_penalty: above 1 makes tokens of prompt and output less likely (as transformers defines it); 1 means off.
    presence_penalty: the number that is subtracted from the logit of each token of the output (as OpenAI defines it).
    frequency_penalty: the number that is subtracted once for each occurrence of the token in the output.
    logit_bias: {token: number} that is added to logits; -inf forbids the token.
    bad_words: texts (or lists of token ids) that must not be generated. A text stands for its tokens with and without
        a space before it; spelled with other tokens it can still occur.
    logits_processors: functions of yours that change logits before the parameters above do, in their order. Each gets
        the token ids of prompt and output so far, int32 [tokens], and the logits of the next token, float32
        [vocab_size]; it changes these in place and returns None, or returns other logits of that shape. They are called
        in the engine's thread, for all requests of a step together, and every request waits for them. A function that
        raises ends its own request with LogitsProcessorError. A beam search has none.
    seed: the same seed, prompt and parameters give the same tokens, whatever other requests run; None means a random
        seed.
    stop_token_ids: generation ends after any of these tokens; the token stays in token_ids.
    stop: a text or several; generation ends where any of them is complete, also across tokens. The texts of the first
        min_tokens tokens are not searched. token_ids holds the tokens up to that place.
    include_stop_str_in_output: True leaves the stop string at the end of the text.
    ignore_eos: True goes on after the model's end-of-sequence token.
    logprobs: k gives the logprob of the sampled token and of the k likeliest tokens, before the parameters above change
        them; None gives no logprobs.
    prompt_logprobs: k gives the logprob of every prompt token after the first, and of the k likeliest tokens in its
        place, in RequestOutput.prompt_logprobs; None gives none. Such a request takes nothing from the prefix cache.
    timeout: the seconds from the request's arrival at the engine after which it ends, between two steps, with
        finish_reason "timeout" and its output so far; None means never. (It is no error, because one slow prompt of
        many must not cost the others their answers.)
    priority: requests of a higher priority start first, and are the last to give way when memory runs out.
    tenant: a whole number, 0 or more, of whoever asks. Of waiting requests of equal priority those start first whose
        tenant has had the fewest tokens for its weight; within a tenant the older starts first.
    tenant_weight: the weight, from 0.001 to 1000.
    deadline: the seconds from the request's arrival within which it must end. As soon as it cannot, by the fastest
    steps
        that the engine has had, it ends with DeadlineError, and what was computed is dropped; None means none.
    cache_salt: a text of 1 to 256 characters. Only requests with the same salt find this request's entries in the
        prefix cache, so nobody learns from speed or from `cached_tokens` what others asked. Strangers must not be able
        to guess the salt. None shares the entries among requests without a salt.
    adapter: the name of a LoRA adapter that the engine has loaded, which changes the model for this request; None means
        the model alone.
    truncate_prompt_tokens: use only the last k tokens of the prompt; None means all.
    detokenize: False leaves the text empty and needs no tokenizer.
    skip_special_tokens: True leaves special tokens out of the text (they stay in token_ids).
    kept_special_tokens: the texts of special tokens that stay in the text although skip_special_tokens is True.
    guided_decoding: the form that the output must have, a GuidedDecodingParams. It decides which tokens may be sampled,
        also the end-of-sequence token; all other parameters hold too. If max_tokens or a stop string cuts off the text,
        the text is only the beginning of an admitted one.

    runtime/core/sampling/logit_processors.h has the order in which these parameters shape a token.
    """

    n: int = 1
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_threshold: float = 0.1
    xtc_probability: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] | list[str] = ("\n", ":", '"', "*")
    no_repeat_ngram_size: int = 0
    logit_bias: Biases | None = None
    bad_words: Words = ()
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] = ()
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | list[int] = ()
    stop: str | tuple[str, ...] | list[str] | None = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    timeout: float | None = None
    priority: int = 0
    tenant: int = 0
    tenant_weight: float = 1.0
    deadline: float | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    kept_special_tokens: tuple[str, ...] | list[str] = ()
    guided_decoding: GuidedDecodingParams | None = None

    def __post_init__(self) -> None:
        check_int("n", self.n, 1, MAX_INT32, "a positive integer")
        self._check_lengths()
        self._check_distribution()
        self._check_repetition()
        self._check_beams()
        if self.seed is not None:
            check_int("seed", self.seed, 0, bounds.MAX_SEED, "an integer from 0 to 2**64 - 1, or None")
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                check_int(name, count, 0, MAX_INT32, "an integer >= 0, or None")
        if self.timeout is not None:
            check_range("timeout", self.timeout, 0, bounds.MAX_TIMEOUT)
        check_int("priority", self.priority, -MAX_INT32, MAX_INT32, "a 32-bit integer")
        check_int("tenant", self.tenant, 0, MAX_INT32, "a 32-bit integer >= 0")
        check_range("tenant_weight", self.tenant_weight, *bounds.WEIGHTS)
        if self.deadline is not None:
            check_range("deadline", self.deadline, 0, bounds.MAX_TIMEOUT)
        checks.salt("cache_salt", self.cache_salt)
        named = self.adapter is None or (isinstance(self.adapter, str) and 0 < len(self.adapter) <= bounds.NAME_LENGTH)
        check("adapter", self.adapter, named, f"a name of at most {bounds.NAME_LENGTH} characters, or None")
        if self.truncate_prompt_tokens is not None:
            check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_INT32, "a positive integer or None")
        for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):
            value = getattr(self, name)
            check(name, value, isinstance(value, bool), "True or False")
        guide = self.guided_decoding
        check("guided_decoding", guide, guide is None or isinstance(guide, GuidedDecodingParams), GUIDED)
        # The lists become tuples, so that the object is hashable.
        ids = checks.token_ids("stop_token_ids", self.stop_token_ids, bounds.STOP_TOKEN_IDS)
        object.__setattr__(self, "stop_token_ids", ids)
        object.__setattr__(self, "stop", checks.texts("stop", self.stop))
        check("stop", self.stop, self.detokenize or not self.stop, "left out when detokenize is False")
        kept = checks.texts("kept_special_tokens", self.kept_special_tokens)
        object.__setattr__(self, "kept_special_tokens", kept)
        object.__setattr__(self, "bad_words", checks.words("bad_words", self.bad_words))
        processors = checks.callables("logits_processors", self.logits_processors)
        object.__setattr__(self, "logits_processors", processors)
        object.__setattr__(self, "logit_bias", checks.biases("logit_bias", self.logit_bias))

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, MAX_INT32, "a positive integer or None")
        most = MAX_INT32 if self.max_tokens is None else self.max_tokens
        check_int("min_tokens", self.min_tokens, 0, most, "an integer from 0 to max_tokens")

    def _check_distribution(self) -> None:
        low, high = bounds.TEMPERATURES
        heat = real(self.temperature)
        check("temperature", self.temperature, heat == 0 or low <= heat <= high, f"0 or from {low:g} to {high:g}")
        check_int("top_k", self.top_k, -1, MAX_INT32, "0 or -1 (all tokens) or a positive integer")
        check("top_p", self.top_p, 0 < real(self.top_p) <= 1, "above 0 and at most 1")
        check_range("min_p", self.min_p, 0, 1)
        check("typical_p", self.typical_p, 0 < real(self.typical_p) <= 1, "above 0 and at most 1")
        check_range("xtc_threshold", self.xtc_threshold, 0, 1)
        check_range("xtc_probability", self.xtc_probability, 0, 1)

    def _check_repetition(self) -> None:
        check_range("repetition_penalty", self.repetition_penalty, *bounds.REPETITION_PENALTIES)
        check_range("presence_penalty", self.presence_penalty, *bounds.PENALTIES)
        check_range("frequency_penalty", self.frequency_penalty, *bounds.PENALTIES)
        check_range("dry_multiplier", self.dry_multiplier, *bounds.DRY_MULTIPLIERS)
        check_range("dry_base", self.dry_base, *bounds.DRY_BASES)
        check_int("dry_allowed_length", self.dry_allowed_length, 1, MAX_INT32, "a positive integer")
        check_int("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_INT32, "-1 (all tokens) or an integer >= 0")
        name, given = "dry_sequence_breakers", self.dry_sequence_breakers
        breakers = checks.texts(name, given, bounds.DRY_BREAKERS, bounds.DRY_BREAKER_LENGTH)
        object.__setattr__(self, name, breakers)
        check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, MAX_INT32, "an integer >= 0")

    @property
    def sequences(self) -> int:
        """How many places of max_batch_size the request takes."""
        return self.beam_width if self.beam_width > 1 else self.n

    def _check_beams(self) -> None:
        check_int("beam_width", self.beam_width, 1, MAX_INT32, "a positive integer")
        check_range("length_penalty", self.length_penalty, *bounds.PENALTIES)
        early = self.early_stopping
        check("early_stopping", early, isinstance(early, bool) or early == "never", 'True, False or "never"')
        if self.beam_width == 1:
            for name in BEAMS:
                check(name, getattr(self, name), self._is_default(name), "left out without a beam_width above 1")
            return
        check("n", self.n, self.n <= self.beam_width, f"at most beam_width, which is {self.beam_width}")
        for name in DRAWING:
            value = getattr(self, name)
            unused = self._is_default(name) or (name, value) in (("temperature", 0), ("top_k", -1))
            check(name, value, unused, "left out with a beam_width above 1, which draws nothing")
        for name in NOT_OF_BEAMS:
            value = getattr(self, name)
            check(name, value, not value, "left out with a beam_width above 1, which cannot have it")

    def _is_default(self, name: str) -> bool:
        return bool(getattr(self, name) == DEFAULTS[name])

    @property
    def biases(self) -> list[tuple[int, float]]:
        """The logit_bias as (token, bias) pairs."""
        bias = self.logit_bias or ()
        return list(bias.items() if isinstance(bias, dict) else bias)

    def completion_seed(self, index: int) -> int | None:
        """Returns the seed of completion `index`: seed + index * 0x9E3779B97F4A7C15 modulo 2**64; None without a seed.

        A request with that seed and n=1 gives the same completion.
        """
        return None if self.seed is None else (int(self.seed) + index * 0x9E3779B97F4A7C15) % 2**64


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(SamplingParams)}
BEAMS = ("length_penalty", "early_stopping")
"""The parameters that only a beam search has."""
DRAWING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability")
"""The parameters that say how a token is drawn. A beam search draws none."""
NOT_OF_BEAMS = ("stop", "guided_decoding", "logits_processors")
"""The parameters that a beam search cannot have."""
