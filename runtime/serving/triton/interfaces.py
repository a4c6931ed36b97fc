"""Lists the interfaces by the value of config.pbtxt's parameter `interface`: their tensors, and how to read them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.base.keywords import closest
from tensorwright.runtime.base.request_bounds import BODY_KEYS, NAME_LENGTH
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.serving.triton import llmapi_interface, text_interface, token_interface
from tensorwright.runtime.serving.triton.replies import Job
from tensorwright.runtime.serving.triton.tensors import Row, Tensor


@dataclass(frozen=True)
class Interface:
    """The tensors of an interface and its reader.

    read: reads one prompt with its parameters. Its arguments are the row, the engine, the model's
    exclude_input_in_output, and the model's sampling defaults (LLM.sampling_defaults).
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    read: Callable[[Row, EngineDir, bool, Mapping[str, Any]], Job]

    def check(self, row: Row, batched: bool) -> None:
        """Checks names, types and shapes of all inputs, also of those that are not read. Raises InvalidRequestError.

        batched: whether tensors have a batch dimension, as for split_rows.
        """
        known = _names(self)
        for name in row.names():
            if name not in known:
                raise InvalidRequestError(f"there is no input {name!r}; {closest(name, known)}")
        for tensor in self.inputs:
            row.check(tensor, batched)

    def check_parameters(self, names: Iterable[str]) -> None:
        """Checks the names of the request's parameters. Triton's `generate` makes a parameter of every field that is no
        input, so a misspelt input is refused here. Raises InvalidRequestError."""
        known, names = _names(self), list(names)
        if len(names) > BODY_KEYS:
            raise InvalidRequestError(f"a request must have at most {BODY_KEYS} parameters, got {len(names)}")
        for name in names:
            if len(name) > NAME_LENGTH:
                raise InvalidRequestError(f"the name of a parameter must have at most {NAME_LENGTH} characters")
            if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
                raise InvalidRequestError(f"there is no input {name!r}; did you mean {near[0]}?")


def read_both(row: Row, engine: EngineDir, exclude_input: bool, defaults: Mapping[str, Any]) -> Job:
    """Reads a prompt by the text interface if text_input was sent, or by the token interface if input_ids was sent.
    Raises InvalidRequestError if both or neither were sent, or if an input belongs to the other interface."""
    text, ids = row.has("text_input"), row.has("input_ids")
    if text == ids:
        came = "both" if text else "neither"
        raise InvalidRequestError(f"either 'text_input' or 'input_ids' is required, {came} came")
    own, other = (_TEXT, _TOKENS) if text else (_TOKENS, _TEXT)
    foreign = {tensor.name for tensor in other.inputs} - {tensor.name for tensor in own.inputs}
    for name in row.names():
        if name in foreign:
            mine = "text_input" if text else "input_ids"
            raise InvalidRequestError(f"input {name!r} does not go with {mine!r}; {closest(name, _names(own))}")
    return own.read(row, engine, exclude_input, defaults)


def interface_of(name: str) -> Interface:
    if name not in INTERFACES:
        raise InvalidOptionError(f"interface must be one of {', '.join(INTERFACES)}, got {name!r}")
    return INTERFACES[name]


def _names(interface: Interface) -> list[str]:
    return [tensor.name for tensor in interface.inputs]


def _joined(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Joins the tensors of two interfaces, each name once. None is required, for the required ones depend on the
    interface that a request uses."""
    unique = {tensor.name: Tensor(tensor.name, tensor.dtype, tensor.dims) for tensor in (*first, *second)}
    return tuple(unique.values())


_TEXT = Interface(text_interface.INPUTS, text_interface.OUTPUTS, text_interface.read)
_TOKENS = Interface(token_interface.INPUTS, token_interface.OUTPUTS, token_interface.read)
INTERFACES = {
    "both": Interface(_joined(_TEXT.inputs, _TOKENS.inputs), _joined(_TEXT.outputs, _TOKENS.outputs), read_both),
    "text": _TEXT,
    "tokens": _TOKENS,
    "llmapi": Interface(llmapi_interface.INPUTS, llmapi_interface.OUTPUTS, llmapi_interface.read),
}
