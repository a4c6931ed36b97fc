"""Runs a portable model on a text in ONNX Runtime, as the runtime does: chunks of a prompt, one slot of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

PROVIDER = "CPU"


class OneSlot:
    """A session on the processor, and the cache of one sequence. threads: 0 means that ONNX Runtime chooses."""

    def __init__(self, model: Path, threads: int = 0):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(str(model), options, providers=[f"{PROVIDER}ExecutionProvider"])
        self._slots = {i.name: _empty(i.shape, i.type) for i in self._session.get_inputs() if i.name[:5] == "past_"}

    def step(self, ids: list[int], start: int, rows: list[int]) -> np.ndarray:
        """Returns the logits [rows, vocab] of some of `ids`, whose first one has position `start`."""
        end = start + len(ids)
        step = {
            "token_ids": [ids],
            "positions": [list(range(start, end))],
            "seqlens_k": [end - 1],
            "total_sequence_length": end,
            "logit_rows": rows,
        }
        binding = self._session.io_binding()
        for name, numbers in step.items():
            binding.bind_cpu_input(name, np.array(numbers, np.int32))
        binding.bind_output("logits", "cpu")
        for name, slot in self._slots.items():
            place = ("cpu", 0, slot.dtype.type, slot.shape, slot.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("past", "present", 1), *place)
        self._session.run_with_iobinding(binding)
        logits: np.ndarray = binding.copy_outputs_to_cpu()[0]
        return logits


class ModelLogits:
    """A model with one sequence at a time."""

    def __init__(self, model: Path) -> None:
        self._slot = OneSlot(model)

    def __call__(self, ids: list[int], rows: int) -> Iterator[np.ndarray]:
        """Yields the logits of a new sequence as [up to `rows`, vocab] float32."""
        for start in range(0, len(ids), rows):
            chunk = ids[start : start + rows]
            yield self._slot.step(chunk, start, list(range(len(chunk))))


def _empty(shape: list[int | str], kind: str) -> np.ndarray:
    """Returns an empty array for one slot of the cache."""
    return np.zeros((1, *map(int, shape[1:])), np.float16 if kind == "tensor(float16)" else np.float32)
