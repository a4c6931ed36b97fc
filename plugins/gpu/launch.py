"""Describes a call of a GPU kernel: tensors as addresses and ints, a grid, and the compiled form of the kernel.

This plain Python is shared: compile.py turns a `KernelSpec` into machine code, driver.py starts a `Launch` on a GPU,
interpret.py runs the same `Launch` on the CPU. An op's launch.py makes both. Neither Triton nor torch is imported.

A specialisation and its launches may depend on the SM, which is that of the code: a GPU may run the code of a lower SM
of its generation, or PTX of another (`Bundle.code_sm`), and a launch must fit that code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError

POINTERS = {
    "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8", "int32": "*i32", "int64": "*i64",
}  # fmt: skip
"""The name of a pointer to each element type, in Triton."""
INT_BOUNDS = {"i32": 2**31, "i64": 2**63}
SCRATCH = "scratch"
"""The type of the two pointers that each kernel takes after its arguments; both are null (see compile.py)."""
ALIGNMENT = 16
COLUMN_BLOCK = 1024
"""The most columns of a program that computes a part of one row: 8 for each of 128 threads."""
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
"""The largest CUDA grid in x, y and z."""

MULTIPROCESSORS = {75: 40, 80: 108, 86: 84, 89: 128, 90: 132, 120: 170, 121: 48}
"""The multiprocessors of the largest usual card of each SM. Work is cut up for these."""

Constant = int | float | str | bool | None


class StepSize:
    """The base of integers that only a step knows: while a plan is made, they stand where a launch has an int.

    They compute and compare as integers do; what they make of it is theirs (builder/emit/cuda/sizes.py).
    """

    __slots__ = ()


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a row-major tensor without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    strides.reverse()
    return tuple(strides)


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
        return Tensor(name, address, tuple(shape), dense_strides(shape), dtype)

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
    later: tuple[str, ...] = ()
    """Constants that the kernel got after engines had it, with values that leave it as it was. The variant is without
    them, so that those engines' kernels are still found."""

    @cached_property
    def variant(self) -> str:
        """Returns the name of this specialisation among those of its kernel, without warps and stages.

        Engines store it. It holds the names of arguments and constants, so a new name makes old engines useless.
        """
        aligned = tuple(sorted(self.aligned))
        constants = tuple(item for item in self.constants if item[0] not in self.later)
        content = (self.kernel, self.module, self.signature, constants, aligned, self.fp_fusion)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the arguments that a launch gives."""
        return frozenset(name for name, _ in self.signature)

    @cached_property
    def aligned_arguments(self) -> frozenset[int]:
        """The places of `aligned` in the signature."""
        return frozenset(index for index, (name, _) in enumerate(self.signature) if name in self.aligned)

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
    """One start of a kernel: `args` in the order of the specialisation's signature. aligned: the places of arguments
    that must be multiples of 16."""

    kernel: str
    variant: str
    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    aligned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class DenseProduct:
    """y = x w^T (+ bias) (+ residual), which stands among launches where the target has a library for it.

    x [M, K] and w [N, K] dense and of one type; bias [N], residual and y [M, N] of another or the same. Rows of y and
    of the residual are strides[0] elements apart, the same number for both.
    """

    x: Tensor
    w: Tensor
    y: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the operands and the result."""
        found = (self.x, self.w, self.bias, self.residual, self.y)
        return tuple(tensor for tensor in found if tensor is not None)


def make_launch(spec: KernelSpec, grid: tuple[int, int, int], values: Mapping[str, Any]) -> Launch:
    """Makes a launch. `values` by the names of the signature. Raises KernelError for values that the spec forbids."""
    if values.keys() != spec.names:
        names = ", ".join(name for name, _ in spec.signature)
        raise KernelError(f"{spec.kernel}: arguments must be {names}; got {', '.join(values)}")
    for size, most in zip(grid, MAX_BLOCKS, strict=True):
        if not 1 <= size <= most:
            raise KernelError(f"{spec.kernel}: a grid must be from (1, 1, 1) to {MAX_BLOCKS}, got {grid}")
    args = []
    for name, kind in spec.signature:
        value = values[name]
        number = _number(spec, name, kind, value)
        if name in spec.aligned and number % ALIGNMENT:
            what = f"{spec.kernel}: {name} must be a multiple of {ALIGNMENT}"
            raise KernelError(f"{what}, got {number}: give the tensor an aligned address")
        args.append(value)
    return Launch(spec.kernel, spec.variant, grid, tuple(args), spec.aligned_arguments)


def _number(spec: KernelSpec, name: str, kind: str, value: Any) -> Any:
    """Returns what a launch hands over for an argument: an address or a number. Raises KernelError for another type."""
    if isinstance(value, Tensor):
        if POINTERS.get(value.dtype) == kind:
            return value.address
    elif kind == "fp32":
        if isinstance(value, float):
            return value
    elif kind in INT_BOUNDS and isinstance(value, int | StepSize):
        number: Any = value
        if -INT_BOUNDS[kind] <= number < INT_BOUNDS[kind]:
            return number
    wanted = {"fp32": "a float", "i32": "an integer of 32 bits", "i64": "an integer of 64 bits"}
    what = wanted.get(kind, f"a tensor of {kind[1:]}")
    raise KernelError(f"{spec.kernel}: {name} must be {what}, got {value!r}")


def kernel_values(parameters: tuple[str, ...], launch: Launch) -> tuple[Any, ...]:
    """Returns what a launch hands over: numbers, with the addresses of tensors. `parameters`: those of the
    CompiledKernel. Raises KernelError for another number of them."""
    own = len(parameters) - parameters.count(SCRATCH)
    if own != len(launch.args):
        raise KernelError(f"{launch.kernel}: {own} arguments are expected, got {len(launch.args)}")
    return tuple(value.address if isinstance(value, Tensor) else value for value in launch.args)


def require_dense(*tensors: Tensor) -> None:
    """Raises KernelError for a tensor with gaps or another order of its dimensions."""
    for tensor in tensors:
        dense = dense_strides(tensor.shape)
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


def column_block(columns: int) -> int:
    """Returns the columns of a program, BLOCK of its kernel, where rows have so many."""
    return min(next_power_of_2(columns), COLUMN_BLOCK)


def column_grid(rows: int, columns: int, spec: KernelSpec) -> tuple[int, int, int]:
    """Returns the grid of programs that compute BLOCK columns of one row each."""
    return grid_of(rows, ceil_div(columns, spec.size("BLOCK")))


def aligns_rows(columns: int, *dtypes: str) -> bool:
    """Whether dense rows of so many columns begin at whole multiples of ALIGNMENT, in each of these types."""
    return all(columns * ITEM_BYTES[dtype] % ALIGNMENT == 0 for dtype in dtypes)
