"""Finds and loads NCCL, and calls it through ctypes: `load_nccl`. Nothing is linked; only engines with ranks need it.

Names and types are those of nccl.h from release 2.18 on. Communicators are made non-blocking, so no call waits for
another rank: it answers IN_PROGRESS, and `async_error` says what became of it.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorwright.errors import MissingDependencyError, RankError, reason
from tensorwright.installing import install

LIBRARY = "TENSORWRIGHT_NCCL"
"""The environment variable that names the library of NCCL."""
EXTRA = "nccl"
SONAME = "libnccl.so.2"
OLDEST, NEWEST = (2, 18), (3, 0)
"""The first release that is taken, which brought ncclCommSplit, and the first that is not."""
ID_BYTES = 128
SUCCESS, IN_PROGRESS = 0, 7
SUM = 0
DTYPES = {"int8": 0, "int32": 2, "float16": 6, "float32": 7, "bfloat16": 9}
"""ncclDataType_t."""
_MAGIC = 0xCAFEBEEF
_UNSET = -(2**31)
"""NCCL_CONFIG_UNDEF_INT: the library chooses."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId: where ranks meet that make a communicator."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class _Config(ctypes.Structure):
    """ncclConfig_t of release 2.18. Later ones read no more of it than `size` bytes, and take their defaults for the
    rest."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


_POINTER, _INT, _COUNT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (_POINTER, _INT, UniqueId, _INT, ctypes.POINTER(_Config)),
    "ncclCommSplit": (_POINTER, _INT, _INT, _POINTER, ctypes.POINTER(_Config)),
    "ncclCommGetAsyncError": (_POINTER, ctypes.POINTER(_INT)),
    "ncclCommAbort": (_POINTER,),
    "ncclAllReduce": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _COUNT, _INT, _POINTER, _POINTER),
    "ncclSend": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
}
"""The arguments of each function that is called. All return ncclResult_t."""


class Nccl:
    """The loaded library. Its functions that a step calls are attributes of their names: `ncclAllReduce` and so on."""

    def __init__(self, library: Any, version: tuple[int, int, int]):
        self.version = version
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _INT
            setattr(self, name, function)
        self._error_text = library.ncclGetErrorString
        self._error_text.argtypes, self._error_text.restype = (_INT,), ctypes.c_char_p
        self._last_text = library.ncclGetLastError
        self._last_text.argtypes, self._last_text.restype = (_POINTER,), ctypes.c_char_p

    def unique_id(self) -> bytes:
        """Returns the id under which ranks make one communicator. Raises RankError."""
        made = UniqueId()
        code = self.ncclGetUniqueId(ctypes.byref(made))  # type: ignore[attr-defined]
        if code != SUCCESS:
            raise RankError(f"[ranks] NCCL: ncclGetUniqueId answers {self.explain(code)}")
        return bytes(made)

    def begin(self, size: int, unique_id: bytes, rank: int) -> tuple[int, int]:
        """Begins to make the communicator of `size` ranks on the current device. Returns the code and its handle."""
        handle, config = ctypes.c_void_p(), self._config()
        made = UniqueId.from_buffer_copy(unique_id)
        code = self.ncclCommInitRankConfig(  # type: ignore[attr-defined]
            ctypes.byref(handle), size, made, rank, ctypes.byref(config)
        )
        return code, handle.value or 0

    def begin_split(self, handle: int, color: int, key: int) -> tuple[int, ctypes.c_void_p]:
        """Begins to make a communicator of the ranks of one colour. NCCL writes its handle when the call has ended."""
        part, config = ctypes.c_void_p(), self._config()
        code = self.ncclCommSplit(  # type: ignore[attr-defined]
            handle, color, key, ctypes.byref(part), ctypes.byref(config)
        )
        return code, part

    def async_error(self, handle: int) -> int:
        """Returns what became of the last calls for a communicator: SUCCESS, IN_PROGRESS, or an error."""
        found = ctypes.c_int()
        code: int = self.ncclCommGetAsyncError(handle, ctypes.byref(found))  # type: ignore[attr-defined]
        return code if code != SUCCESS else found.value

    def abort(self, handle: int) -> None:
        """Ends what a communicator does, also on the GPU, and frees it."""
        self.ncclCommAbort(handle)  # type: ignore[attr-defined]

    def explain(self, code: int) -> str:
        """Returns an error code as text, with what the library said last."""
        text = (self._error_text(code) or b"").decode(errors="replace")
        last = (self._last_text(None) or b"").decode(errors="replace").strip()
        return f"{code}, {text}" + (f" ({last})" if last else "")

    def _config(self) -> _Config:
        version = 10000 * self.version[0] + 100 * self.version[1] + self.version[2]
        unset = dict.fromkeys(("cga_cluster_size", "min_ctas", "max_ctas", "split_share"), _UNSET)
        return _Config(size=ctypes.sizeof(_Config), magic=_MAGIC, version=version, blocking=0, net_name=None, **unset)


def load_nccl() -> Nccl:
    """Returns NCCL: the library that TENSORWRIGHT_NCCL names, that of NVIDIA's package, or the system's.

    Raises MissingDependencyError if there is none, or if its release is not one that this tensorwright knows.
    """
    place = find_library(os.environ.get(LIBRARY))
    try:
        library = ctypes.CDLL(place)
    except OSError as error:
        raise MissingDependencyError(
            f"the ranks of an engine on GPUs talk through NCCL, and {place} does not load ({reason(error)}): "
            f"{install(EXTRA)}, or let {LIBRARY} name the library"
        ) from error
    number = ctypes.c_int()
    try:
        library.ncclGetVersion(ctypes.byref(number))
        version = divmod_version(number.value)
        if not OLDEST <= version[:2] < NEWEST:
            raise MissingDependencyError(
                f"{place} is NCCL {'.'.join(map(str, version))}, and ranks need 2.18 or a later 2: "
                f"{install(EXTRA, options='--upgrade')}, or let {LIBRARY} name another library"
            )
        return Nccl(library, version)
    except AttributeError as error:
        raise MissingDependencyError(
            f"{place} is not NCCL, for it lacks a function ({error}): {install(EXTRA)}, or let {LIBRARY} name another "
            "library"
        ) from error


def find_library(named: str | None) -> str:
    """Returns what is loaded: `named` if it is given, the file of the package nvidia-nccl, or the system's name."""
    if named:
        return named
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") is not None else None
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [Path(folder) / "lib" / SONAME for folder in folders]
    return next((str(file) for file in files if file.is_file()), SONAME)


def divmod_version(number: int) -> tuple[int, int, int]:
    """Returns (major, minor, patch) of NCCL_VERSION_CODE as it is from release 2.9 on: 21805 is 2.18.5."""
    return number // 10000, number // 100 % 100, number % 100
