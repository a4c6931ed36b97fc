"""Stores the compiled kernels of an engine as bytes: machine code per SM, and PTX of the lowest SM for later ones.

The bytes are: magic 8, sha256 of the rest 32, zlib(length of the index 4, index as JSON, code one after another).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorwright.engine_format.gpu_code import ARCH_SPECIFIC, runs_on
from tensorwright.errors import EngineError, KernelError

MAGIC = b"TWGPUK\x00\x01"
"""The last byte is the version of the format."""
_HEAD = len(MAGIC) + 32


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
    """Machine code of a specialisation for one SM, with all facts that a launch needs."""

    kernel: str
    variant: str
    sm: int
    name: str
    """The name of the entry point in the code."""
    num_warps: int
    shared_bytes: int
    registers: int
    """Registers of one thread."""
    spill_bytes: int
    """Bytes that one thread stores to and loads from local memory, as ptxas counts them."""
    parameters: tuple[str, ...]
    """Types of the launch's arguments, then SCRATCH twice: see `kernel_values` of launch.py."""
    cubin: bytes
    ptx: str


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Kernels by (kernel, variant, sm), each kernel for the same SMs, whose variants may differ. Only the lowest SM's
    kernels have a `ptx` that is not empty."""

    kernels: dict[tuple[str, str, int], CompiledKernel]
    _found: dict[tuple[str, str, int], tuple[CompiledKernel, bytes]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What `find` has answered."""

    def sms(self) -> tuple[int, ...]:
        return tuple(sorted({sm for _, _, sm in self.kernels}))

    def code_sm(self, sm: int) -> int:
        """Returns the SM whose code runs on this SM: its own, a lower one of its generation, or that of the lowest PTX,
        which the driver compiles. A launch must be made for it. Raises KernelError if there is none."""
        return self._code_sm(sm, self.sms(), "the engine")

    def find(self, kernel: str, variant: str, sm: int) -> tuple[CompiledKernel, bytes]:
        """Returns the kernel's facts and the code to load on this SM: its own code, that of a lower SM of its
        generation, or PTX, a text that ends in a zero byte and that the driver compiles. Raises KernelError."""
        found = self._found.get((kernel, variant, sm))
        if found is None:
            found = self._found[kernel, variant, sm] = self._search(kernel, variant, sm)
        return found

    def _search(self, kernel: str, variant: str, sm: int) -> tuple[CompiledKernel, bytes]:
        known = {at: k for (name, form, at), k in self.kernels.items() if (name, form) == (kernel, variant)}
        if not known and any(name == kernel for name, _, _ in self.kernels):
            raise KernelError(
                f"{kernel} ({variant}): the engine has other forms of this kernel, since another version of "
                "tensorwright built it: build it again"
            )
        chosen = known[self._code_sm(sm, known, f"{kernel} ({variant}): the engine")]
        if runs_on(chosen.sm, sm):
            return chosen, chosen.cubin
        return chosen, chosen.ptx.encode() + b"\x00"

    @staticmethod
    def _code_sm(sm: int, known: Iterable[int], whose: str) -> int:
        native = [at for at in known if runs_on(at, sm)]
        portable = [at for at in known if at < min(sm, ARCH_SPECIFIC)]
        if native or portable:
            return max(native) if native else min(portable)
        there = ", ".join(map(str, sorted(known))) or "no SM at all"
        raise KernelError(f"{whose} has code for {there}, none that runs on SM {sm}; build it with --sm {sm}")


def to_bytes(kernels: Iterable[CompiledKernel]) -> bytes:
    """Returns the same bytes for the same kernels in any order."""
    ordered = sorted({(k.kernel, k.variant, k.sm): k for k in kernels}.items())
    lowest = min((sm for _, _, sm in (key for key, _ in ordered)), default=0)
    index, code = [], []
    for (_, _, sm), kernel in ordered:
        fields = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel)}
        text, cubin = fields.pop("ptx"), fields.pop("cubin")
        ptx = text.encode() if sm == lowest else b""
        index.append({**fields, "cubin_bytes": len(cubin), "ptx_bytes": len(ptx)})
        code += [cubin, ptx]
    head = json.dumps(index, sort_keys=True).encode()
    body = zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(code), 6)
    return MAGIC + hashlib.sha256(body).digest() + body


def from_bytes(data: bytes) -> Bundle:
    """Reads what `to_bytes` made. Raises EngineError for other bytes."""
    if data[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise EngineError("the GPU kernels of the engine do not begin as they must: rebuild the engine")
    if data[len(MAGIC) - 1] != MAGIC[-1]:
        raise EngineError(
            f"the GPU kernels of the engine are of version {data[len(MAGIC) - 1]}, this is {MAGIC[-1]}: rebuild it"
        )
    body = data[_HEAD:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _HEAD]:
        raise EngineError("the GPU kernels of the engine are truncated or altered: rebuild the engine")
    content = zlib.decompress(body)
    size = int.from_bytes(content[:4], "little")
    at, kernels = 4 + size, {}
    for entry in json.loads(content[4:at]):
        cubin_bytes, ptx_bytes = entry.pop("cubin_bytes"), entry.pop("ptx_bytes")
        cubin, ptx = content[at : at + cubin_bytes], content[at + cubin_bytes : at + cubin_bytes + ptx_bytes]
        at += cubin_bytes + ptx_bytes
        kernel = _kernel(entry, cubin, ptx.decode())
        kernels[kernel.kernel, kernel.variant, kernel.sm] = kernel
    return Bundle(kernels)


def _kernel(entry: dict[str, Any], cubin: bytes, ptx: str) -> CompiledKernel:
    return CompiledKernel(**{**entry, "parameters": tuple(entry["parameters"])}, cubin=cubin, ptx=ptx)


def read_cached(path: Path) -> CompiledKernel | None:
    """Returns a kernel of the user's cache; None if it is not there, or a crash or a disk fault damaged the file."""
    try:
        (kernel,) = from_bytes(path.read_bytes()).kernels.values()
    except (OSError, EngineError):
        return None
    return kernel


def write_cached(path: Path, kernel: CompiledKernel) -> None:
    """Writes the file whole or not at all. A cache that cannot be written costs only time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(to_bytes([kernel]))
        os.replace(file.name, path)
