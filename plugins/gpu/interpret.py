"""Runs launches on the CPU by Triton's interpreter, as a GPU would run them: grid, arguments, strides and all.

    memory = Memory()
    x = memory.put("x", array, "float16")          # a Tensor: an address, a shape, strides
    y = memory.empty("y", array.shape, "float16")  # every byte is 0xFF, so that unwritten elements are NaN
    with Interpreter() as interpreter:
        interpreter.run(kernels(...), launches(..., {"x": x}, {"y": y}, ...), memory)
    memory.array("y")

Triton decides at import whether it interprets. So a child process with TRITON_INTERPRET=1 does it, and this process
can still compile. The child lives until `close`. Each load and store must lie in a tensor's memory, or the run fails.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

STORAGE = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8, "int32": np.int32}
"""The numpy type of each element type. numpy has no bfloat16, so uint16 holds its bit patterns."""
FIRST_ADDRESS = 1 << 40
"""The first address of the memory that a launch gets. It needs more than 32 bits, as on a GPU."""
ADDRESS_ALIGNMENT = 256
MODULE = "tensorwright.plugins.gpu.interpret_child"


@dataclass
class Block:
    """One tensor's bytes, and the tensor's address in launches."""

    tensor: Tensor
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Memory:
    """The memory of a simulated GPU."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self._next = FIRST_ADDRESS

    def put(self, name: str, values: np.ndarray, dtype: str) -> Tensor:
        """Returns a dense tensor of these values; floats are rounded to `dtype`."""
        values = np.asarray(values)
        if dtype == "bfloat16":
            return self._add(name, to_bfloat16_bits(values).reshape(values.shape), dtype)
        return self._add(name, np.ascontiguousarray(values.astype(STORAGE[dtype])), dtype)

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        size = int(np.prod(shape)) * ITEM_BYTES[dtype]
        data = np.frombuffer(b"\xff" * size, STORAGE[dtype]).reshape(shape).copy()
        return self._add(name, data, dtype)

    def array(self, name: str) -> np.ndarray:
        """Returns a copy of the tensor's values; bfloat16 becomes float32."""
        block = self.blocks[name]
        return from_bfloat16_bits(block.data) if block.tensor.dtype == "bfloat16" else block.data.copy()

    def _add(self, name: str, data: np.ndarray, dtype: str) -> Tensor:
        assert name not in self.blocks, f"{name} is there already"
        tensor = Tensor.dense(name, self._next, data.shape, dtype)
        self.blocks[name] = Block(tensor, data)
        self._next += (data.nbytes // ADDRESS_ALIGNMENT + 2) * ADDRESS_ALIGNMENT
        return tensor


class Interpreter:
    """The child process, which starts with the first run. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, specs: Iterable[KernelSpec], launches: Sequence[Launch], memory: Memory) -> None:
        """Runs the launches in order, each to its end. `memory` then holds the results. Raises KernelError with the
        child's report."""
        known = {(spec.kernel, spec.variant): spec for spec in specs}
        for launch in launches:
            if (launch.kernel, launch.variant) not in known:
                raise KernelError(f"{launch.kernel} ({launch.variant}) is started, and no specification has it")
        work = [(known[launch.kernel, launch.variant], launch) for launch in launches]
        blocks = {block.tensor.address: block.data for block in memory.blocks.values()}
        answer = self._ask((work, blocks))
        if isinstance(answer, str):
            raise KernelError(f"a GPU kernel failed in the interpreter: {answer}")
        for block in memory.blocks.values():
            block.data = answer[block.tensor.address]

    def close(self) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            self._child.stdin.close()
            self._child.wait()
            self._child.stdout.close()
            self._child = None

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Any) -> Any:
        child = self._child = self._child or _start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            send(child.stdin, question)
            answer = receive(child.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            status = child.wait()
            self._child = None
            raise KernelError(f"the interpreter of GPU kernels died with status {status}; what it wrote is above")
        return answer


def _start() -> subprocess.Popen[bytes]:
    if importlib.util.find_spec("triton") is None:
        raise MissingDependencyError(f"GPU kernels are interpreted by Triton, which is not installed: {install('gpu')}")
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-P", "-m", MODULE]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Reads an object; returns None if the other side has closed."""
    head = pipe.read(8)
    return pickle.loads(pipe.read(struct.unpack("<Q", head)[0])) if len(head) == 8 else None
