"""How one request is sampled and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.keywords import StrictKeywords

MAX_SEED = 2**64 - 1
MAX_INT32 = 2**31 - 1
TEMPERATURES = (1e-6, 1e6)  # what the sampler's single precision takes, besides 0


@dataclass(frozen=True)
class SamplingParams(StrictKeywords):
    """Immutable; a value out of range raises InvalidRequestError, an unknown keyword InvalidOptionError.

    n: completions per prompt; only 1 so far.
    max_tokens: most tokens to generate; None: as many as the engine's maximum length leaves room for.
    temperature: 0 is greedy; 1 leaves the distribution as it is.
    top_k: sample among the k likeliest tokens; 0 or -1: among all.
    top_p: sample among the likeliest tokens whose probabilities reach p together.
    seed: the same seed, prompt and parameters give the same tokens, whoever else is served; None: a random one.
    stop_token_ids: generation ends after any of these; the token stays in token_ids.
    ignore_eos: go on after the model's end-of-sequence token.
    logprobs: None: none; k: the sampled token's, and those of the k likeliest.
    detokenize: False leaves the text empty and needs no tokenizer.
    skip_special_tokens: leave special tokens out of the text (they stay in token_ids).
    """

    n: int = 1
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        low, high = TEMPERATURES
        _check_int("n", self.n, 1, 1, "1 (several completions per prompt are not supported)")
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_INT32, "a positive integer or None")
        heat = _real(self.temperature)
        _check("temperature", self.temperature, heat == 0 or low <= heat <= high, f"0 or from {low:g} to {high:g}")
        _check_int("top_k", self.top_k, -1, MAX_INT32, "0 or -1 (all tokens) or a positive integer")
        _check("top_p", self.top_p, 0 < _real(self.top_p) <= 1, "above 0 and at most 1")
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED, "an integer from 0 to 2**64 - 1, or None")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_INT32, "an integer >= 0, or None")
        for name in ("ignore_eos", "detokenize", "skip_special_tokens"):
            value = getattr(self, name)
            _check(name, value, isinstance(value, bool), "True or False")
        stops = self.stop_token_ids
        _check("stop_token_ids", stops, isinstance(stops, (list, tuple)), "a list of token ids")
        for token in stops:
            _check_int("stop_token_ids", token, 0, MAX_INT32, "a list of token ids >= 0")
        object.__setattr__(self, "stop_token_ids", tuple(int(token) for token in stops))  # so that it hashes

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _check(name: str, value: Any, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidRequestError(f"SamplingParams: {name} must be {must}, got {value!r}")


def is_int(value: Any) -> bool:
    """numpy integers count; True does not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_int(name: str, value: Any, low: int, high: int, must: str) -> None:
    _check(name, value, is_int(value) and low <= int(value) <= high, must)


def _real(value: Any) -> float:
    """The number, or NaN (which no range admits) when it is none."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
