"""Holds what the plugins of one TensorRT build, or of one running engine, share: `building_for`, `running_with`.

TensorRT calls plugins through C++ functions that cannot throw. An exception of a Python plugin is printed and becomes,
depending on the method, a failed build, a crash, or (workspace, aliases, fields to serialize) a plan that silently
lacks parts. So a plugin also notes every exception here, and at the end `building_for` raises the first one.

The kernels of a build are compiled once per specialisation. The first layer that asks for a set of kernels stores the
set in the plan. The other layers name the set by its digest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorwright.errors import BuildError, EngineError
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.collective_call import Collectives
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.driver import CudaDriver, Driver
from tensorwright.plugins.gpu.launch import KernelSpec
from tensorwright.plugins.gpu.prepared_calls import MadeLaunch, Recent

_log = logging.getLogger("tensorwright.gpu")


class PluginContext:
    """`sms`: the SMs that a build compiles for; empty in a running engine, which writes the kernels that it read.
    `collectives`: what the ranks of a parallel engine do together, None for any other engine."""

    def __init__(
        self, sms: tuple[int, ...] = (), driver: Driver | None = None, collectives: Collectives | None = None
    ) -> None:
        self.sms = sms
        self.driver: Driver = CudaDriver() if driver is None else driver
        self._collectives = collectives
        self._first_error: Exception | None = None
        self._by_specs: dict[tuple[tuple[int, tuple[KernelSpec, ...]], ...], str] = {}
        self._bytes: dict[str, bytes] = {}
        self._bundles: dict[str, bundle.Bundle] = {}
        self._carriers: dict[str, str] = {}
        self._made: dict[Any, Recent[list[MadeLaunch]]] = {}

    def made_launches(self, kind: Any) -> Recent[list[MadeLaunch]]:
        """Returns the recent calls of all layers of an equal `kind`: those whose launches are the same."""
        return self._made.setdefault(kind, Recent())

    @property
    def collectives(self) -> Collectives:
        if self._collectives is None:
            raise EngineError("the plan has layers that ranks compute together, and this one runs alone: rebuild it")
        return self._collectives

    def compile(self, specs: Iterable[tuple[int, tuple[KernelSpec, ...]]]) -> str:
        """Compiles pairs (SM, specialisations). Returns the digest of all kernels."""
        wanted = tuple((sm, tuple(kernels)) for sm, kernels in specs)
        if wanted not in self._by_specs:
            compiled = [compile_kernel(spec, sm) for sm, kernels in wanted for spec in kernels]
            self._by_specs[wanted] = self.add(bundle.to_bytes(compiled))
        return self._by_specs[wanted]

    def add(self, data: bytes) -> str:
        """Adds kernels that a layer had or a build made. Returns their digest."""
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
        """Returns whether this layer stores the kernels for all. Goes by name, as a layer is cloned and rewritten."""
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
        """Logs an exception and keeps the first one, which TensorRT would not hand on."""
        _log.error("TensorRT plugin %s: %s", where, error)
        if self._first_error is None:
            self._first_error = error

    def raise_first(self) -> None:
        """Raises the first exception of a plugin since the last call, if there was one."""
        first, self._first_error = self._first_error, None
        if first is not None:
            raise first


_building: PluginContext | None = None
_running = PluginContext()


@contextmanager
def building_for(sms: Iterable[int], driver: Driver | None = None) -> Iterator[PluginContext]:
    """A context for parsing and building: plugins made inside compile for these SMs. At the end it raises the first
    exception of a plugin, in place of TensorRT's less clear error."""
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
def running_with(driver: Driver, collectives: Collectives | None = None) -> Iterator[PluginContext]:
    """A context for deserializing an engine, whose plugins start kernels by `driver`, do by `collectives` what ranks do
    together, and note errors in the result."""
    global _running
    before, _running = _running, PluginContext((), driver, collectives)
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
    """Returns the context of the engine being deserialized; outside `running_with` the process's, on CudaDriver."""
    return _running
