"""What the plugins of one TensorRT build, or of one running engine, share: `building_for(sms)`, `running_with(driver)`.

TensorRT calls plugins through C++ functions that cannot throw. An exception of a Python plugin is printed and becomes,
depending on the method, a failed build, a crash, or (workspace, aliases, fields to serialize) a plan that silently
lacks something. So a plugin notes every exception here as well, and leaving `building_for` raises the first one.

The kernels of a build are compiled once per specialisation, and each set travels in one layer of the plan: the first
that asks for it. The other layers name it by its digest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tensorwright.errors import BuildError, EngineError
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.driver import CudaDriver, Driver
from tensorwright.plugins.gpu.launch import KernelSpec

_log = logging.getLogger("tensorwright.gpu")


class PluginContext:
    """`sms`: what a build compiles for; empty where an engine runs, which writes what it read."""

    def __init__(self, sms: tuple[int, ...] = (), driver: Driver | None = None) -> None:
        self.sms = sms
        self.driver: Driver = CudaDriver() if driver is None else driver
        self._first_error: Exception | None = None
        self._by_specs: dict[tuple[tuple[int, tuple[KernelSpec, ...]], ...], str] = {}
        self._bytes: dict[str, bytes] = {}
        self._bundles: dict[str, bundle.Bundle] = {}
        self._carriers: dict[str, str] = {}

    def compile(self, specs: Iterable[tuple[int, tuple[KernelSpec, ...]]]) -> str:
        """Compiles (SM, its specialisations); the digest of all of them."""
        wanted = tuple((sm, tuple(kernels)) for sm, kernels in specs)
        if wanted not in self._by_specs:
            compiled = [compile_kernel(spec, sm) for sm, kernels in wanted for spec in kernels]
            self._by_specs[wanted] = self.add(bundle.to_bytes(compiled))
        return self._by_specs[wanted]

    def add(self, data: bytes) -> str:
        """Kernels that a layer brought, or a build made; returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        self._bytes[digest] = data
        return digest

    def kernel_bytes(self, digest: str) -> bytes:
        return self._bytes[digest]

    @property
    def bundle_bytes(self) -> int:
        """Returns the bytes of all kernels, in the form that the plan holds."""
        return sum(map(len, self._bytes.values()))

    def carries(self, digest: str, layer: str) -> bool:
        """Whether this layer holds the kernels for all; by name, for a layer is cloned and written more than once."""
        return self._carriers.setdefault(digest, layer) == layer

    def kernels(self, digest: str) -> bundle.Bundle:
        if digest not in self._bytes:
            raise EngineError(
                f"the engine's plan names GPU kernels {digest[:12]} and no layer of it brings them: rebuild the engine"
            )
        if digest not in self._bundles:
            self._bundles[digest] = bundle.from_bytes(self._bytes[digest])
        return self._bundles[digest]

    def note(self, where: str, error: Exception) -> None:
        """Logs it, and keeps the first, which TensorRT will not hand on."""
        _log.error("TensorRT plugin %s: %s", where, error)
        if self._first_error is None:
            self._first_error = error

    def raise_first(self) -> None:
        """The first exception of a plugin since the last call, if there was one."""
        first, self._first_error = self._first_error, None
        if first is not None:
            raise first


_building: PluginContext | None = None
_running = PluginContext()


@contextmanager
def building_for(sms: Iterable[int], driver: Driver | None = None) -> Iterator[PluginContext]:
    """Parse and build inside: plugins made here compile for these SMs. Raises at its end what a plugin raised in it,
    in place of the less telling error that TensorRT made of that."""
    global _building
    if _building is not None:
        raise BuildError("one TensorRT build at a time in a process: another one has not ended")
    _building = context = PluginContext(tuple(sms), driver)
    try:
        yield context
    except Exception as error:
        if context._first_error is not None:
            raise context._first_error from error
        raise
    else:
        context.raise_first()
    finally:
        _building = None


@contextmanager
def running_with(driver: Driver) -> Iterator[PluginContext]:
    """Deserialize an engine inside: its plugins start kernels through `driver` and note their errors in the result."""
    global _running
    before, _running = _running, PluginContext((), driver)
    try:
        yield _running
    finally:
        _running = before


def build_context() -> PluginContext:
    """Returns the context of the build in progress."""
    if _building is None:
        raise BuildError("a TensorRT plugin was made outside `building_for(sms)`, so nothing says for which GPUs")
    return _building


def run_context() -> PluginContext:
    """Of the engine that is being deserialized; outside `running_with` it is the process's, on the CUDA driver."""
    return _running
