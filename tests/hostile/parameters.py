"""Each parameter of SamplingParams and GuidedDecodingParams, and each form of a prompt, at its largest and oddest. A
field of either class that is not here fails a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hostile.attacks import (
    AMBIGUOUS,
    any_of_chain,
    ebnf_comments,
    ebnf_rules,
    lark_rules,
    lark_terminals,
    ref_chain,
    texts,
)  # fmt: skip
from hostile.in_process import Attack, Pulse
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import TensorwrightError

LONG = 4_000_000  # characters
MANY = 300_000  # items
STREAM = 400  # tokens of the honest stream
HUGE = 10**5000  # more digits than Python writes an integer with

Make = Callable[[int], Any]
"""A value, at the number of the try: each is another, for what a cache may know."""


def just(value: Any) -> Make:
    return lambda number: value


def ids(number: int) -> list[int]:
    return [token % 4000 for token in range(MANY - number)]


def long_text(number: int) -> str:
    return "a" * (LONG - number)


def deep(number: int) -> Any:
    value: Any = 1
    for _ in range(50_000 - number):
        value = [value]
    return value


NUMBER: tuple[Make, ...] = (just(HUGE), just(float("nan")), just(2**31 - 1))
FLAG: tuple[Make, ...] = (just(HUGE), long_text)

FIELDS: Mapping[str, tuple[Make, ...]] = {
    "n": (*NUMBER, just(16)),
    "beam_width": (*NUMBER, just(16)),
    "length_penalty": (*NUMBER, just(100)),
    "early_stopping": FLAG,
    "max_tokens": NUMBER,
    "min_tokens": NUMBER,
    "temperature": (*NUMBER, just(5e-324), just(1e6)),
    "top_k": NUMBER,
    "top_p": (*NUMBER, just(5e-324)),
    "min_p": NUMBER,
    "typical_p": (*NUMBER, just(5e-324)),
    "xtc_threshold": (*NUMBER, just(5e-324)),
    "xtc_probability": NUMBER,
    "dry_multiplier": (*NUMBER, just(100)),
    "dry_base": (*NUMBER, just(100)),
    "dry_allowed_length": NUMBER,
    "dry_penalty_last_n": NUMBER,
    "dry_sequence_breakers": (lambda number: texts(MANY), long_text, deep),
    "no_repeat_ngram_size": (*NUMBER, just(1)),
    "logits_processors": (long_text, deep, lambda number: [print] * (MANY - number)),
    "repetition_penalty": (*NUMBER, just(100)),
    "presence_penalty": (*NUMBER, just(-100)),
    "frequency_penalty": (*NUMBER, just(100)),
    "logit_bias": (lambda number: dict.fromkeys(range(MANY - number), 1.0), lambda number: {HUGE: 1.0}, deep),
    "bad_words": (lambda number: texts(MANY), lambda number: [ids(number)], lambda number: [long_text(number)], deep),
    "seed": NUMBER,
    "stop_token_ids": (ids, lambda number: [HUGE], deep),
    "stop": (lambda number: texts(MANY), long_text, deep),
    "include_stop_str_in_output": FLAG,
    "ignore_eos": FLAG,
    "logprobs": NUMBER,
    "prompt_logprobs": NUMBER,
    "timeout": (*NUMBER, just(5e-324)),
    "priority": NUMBER,
    "tenant": NUMBER,
    "tenant_weight": (*NUMBER, just(5e-324)),
    "deadline": (*NUMBER, just(5e-324)),
    "cache_salt": (long_text, just(HUGE), just("\ud800")),
    "adapter": (long_text, just(HUGE), just("\ud800")),
    "truncate_prompt_tokens": NUMBER,
    "detokenize": FLAG,
    "skip_special_tokens": FLAG,
    "kept_special_tokens": (lambda number: texts(MANY), long_text, deep),
    "guided_decoding": (long_text, deep),
}

GUIDED: Mapping[str, tuple[Make, ...]] = {
    "json": (
        lambda number: ref_chain(700 - number), lambda number: any_of_chain(1100 - number), long_text,
        lambda number: {"enum": texts(100_000 - number)}, lambda number: {"a": deep(number)},
    ),
    "json_object": FLAG,
    "regex": (long_text, lambda number: f"((a{{1,99}}){{1,99}}){{1,{99 - number}}}"),
    "choice": (lambda number: texts(70_000 - number), lambda number: [long_text(number)], deep),
    "grammar": (
        lambda number: lark_rules(5000 - number), lambda number: lark_terminals(5000 - number),
        lambda number: ebnf_rules(4000 - number), lambda number: ebnf_comments(30_000 - number),
        lambda number: "\n" * (20_000 - number) + "a", lambda number: AMBIGUOUS + "\n" * number, long_text,
    ),
    "whitespace_pattern": (long_text, just("(((((a*)*)*)*)*)*"), just(HUGE)),
    "frame": (long_text, just(HUGE), lambda number: "start: @form\n" + lark_rules(5000 - number)),
}  # fmt: skip

PROMPTS: Mapping[str, Make] = {
    "a long text": long_text,
    "many words": lambda number: "word " * ((LONG - number) // 5),
    "many ids": lambda number: {"prompt_token_ids": ids(number)},
    "ids of no size": just({"prompt_token_ids": [HUGE]}),
    "many prompts": lambda number: ["a"] * 300,
    "a deep list": deep,
    "many keys": lambda number: dict.fromkeys(texts(MANY), 1),
}


def attempt(call: Callable[[], object]) -> str:
    """ "" for an answer and for a typed error; what else was raised."""
    try:
        call()
    except TensorwrightError:
        return ""
    except BaseException as error:
        return f"raised {type(error).__name__}: {str(error)[:150]}"
    return ""


class Api:
    """An LLM, asked from Python."""

    def __init__(self, engine: Path, kind: str):
        self._llm = LLM(engine, kv_cache_memory="32MiB", threads=1)
        for guide in (None, GuidedDecodingParams(regex="[a-z]{3}")):  # what is read once is read now
            params = SamplingParams(max_tokens=3, stop=["zz"], bad_words=["zz"], guided_decoding=guide)
            self._llm.generate("import os", params)
        self.attacks: dict[str, Callable[[int], Attack]] = {}
        for name, makes in FIELDS.items():
            for index, make in enumerate(makes):
                self.attacks[f"SamplingParams.{name} {index}"] = self._sampling(name, make)
        for name, makes in GUIDED.items():
            for index, make in enumerate(makes):
                self.attacks[f"GuidedDecodingParams.{name} {index}"] = self._guided(name, make)
        for name, make in PROMPTS.items():
            self.attacks[f"prompt: {name}"] = self._prompt(make)

    def _sampling(self, name: str, make: Make) -> Callable[[int], Attack]:
        def ready(number: int) -> Attack:
            given = {"max_tokens": 8, name: make(number)}
            return lambda: attempt(lambda: self._llm.generate("import os", SamplingParams(**given)))

        return ready

    def _guided(self, name: str, make: Make) -> Callable[[int], Attack]:
        def ready(number: int) -> Attack:
            given: dict[str, Any] = {name: make(number)} | ({"json": "{}"} if name == "whitespace_pattern" else {})

            def ask() -> None:
                params = SamplingParams(max_tokens=40, guided_decoding=GuidedDecodingParams(**given))
                self._llm.generate("import os", params)

            return lambda: attempt(ask)

        return ready

    def _prompt(self, make: Make) -> Callable[[int], Attack]:
        def ready(number: int) -> Attack:
            prompt = make(number)
            return lambda: attempt(lambda: self._llm.generate(prompt, SamplingParams(max_tokens=1)))

        return ready

    def stream(self, pulse: Pulse) -> None:
        params = SamplingParams(max_tokens=STREAM, temperature=0, ignore_eos=True)
        first = True
        for _ in self._llm.generate_async("import os", params):
            pulse.beat(counts=not first)
            first = False

    def held(self) -> dict[str, int]:
        stats = self._llm.get_stats()
        return {name: int(stats[name]) for name in ("running", "waiting", "used_blocks")}

    def close(self) -> None:
        self._llm.shutdown()
