"""Runs the logits processors of a request: functions of the caller that change a row of logits before the draw."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import LogitsProcessorError

LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], Any]
"""A function of the token ids so far, int32 [tokens], and of the logits of the next token, float32 [vocab_size]. It
changes the logits in place and returns None, or returns an array of the same shape in their place."""


class ProcessorChain:
    """The processors of one request in their order. The engine's thread calls the object for each row."""

    def __init__(self, processors: Sequence[LogitsProcessor]):
        self._processors = tuple(processors)

    def __call__(self, token_ids: NDArray[np.int32], row: NDArray[np.float32]) -> None:
        """Changes the row in place. Raises LogitsProcessorError, which names the processor at fault."""
        for processor in self._processors:
            try:
                result = processor(token_ids, row)
                if result is not None and result is not row:
                    _write(result, row)
                _check(row)
            except BaseException as error:  # also an exit: the thread computes the requests of others too
                raise LogitsProcessorError(
                    f"the logits processor {_name(processor)} failed after {len(token_ids)} tokens of prompt and "
                    f"output: {type(error).__name__}: {error}{_place(error)}"
                ) from error


def _write(result: Any, row: NDArray[np.float32]) -> None:
    values = np.asarray(result)
    if values.shape != row.shape or values.dtype.kind not in "fiu":
        raise ValueError(
            f"it must return None or numbers of shape {row.shape}, got {values.dtype} of shape {values.shape}"
        )
    row[:] = values


def _check(row: NDArray[np.float32]) -> None:
    highest = float(row.max())
    if not highest < np.inf:
        raise ValueError("logits must be finite or -inf, got NaN or inf")
    if highest == -np.inf:
        raise ValueError("it must leave a token to sample, and forbade all")


def _name(processor: LogitsProcessor) -> str:
    """Returns the name of a function, or that of the class of another callable."""
    named: Any = processor if hasattr(processor, "__qualname__") else type(processor)
    return f"{named.__module__}.{named.__qualname__}"


def _place(error: BaseException) -> str:
    """Returns where in the processor's own code the error was raised, in words."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
