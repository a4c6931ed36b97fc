"""Whole generations of engines of target cuda without a GPU: the runtime over the stand-in of the driver, whose kernels
Triton's interpreter computes in the stand-in's own memory, and whose products numpy computes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from support.cuda_model import plan_without_code
from support.fake_libcuda import FakeDevice, Started
from tensorwright.builder.emit.cuda.emit import plan_graph
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.interpret import Block, Interpreter, Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor
from tensorwright.runtime import _runtime

MAX_STEP = (24, 24, 4)
"""The most tokens, rows and sequences of a step."""
NUMBERS = {"i32": struct.Struct("<i"), "i64": struct.Struct("<q"), "fp32": struct.Struct("<f")}
CUDA_TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
"""The numbers of cudaDataType."""
Files = tuple[Path, Path, dict[int, KernelSpec]]
"""A plan whose kernels' code is what the stand-in loads, its weights, and the kernels by number."""


def write_engine(folder: Path, checkpoint: Checkpoint, graph: Graph, *, first: int = 0) -> Files:
    """Writes the plan and the weights of a graph after the passes, for SM 90. first: the number of the first kernel,
    where engines share a stand-in."""

    def loadable(kernel: CompiledKernel, number: int) -> CompiledKernel:
        return replace(kernel, cubin=f"kernel {first + number} {len(kernel.parameters)}\0".encode())

    planned = plan_graph(graph, checkpoint, graph.facts.dtype, MAX_STEP)
    data, specs = plan_without_code(planned, 90, loadable)
    folder.mkdir(parents=True)
    (folder / "sm.plan").write_bytes(data)
    with (folder / "weights.bin").open("wb") as file:
        planned.emitter.file.write(file, lambda done, total: None)
    return folder / "sm.plan", folder / "weights.bin", {first + number: spec for number, spec in enumerate(specs)}


class Computer:
    """Computes what is started on a stand-in."""

    def __init__(self, device: FakeDevice, specs: Mapping[int, KernelSpec], interpreter: Interpreter):
        self.device, self.specs, self.interpreter = device, specs, interpreter

    def __call__(self, one: Started) -> None:
        if one.kernel < 0:
            multiply(one)
        else:
            self.launch(one, self.specs[one.kernel])

    def launch(self, one: Started, spec: KernelSpec) -> None:
        memory, args = Memory(), []
        pieces = self.device.pieces()
        for (name, kind), value in zip(spec.signature, one.values, strict=False):
            if kind.startswith("*"):
                args.append(Tensor(name, value, (), (), "int8"))
                start, size = next((at, size) for at, size in pieces.items() if at <= value < at + size)
                if str(start) not in memory.blocks:
                    tensor = Tensor.dense(str(start), start, (size,), "int8")
                    memory.blocks[str(start)] = Block(tensor, np.frombuffer(ctypes.string_at(start, size), np.int8))
            else:
                args.append(NUMBERS[kind].unpack(struct.pack("<Q", value)[: NUMBERS[kind].size])[0])
        self.interpreter.run([spec], [Launch(spec.kernel, spec.variant, one.grid, tuple(args))], memory)
        for block in memory.blocks.values():
            ctypes.memmove(block.tensor.address, np.ascontiguousarray(block.data).ctypes.data, block.nbytes)


def multiply(one: Started) -> None:
    """Computes a product in float32, and rounds it once."""
    m, n, k, x_type, out_type, x, w, bias, c, d, stride = one.values[:11]
    kind, out = CUDA_TYPES[x_type], CUDA_TYPES[out_type]
    y = matrix(x, kind, m, k).astype(np.float32) @ matrix(w, kind, n, k).astype(np.float32).T
    if bias:
        y = y + matrix(bias, out, 1, n).astype(np.float32)
    if c:
        y = y + matrix(c, out, m, n, stride).astype(np.float32)
    matrix(d, out, m, n, stride)[:] = y.astype(out)


def matrix(address: int, dtype: np.dtype[Any], rows: int, columns: int, stride: int = 0) -> np.ndarray:
    """A view of the stand-in's memory."""
    count = (rows - 1) * (stride or columns) + columns
    data = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(data, dtype)
    row = (stride or columns) * dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (row, dtype.itemsize), writeable=True)


def executor_of(device: FakeDevice, files: Files, *, graphs: bool = True) -> Any:
    """An executor, whose host draws all tokens."""
    plan, weights, _ = files
    return _runtime.CudaExecutor(str(plan), str(weights), 0, (str(device.library),), graphs, draws=False)


def generate(
    executor: Any, prompts: Sequence[Sequence[int]], tokens: int, *, draft: Any = None, **options: Any
) -> tuple[list[list[int]], dict[str, Any]]:
    """Greedy answers of so many tokens, and the engine's statistics. options: more of EngineOptions."""
    asked = _runtime.EngineOptions()
    asked.kv_cache_bytes, asked.max_batch_size, asked.max_num_tokens = 1 << 18, MAX_STEP[2], MAX_STEP[0]
    asked.max_chunk, asked.max_queue, asked.draft_rows, asked.max_prompt_rows = MAX_STEP[0], 8, 8, 1
    for name, value in options.items():
        setattr(asked, name, value)
    engine = _runtime.Engine(executor, asked) if draft is None else _runtime.Engine(executor, asked, draft)
    sampling = _runtime.Sampling()
    sampling.max_tokens, sampling.temperature, sampling.ignore_eos = tokens, 0.0, True
    answers: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        engine.submit(number, list(prompt), sampling)
    done = 0
    while done < len(prompts):
        for event in engine.wait_events(60.0):
            assert not event.error, event.error
            answers[event.request_id] += event.tokens
            done += event.finish != ""
    stats = engine.stats()
    engine.shutdown(False)
    return list(answers.values()), stats
