"""Compiles the stand-in of NCCL (fake_nccl.c), and does what the end of a CUDA stream does for it."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.places import TESTS
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.gpu.tensorrt_op import PluginOp, constant
from tensorwright.runtime.engine.tensorrt.communicators import Communicators

SOURCE = TESTS / "support" / "fake_nccl.c"


def compile_nccl(folder: Path) -> Path:
    """Returns the library."""
    library = folder / "libnccl.so.2"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True
    )
    return library


def meet(communicators: Communicators, library: Path, op: PluginOp, x: np.ndarray, attrs: dict[str, Any]) -> Any:
    """Does what a plugin of this op does with one operand, and waits for it. Returns its result."""
    symbols = dict(zip(op.inputs[0].dims, x.shape, strict=True))
    sizes = [constant(attrs, dim) for dim in op.outputs[0].dims]
    shape = tuple(symbols[dim] if size is None else size for dim, size in zip(op.outputs[0].dims, sizes, strict=True))
    y = np.full(shape, 99, x.dtype)
    inputs = {op.inputs[0].name: tensor_of(op.inputs[0].name, x)}
    assert op.collective is not None
    prepared = communicators.prepare(op.collective(inputs, {op.outputs[0].name: tensor_of(op.outputs[0].name, y)}))
    communicators.start(prepared, 9001)
    wait(library, prepared.arguments[-1])
    return y


def tensor_of(name: str, array: np.ndarray) -> Tensor:
    return Tensor.dense(name, array.ctypes.data, array.shape, array.dtype.name)


def wait(library: Path, handle: int) -> None:
    """Returns when a communicator has done everything, or is aborted."""
    idle = ctypes.CDLL(str(library)).fakeIdle
    idle.argtypes = (ctypes.c_void_p,)
    while not idle(handle):
        time.sleep(0.0002)
