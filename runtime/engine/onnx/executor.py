"""Runs the steps of the C++ scheduler on an ONNX model: OnnxExecutor.

A block of the scheduler's cache is a slot, which holds one sequence of the engine's maximum length. calls.py splits a
step into calls. This target is not batch invariant, because ONNX Runtime's matmuls sum in an order that depends on the
number of rows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from tensorwright.engine_format.file_names import ONNX_MODEL
from tensorwright.errors import InvalidOptionError, OutOfMemoryError
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.memory import check_kv_bytes, default_kv_bytes
from tensorwright.runtime.engine.onnx.calls import Call, split
from tensorwright.runtime.engine.onnx.device_cache import DeviceSlotCache
from tensorwright.runtime.engine.onnx.manifest import read_io
from tensorwright.runtime.engine.onnx.session import check_model, load_onnxruntime, open_session
from tensorwright.runtime.engine.onnx.slot_cache import SlotCache

MAX_BINDINGS = 256
"""The most ranges of slots whose addresses stay bound. Binding takes longer than all other work of this file."""


class OnnxExecutor:
    """The executor of an ONNX engine, which `_runtime.Engine(executor, options)` calls.

    provider: "cpu", or "cuda" on an NVIDIA GPU. Raises MissingDependencyError if onnxruntime or the provider is absent,
    and EngineError for a model that ONNX Runtime does not load.
    """

    def __init__(self, engine: EngineDir, *, threads: int, provider: str = "cpu"):
        self._ort = load_onnxruntime()
        self._io, self._engine, self._provider = read_io(engine), engine, provider
        if provider == "cuda" and engine.dtype != "float16":
            raise InvalidOptionError(
                f"{engine.path}: built as {engine.dtype}, but ONNX Runtime's attention on GPUs is float16 alone: "
                "build it with --dtype float16, or leave TENSORWRIGHT_ONNX_PROVIDER out"
            )
        self._session = open_session(self._ort, engine.file(ONNX_MODEL), threads, provider)
        check_model(self._session, self._io, engine.vocab_size, engine.path / ONNX_MODEL)
        self._allocated: SlotCache | DeviceSlotCache | None = None
        self._bindings: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def facts(self) -> dict[str, Any]:
        """Returns the facts about the model that the scheduler and the sampler need."""
        engine = self._engine
        return {
            "vocab_size": engine.vocab_size,
            "max_seq_len": engine.max_seq_len,
            "block_size": engine.max_seq_len,
            "block_bytes": [engine.kv_block_bytes],
            "group_windows": [0],  # a slot keeps all positions, also those that a window hides
        }

    def kv_cache_bytes(self, asked: int | None, *, max_batch_size: int, max_num_tokens: int, max_rows: int) -> int:
        """Returns `asked` if it fits, or half of the free memory if `asked` is None. The weights are loaded already.

        On a GPU `asked` must be given, and only allocate() finds out whether it fits. Raises OutOfMemoryError and
        InvalidOptionError.
        """
        if self._provider == "cuda":
            return self._device_bytes(asked)
        try:
            if asked is not None:
                return check_kv_bytes(asked, self._engine)
            available = available_memory() + self._engine.weights.stat().st_size
            return default_kv_bytes(self._engine, max_batch_size, available)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{error}; a block holds a whole sequence of {self._engine.max_seq_len} tokens: an engine built with a "
                "smaller --max-seq-len has smaller ones"
            ) from error

    def _device_bytes(self, asked: int | None) -> int:
        if asked is None:
            raise InvalidOptionError(
                "kv_cache_memory must be given where ONNX Runtime computes on a GPU, for it does not tell how much "
                f"memory is free: give a multiple of {self._engine.kv_block_bytes} bytes, one for each running sequence"
            )
        return check_kv_bytes(asked, self._engine, available=asked)

    def allocate(self, blocks: list[int], max_tokens: int, max_rows: int, max_seqs: int) -> None:
        """Allocates the cache, and memory for the logits of a step."""
        slots, max_len = blocks[0], self._engine.max_seq_len
        on_device = self._provider == "cuda"
        self._allocated = (
            DeviceSlotCache(self._ort, self._io, slots, max_len) if on_device else SlotCache(self._io, slots, max_len)
        )
        self._held = np.zeros(blocks[0], np.int64)
        self._logits = np.empty((max_rows, self._engine.vocab_size), np.float32)

    @property
    def _cache(self) -> SlotCache | DeviceSlotCache:
        if self._allocated is None:
            raise RuntimeError("allocate() comes first")
        return self._allocated

    def run(self, step: Any) -> np.ndarray:
        """Runs a `_runtime.Step` and returns its logits, [rows, vocab] float32. The next step overwrites them."""
        order: list[int] = []
        for call in split(step, self._held, self._engine.max_seq_len):
            self._run(call, step, len(order))
            order += call.rows
        slots = step.block_tables(0)[:, 0] if len(step.context_lens) else []
        self._held[slots] = step.context_lens
        logits = self._logits[: len(order)]
        return logits if order == sorted(order) else logits[np.argsort(order)]

    def _run(self, call: Call, step: Any, row: int) -> None:
        """Runs one call and writes its logits from `row` on."""
        binding = self._binding(call.first_slot, call.batch)
        positions = call.positions()
        inputs = {
            "token_ids": call.token_ids(step.token_ids),
            "positions": positions.reshape(-1) if self._io.flat_positions else positions,
            "seqlens_k": call.seqlens_k(),
            "total_sequence_length": np.array(call.total),
            "logit_rows": np.array(call.wanted),
        }
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.asarray(value, self._io.inputs[name]))
        out = self._logits[row : row + len(call.wanted)]
        binding.bind_output(self._io.logits, "cpu", 0, np.float32, out.shape, self._logits[row:].ctypes.data)
        self._session.run_with_iobinding(binding)

    def _binding(self, first: int, count: int) -> Any:
        """Returns a binding with the cache of these slots as input and output. The last used bindings are kept."""
        binding = self._bindings.pop((first, count), None)
        if binding is None:
            binding = self._session.io_binding()
            for piece in self._cache.pieces(first, count):
                place = (self._cache.device, 0, piece.dtype, piece.shape, piece.address)
                binding.bind_input(piece.past, *place)
                binding.bind_output(piece.present, *place)
            if len(self._bindings) == MAX_BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings[first, count] = binding
        return binding

    def copy_block(self, group: int, from_block: int, to_block: int) -> None:
        """Copies the positions that a slot holds to another slot."""
        self._cache.copy(from_block, to_block, int(self._held[from_block]))
        self._held[to_block] = self._held[from_block]

    def close(self) -> None:
        """Releases the model and the cache. It may be called twice."""
        self._bindings.clear()
        self._session = None
        if self._allocated is not None:
            self._allocated.close()
