"""Describes a call of a GPU kernel: tensors as addresses and ints, a grid, and the compiled form of the kernel.

This plain Python is shared: compile.py turns a `KernelSpec` into machine code, driver.py starts a `Launch` on a GPU,
interpret.py runs the same `Launch` on the CPU. An op's launch.py makes both. Neither Triton nor torch is imported.

A specialisation and its launches may depend on the SM, which is that of the code: a GPU may run the code of a lower SM
of its generation, or PTX of another (`Bundle.code_sm`), and a launch must fit that code.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError

POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8", "int32": "*i32"}
"""The name of a pointer to each element type, in Triton."""
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
SCRATCH = "scratch"
"""The type of the two pointers that each kernel takes after its arguments; both are null (see compile.py)."""
ALIGNMENT = 16
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
"""The largest CUDA grid in x, y and z."""

Constant = int | float | str | bool | None


class StepSize:
    """The base of integers that only a step knows: while a plan is made, they stand where a launch has an int.

    They compute and compare as integers do; what they make of it is theirs (builder/emit/cuda/sizes.py).
    """

    __slots__ = ()


@dataclass(frozen=True)
class Tensor:
    """A tensor in a GPU's memory, as a kernel gets it. Strides count elements."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @staticmethod
    def dense(name: str, address: int, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Returns a row-major tensor without gaps."""
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return Tensor(name, address, tuple(shape), strides, dtype)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class KernelSpec:
    """One specialisation of a kernel, with all that compile.py needs.

    `constants` and `signature` together are the kernel's parameters: those that are fixed when it is compiled (an
    absent tensor is the constant None) and those that a launch gives, in the order of the function. `aligned`:
    arguments that are multiples of 16 in every launch; `make_launch` checks it.
    """

    kernel: str
    module: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...] = ()
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    fp_fusion: bool = True
    """Whether a product and a sum may become one rounding."""

    @property
    def variant(self) -> str:
        """Returns the name of this specialisation among those of its kernel, without warps and stages.

        Engines store it. It holds the names of arguments and constants, so a new name makes old engines useless.
        """
        aligned = tuple(sorted(self.aligned))
        content = (self.kernel, self.module, self.signature, self.constants, aligned, self.fp_fusion)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]

    def size(self, name: str) -> int:
        """Returns a constant that is an integer, such as the size of a block, from which a grid follows."""
        value = dict(self.constants)[name]
        if not isinstance(value, int):
            raise KernelError(f"{self.kernel}: {name} must be an integer, got {value!r}")
        return value

    def __str__(self) -> str:
        types = ", ".join(f"{name}: {kind}" for name, kind in self.signature)
        constants = "".join(f", {name}={value}" for name, value in self.constants)
        return f"{self.kernel}({types}{constants})"


@dataclass(frozen=True)
class Launch:
    """One start of a kernel: `args` in the order of the specialisation's signature."""

    kernel: str
    variant: str
    grid: tuple[int, int, int]
    args: tuple[Any, ...]


def make_launch(spec: KernelSpec, grid: tuple[int, int, int], values: Mapping[str, Any]) -> Launch:
    """Makes a launch. `values` by the names of the signature. Raises KernelError for values that the spec forbids."""
    names = [name for name, _ in spec.signature]
    if set(values) != set(names):
        raise KernelError(f"{spec.kernel}: arguments must be {', '.join(names)}; got {', '.join(values)}")
    if any(not 1 <= size <= most for size, most in zip(grid, MAX_BLOCKS, strict=True)):
        raise KernelError(f"{spec.kernel}: a grid must be from (1, 1, 1) to {MAX_BLOCKS}, got {grid}")
    for name, kind in spec.signature:
        _check_argument(spec, name, kind, values[name])
    return Launch(spec.kernel, spec.variant, grid, tuple(values[name] for name in names))


def _check_argument(spec: KernelSpec, name: str, kind: str, value: Any) -> None:
    what = f"{spec.kernel}: {name}"
    number: Any
    if kind.startswith("*"):
        if not isinstance(value, Tensor) or POINTERS.get(value.dtype) != kind:
            raise KernelError(f"{what} must be a tensor of {kind[1:]}, got {value}")
        number = value.address
    elif kind == "fp32":
        if not isinstance(value, float):
            raise KernelError(f"{what} must be a float, got {value!r}")
        return
    else:
        bits = int(kind[1:])
        if not isinstance(value, int | StepSize) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise KernelError(f"{what} must be an integer of {bits} bits, got {value!r}")
        number = value
    if name in spec.aligned and number % ALIGNMENT:
        raise KernelError(f"{what} must be a multiple of {ALIGNMENT}, got {number}: give the tensor an aligned address")


def kernel_params(parameters: tuple[str, ...], launch: Launch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns (values, ctypes types) for cuLaunchKernel of cuda-bindings. `parameters`: those of the CompiledKernel.

    A pointer is its address. The scratch pointers at the end are null, since compile.py refuses kernels that need any.
    """
    own = parameters[: len(parameters) - parameters.count(SCRATCH)]
    if len(own) != len(launch.args):
        raise KernelError(f"{launch.kernel}: {len(own)} arguments are expected, got {len(launch.args)}")
    values: list[Any] = []
    types: list[Any] = []
    for kind, value in zip(own, launch.args, strict=True):
        values.append(value.address if kind.startswith("*") else value)
        types.append(ctypes.c_void_p if kind.startswith("*") else SCALARS[kind])
    for _ in range(parameters.count(SCRATCH)):
        values.append(0)
        types.append(ctypes.c_void_p)
    return tuple(values), tuple(types)


def require_dense(*tensors: Tensor) -> None:
    """Raises KernelError for a tensor with gaps or another order of its dimensions."""
    for tensor in tensors:
        dense = Tensor.dense(tensor.name, 0, tensor.shape, tensor.dtype).strides
        if tensor.strides != dense:
            raise KernelError(f"{tensor.name} {list(tensor.shape)} must have strides {dense}, got {tensor.strides}")


def require_shape(tensor: Tensor, shape: tuple[int, ...], dtype: str) -> None:
    """Raises KernelError for another shape or type."""
    if (tensor.shape, tensor.dtype) != (shape, dtype):
        raise KernelError(f"{tensor.name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")


def grid_of(*sizes: int) -> tuple[int, int, int]:
    """Returns the sizes along x, y, z; missing sizes are 1."""
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
