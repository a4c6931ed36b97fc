"""Runs launches on copies of the memory: the process with TRITON_INTERPRET=1 that interpret.py starts."""

from __future__ import annotations

import functools
import importlib
import math
import os
import sys
import traceback
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu import interpret_asm
from tensorwright.plugins.gpu.interpret import ADDRESS_ALIGNMENT, receive, send
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

TYPES = {
    "fp32": tl.float32,
    "fp16": tl.float16,
    "bf16": tl.bfloat16,
    "i8": tl.int8,
    "i32": tl.int32,
    "i64": tl.int64,
}
NUMPY = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}


class Bounds:
    """The memory that kernels may touch, by its real addresses."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.starts, self.ends = np.array(sorted(ranges), np.uint64).reshape(-1, 2).T

    def check(self, pointers: Any, mask: Any, what: str) -> None:
        size = np.uint64(max(pointers.get_element_ty().primitive_bitwidth // 8, 1))
        addresses = pointers.data[np.broadcast_to(mask, pointers.data.shape)]
        at = np.searchsorted(self.starts, addresses, side="right") - 1
        outside = (at < 0) | (addresses + size > self.ends[np.maximum(at, 0)])
        if outside.any():
            raise KernelError(f"a {what} outside every tensor, in {int(outside.sum())} of {addresses.size} elements")


_bounds = Bounds([])


def _watch() -> None:
    """Makes Triton's interpreter check each access first."""
    builder = interpreter.InterpreterBuilder
    load, store, update = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def as_bool(mask: Any) -> Any:
        """Returns a mask as booleans: the `and` of a block's mask and a scalar condition has integers."""
        return interpreter.TensorHandle(mask.data.astype(np.bool_), tl.int1)

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        mask = as_bool(mask)
        _bounds.check(pointers, mask.data, "load")
        return load(self, pointers, mask, *rest, **named)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask = as_bool(mask)
        _bounds.check(pointers, mask.data, "store")
        return store(self, pointers, value, mask, *rest)

    def checked_update(self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask = as_bool(mask)
        _bounds.check(pointers, mask.data, "atomic update")
        return update(self, kind, pointers, value, mask, *rest)

    builder.create_masked_load = checked_load
    builder.create_masked_store = checked_store
    builder.create_atomic_rmw = checked_update


def _compute_bfloat16() -> None:
    """Makes the interpreter round bfloat16 to nearest even, as a GPU does.

    Triton 3.9's interpreter truncates, and multiplies the bit patterns.
    """
    builder = interpreter.InterpreterBuilder
    cast, dot, binary = builder.cast_impl, builder.create_dot, builder.binary_op

    def rounding_cast(self: Any, source: Any, target: Any, *_: Any) -> Any:
        kind = target.scalar
        if source.dtype.scalar == tl.bfloat16 and kind != tl.bfloat16:
            source = interpreter.TensorHandle(from_bfloat16_bits(source.data), tl.float32)
        if kind != tl.bfloat16:
            return cast(self, source, target)
        if source.dtype.scalar == tl.bfloat16:
            return source
        data = to_bfloat16_bits(source.data.astype(np.float32)).reshape(source.data.shape)
        return interpreter.TensorHandle(data, kind)

    def wide_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (rounding_cast(self, x, tl.float32) for x in (a, b))
        return dot(self, a, b, *rest)

    def refusing_binary(self: Any, left: Any, right: Any, op: Any) -> Any:
        if tl.bfloat16 in (left.dtype.scalar, right.dtype.scalar):
            raise KernelError("arithmetic in bfloat16 is not interpreted: kernels compute in float32")
        return binary(self, left, right, op)

    builder.cast_impl = builder.create_fp_to_fp = rounding_cast
    builder.create_dot = wide_dot
    builder.binary_op = refusing_binary


class Patched:
    """Triton's functions as they are while kernels run. This process runs nothing else, so they stay so."""

    def restore(self) -> None:
        pass


def _patch_once() -> None:
    """Makes the interpreter patch the functions of Triton's language once, and not again at each launch and at each
    call of another function from a kernel: it looks at all names of the language then."""
    patch = interpreter._patch_lang
    seen: set[frozenset[str]] = set()

    def patch_once(function: Any) -> Patched:
        names = {name for name, value in function.__globals__.items() if value is tl or value is tl.core}
        languages = frozenset(function.__globals__[name].__name__ for name in names)
        if languages not in seen:
            patch(function)
            seen.add(languages)
        return Patched()

    interpreter._patch_lang = patch_once


def _remember_shapes() -> None:
    """Makes each tensor of a shape share the objects that say so, and finds numpy's types in a table that is made once.
    The interpreter makes all of that for each tensor, which takes longer than what the tensor is for."""

    @functools.cache
    def sizes(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return tl.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(math.prod(shape))

    def init(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = sizes(kind.shape if kind.is_block() else ())

    numpy_type = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}

    def known_numpy_type(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(kind)
        return numpy_types[name]

    tl.tensor.__init__ = init
    interpreter._get_np_dtype = known_numpy_type


class Results:
    """What a block of inline assembly returns, in the form of the compiler's operation."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> Any:
        return self._handles[index]


def _run_assembly() -> None:
    """Makes the interpreter run inline PTX, which Triton 3.9's refuses."""

    def create_inline_asm(
        self: Any, text: str, constraints: str, values: list[Any], types: list[Any], pure: bool, pack: int
    ) -> Results:
        kinds = [kind.scalar for kind in types]
        sizes = [kind.primitive_bitwidth // 8 for kind in kinds]
        found = interpret_asm.run(text, constraints, [value.data for value in values], sizes, pack)
        numpy = [interpreter._get_np_dtype(kind) for kind in kinds]
        return Results(
            [
                interpreter.TensorHandle(data.view(dtype), kind)
                for data, dtype, kind in zip(found, numpy, kinds, strict=True)
            ]
        )

    interpreter.InterpreterBuilder.create_inline_asm = create_inline_asm


def run(work: list[tuple[KernelSpec, Launch]], blocks: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Runs the launches and returns the blocks' contents, by the addresses of the launches."""
    global _bounds
    real = {address: _aligned_copy(data) for address, data in blocks.items()}
    _bounds = Bounds([(copy.ctypes.data, copy.ctypes.data + copy.nbytes) for copy in real.values()])
    for spec, launch in work:
        function = getattr(importlib.import_module(spec.module), spec.kernel)
        given = zip(spec.signature, launch.args, strict=True)
        values = {name: _argument(kind, value, real) for (name, kind), value in given}
        function[launch.grid](**values, **dict(spec.constants))
    return real


def _aligned_copy(data: np.ndarray) -> np.ndarray:
    """Returns a copy that is aligned as a GPU's memory is, with as much room in front."""
    raw = np.empty(data.nbytes + 2 * ADDRESS_ALIGNMENT, np.uint8)
    start = ADDRESS_ALIGNMENT - raw.ctypes.data % ADDRESS_ALIGNMENT
    copy = raw[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    copy[...] = data
    return copy


def _argument(kind: str, value: Any, real: dict[int, np.ndarray]) -> Any:
    """Returns a scalar or a pointer in the form of Triton's interpreter."""
    if not kind.startswith("*"):
        handle = interpreter.TensorHandle(np.array([value], NUMPY[kind]), TYPES[kind])
        return tl.tensor(handle, TYPES[kind])
    pointer = tl.pointer_type(TYPES[kind[1:]])
    handle = interpreter.TensorHandle(np.array([_real_address(value, real)], np.uint64), pointer)
    return tl.tensor(handle, pointer)


def _real_address(tensor: Tensor, real: dict[int, np.ndarray]) -> int:
    for address, data in real.items():
        if address <= tensor.address <= address + data.nbytes:
            return data.ctypes.data + tensor.address - address
    raise KernelError(f"{tensor.name} lies at {tensor.address:#x}, where no memory is")


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the kernels' own prints must not go between the answers
    _watch()
    _compute_bfloat16()
    _run_assembly()
    _patch_once()
    _remember_shapes()
    np.seterr(all="ignore")
    while (request := receive(requests)) is not None:
        try:
            answer: Any = run(*request)
        except Exception:
            answer = traceback.format_exc()
        send(answers, answer)
    sys.exit(0)


if __name__ == "__main__":
    main()
