"""Compiles the stand-in of libcuda and cuBLASLt (fake_libcuda.c), and takes down what is started on it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.places import TESTS

SOURCE = TESTS / "support" / "fake_libcuda.c"
PARAMETERS = 64
LAUNCH, PRODUCT = 4, 5
_RUNNER = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint64),
)  # fmt: skip


def compile_libcuda(folder: Path) -> Path:
    """Returns the library, which is both libcuda and libcublasLt."""
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


@dataclass(frozen=True)
class Started:
    """A kernel or a product that ran. kernel: the kernel's number; -1 for a product, whose values are m, n, k, the
    types, the addresses of x, w, bias, C and D, and the stride of C and D."""

    kernel: int
    grid: tuple[int, int, int]
    block: int
    shared: int
    values: tuple[int, ...]


@dataclass
class FakeDevice:
    """The stand-in, with one GPU of this SM. run: what does the work of what was started; None leaves memory as it
    is."""

    library: Path
    sm: int = 90
    memory: int = 1 << 30
    run: Callable[[Started], None] | None = None
    started: list[Started] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._c = ctypes.CDLL(str(self.library))
        self._c.fake_faults.restype = ctypes.c_char_p
        self._c.fake_reset.argtypes = [ctypes.c_int, ctypes.c_size_t, _RUNNER]
        self._runner = _RUNNER(self._ran)
        self._c.fake_reset(self.sm, self.memory, self._runner)

    def _ran(self, kind: int, kernel: int, grid: ctypes.Array[ctypes.c_uint32], block: int, shared: int,
             values: ctypes.Array[ctypes.c_uint64]) -> None:  # fmt: skip
        number = kernel if kind == LAUNCH else -1
        one = Started(number, (grid[0], grid[1], grid[2]), block, shared, tuple(values[:PARAMETERS]))
        self.started.append(one)
        if self.run is not None:
            self.run(one)

    @property
    def faults(self) -> list[str]:
        """What a GPU would have answered with a crash or with wrong numbers."""
        return str(self._c.fake_faults().decode()).splitlines()

    @property
    def live(self) -> int:
        """How many pieces of memory are not freed."""
        return int(self._c.fake_live())

    def fail_launch(self, call: int) -> None:
        """Makes the launch after `call` more of them fail, as after an illegal access of a kernel."""
        self._c.fake_fail_launch(call)

    def pieces(self) -> dict[int, int]:
        """Returns address -> bytes of the device's memory."""
        addresses, sizes = (ctypes.c_uint64 * 4096)(), (ctypes.c_uint64 * 4096)()
        count = self._c.fake_pieces(addresses, sizes)
        return dict(zip(addresses[:count], sizes[:count], strict=True))
