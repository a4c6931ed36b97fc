"""Portable ONNX models run as the runtime does it: slots of a cache, chunks of one prompt, batches of decode steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from tensorwright.builder.emit.onnx.portable import emit_portable
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint


def write_model(graph: Graph, checkpoint: Checkpoint, dtype: str, folder: Path) -> Path:
    """model.onnx and its data in `folder`, as the build writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    emitter = emit_portable(graph, checkpoint, dtype)
    path = folder / "model.onnx"
    path.write_bytes(emitter.model.serialized("model.onnx.data"))
    with (folder / "model.onnx.data").open("wb") as file:
        emitter.model.write_data(file)
    onnx.checker.check_model(str(path))
    return path


class Slots:
    """A session and a cache that holds NaN wherever nothing was written."""

    def __init__(self, model: Path, slots: int):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.caches = {
            i.name: np.full((slots, *i.shape[1:]), np.nan, np.float16 if "16" in i.type else np.float32)
            for i in self.session.get_inputs()
            if i.name.startswith("past_")
        }

    def step(
        self, first_slot: int, tokens: list[list[int]], past: list[int], rows: list[int] | None = None
    ) -> np.ndarray:
        """Logits [rows, vocab] of tokens[i] of slot first_slot + i, which holds past[i] positions; None: every row."""
        batch, seq = len(tokens), len(tokens[0])
        feeds = {
            "token_ids": tokens,
            "positions": [list(range(start, start + seq)) for start in past],
            "seqlens_k": [start + seq - 1 for start in past],
            "total_sequence_length": max(past) + seq,
            "logit_rows": list(range(batch * seq)) if rows is None else rows,
        }
        binding = self.session.io_binding()
        for name, numbers in feeds.items():
            binding.bind_cpu_input(name, np.array(numbers, np.int32))
        binding.bind_output("logits", "cpu")
        for name, cache in self.caches.items():
            part = cache[first_slot : first_slot + batch]
            place = ("cpu", 0, part.dtype.type, part.shape, part.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("past", "present", 1), *place)
        self.session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    def ragged(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Logits [len, vocab] of three sequences, the second of one token: prompts in chunks, then steps together."""
        long, one, third = sequences
        head, tail = len(long) // 2, len(third) - 3
        first = [self.step(0, [long[:head]], [0]), self.step(0, [long[head:-2]], [head])]
        last = [self.step(2, [third[:tail]], [0])]
        batch = self.step(0, [long[-2:-1], one, third[tail : tail + 1]], [len(long) - 2, 0, tail])
        first += [batch[:1], self.step(0, [long[-1:]], [len(long) - 1])]
        last += [batch[2:], *(self.step(2, [[third[i]]], [i]) for i in (tail + 1, tail + 2))]
        return [np.concatenate(first), batch[1:2], np.concatenate(last)]
