"""Each input that Triton's models declare, at its largest and oddest: made from its declared type, so that a new one is
attacked the day it appears. Besides, those whose content is read further: words, biases, grammars."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hostile.attacks import AMBIGUOUS, ebnf_rules, lark_terminals, ref_chain, texts
from hostile.in_process import Attack, Pulse
from hostile.parameters import STREAM
from support.fake_triton import Request, Sender, fake_utils
from support.triton_models import load
from tensorwright.runtime.serving.triton.interfaces import INTERFACES
from tensorwright.runtime.serving.triton.tensors import NUMPY, Tensor

LONG = 4_000_000  # bytes of a text
MANY = 200_000  # items where a tensor may have any number
WAIT = 120.0

Values = Mapping[str, np.ndarray]


def strings(values: list[str]) -> np.ndarray:
    return np.array([value.encode() for value in values], np.object_)


def largest(tensor: Tensor, number: int) -> Iterator[np.ndarray]:
    """Of the declared type, without the batch dimension: the most that one value is, and the most values."""
    many = -1 in tensor.dims
    if tensor.dtype == "STRING":
        yield strings(["a" * (LONG - number)])
        yield strings(texts(MANY if many else 2))
        yield np.array([b"\xff\x00"], np.object_)
        return
    kind = np.dtype(NUMPY[tensor.dtype])
    odd = {"f": [np.nan, np.inf, -np.inf], "b": [True]}.get(kind.kind) or [np.iinfo(kind).max, np.iinfo(kind).min]
    for value in odd:
        yield np.full([1 if size == -1 else size for size in tensor.dims], value, kind)
    if many:
        free = [size for size in tensor.dims if size == -1]
        side = int(MANY ** (1 / len(free)))
        yield np.ones([side if size == -1 else size for size in tensor.dims], kind)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def guide(kind: str, text: str) -> dict[str, np.ndarray]:
    return {"guided_decoding_guide_type": strings([kind]), "guided_decoding_guide": strings([text])}


def word_lists(name: str) -> Callable[[int], dict[str, np.ndarray]]:
    """[2, n]: as many words of one id as there is room for."""
    return lambda number: {name: np.stack([np.arange(MANY) % 4000, np.arange(MANY) + 1]).astype(np.int32)}


READ_FURTHER: Mapping[str, Callable[[int], dict[str, np.ndarray]]] = {
    "stop_words_list": word_lists("stop_words_list"),
    "bad_words_list": word_lists("bad_words_list"),
    "embedding_bias": lambda number: {"embedding_bias": np.full(MANY, 1e6, np.float32)},
    "embedding_bias_words": lambda number: {
        "embedding_bias_words": strings(texts(100_000)), "embedding_bias_weights": np.ones(100_000, np.float32),
    },
    "embedding_bias_word": lambda number: {
        "embedding_bias_words": strings(["ab " * 1_000_000]), "embedding_bias_weights": np.ones(1, np.float32),
    },
    "guide-json": lambda number: guide("json_schema", json.dumps(ref_chain(700 - number))),
    "guide-ebnf": lambda number: guide("ebnf_grammar", ebnf_rules(4000 - number)),
    "guide-terminals": lambda number: guide("ebnf_grammar", lark_terminals(5000 - number)),
    "guide-blank-lines": lambda number: guide("ebnf_grammar", "\n" * (20_000 - number) + "a"),
    "guide-ambiguous": lambda number: guide("ebnf_grammar", AMBIGUOUS + "\n" * number),
}  # fmt: skip


class Model:
    """A model of pico behind one of the interfaces."""

    def __init__(self, engine: Path, kind: str):
        sys.modules["triton_python_backend_utils"] = fake_utils()
        self._batched = kind != "llmapi"
        self._model = load(engine, self._batched, interface=kind)
        declared = {tensor.name: tensor for tensor in INTERFACES[kind].inputs}
        self._names = set(declared)
        self._ask(self._beside("guided_decoding_guide") | (guide("regex", "[a-z]{3}") if self._batched else {}))
        self.attacks: dict[str, Callable[[int], Attack]] = {}
        for name, tensor in declared.items():
            for index, _ in enumerate(largest(tensor, 0)):
                self.attacks[f"{kind}: {name} {index}"] = self._of_tensor(tensor, index)
        for name, make in READ_FURTHER.items():
            if set(make(0)) <= self._names:
                self.attacks[f"{kind}: {name}, read further"] = self._of_values(make)

    def _beside(self, name: str) -> dict[str, np.ndarray]:
        """What makes a sound request, for an attack by this input."""
        by_ids = {"input_ids": int32(5, 6, 7), "input_lengths": int32(3), "request_output_len": int32(8)}
        by_text = {"text_input": strings(["import os"]), "max_tokens": int32(8)}
        if not self._batched:
            return {"text_input": strings(["import os"]), "sampling_param_max_tokens": int32(8)}
        text_only = {tensor.name for tensor in INTERFACES["text"].inputs}
        return by_text if name in text_only else by_ids

    def _of_tensor(self, tensor: Tensor, index: int) -> Callable[[int], Attack]:
        def ready(number: int) -> Attack:
            values = self._beside(tensor.name) | {tensor.name: list(largest(tensor, number))[index]}
            return lambda: self._ask(values)

        return ready

    def _of_values(self, make: Callable[[int], dict[str, np.ndarray]]) -> Callable[[int], Attack]:
        def ready(number: int) -> Attack:
            own = make(number)
            values = self._beside(next(iter(own))) | own
            return lambda: self._ask(values)

        return ready

    def _ask(self, values: Values, sender: Sender | None = None) -> str:
        """ "" once it was answered or refused with one of Triton's errors."""
        given = {name: value[np.newaxis] if self._batched else value for name, value in values.items()}
        request = Request(given, sender=sender or Sender())
        try:
            self._model.execute([request])
        except BaseException as error:
            return f"execute raised {type(error).__name__}: {str(error)[:150]}"
        if not request.sender.final.wait(WAIT):
            return f"no final response within {WAIT:g} s"
        faults = [error for error in request.sender.errors if error.code == error.INTERNAL]
        return f"a fault of the model's: {str(faults[0])[:150]}" if faults else ""

    def stream(self, pulse: Pulse) -> None:
        sender = _Beating(pulse)
        values: dict[str, Any] = self._beside("text_input")
        length = "max_tokens" if self._batched else "sampling_param_max_tokens"
        flag = "stream" if self._batched else "streaming"
        wrong = self._ask(values | {length: int32(STREAM), flag: np.array([True])}, sender)
        if wrong:
            raise RuntimeError(wrong)

    def held(self) -> dict[str, int]:
        stats = self._model.llm.get_stats()
        return {name: int(stats[name]) for name in ("running", "waiting", "used_blocks")}

    def close(self) -> None:
        self._model.finalize()


class _Beating(Sender):
    """Of the honest stream."""

    def __init__(self, pulse: Pulse):
        super().__init__()
        self._pulse, self._begun = pulse, threading.Event()

    def send(self, response: Any = None, flags: int = 0) -> None:
        super().send(response, flags)
        self._pulse.beat(counts=self._begun.is_set())
        self._begun.set()
        self.responses.clear()
