"""Registers our plugins for a running engine, gives them a driver for their kernels, and keeps their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class EnginePlugins:
    """The plugins of one engine, which must be deserialized inside `loading`. driver: the module
    cuda.bindings.driver. collectives: the Communicators of a parallel engine."""

    def __init__(self, trt: Any, driver: Any, collectives: Any = None):
        from tensorwright.plugins.gpu.creators import register
        from tensorwright.plugins.gpu.driver import CudaDriver

        register(trt)
        self._driver = CudaDriver(driver)
        self._collectives = collectives
        self._context: Any = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Assigns the plugins that are made inside the context to this engine."""
        from tensorwright.plugins.gpu.build_context import running_with

        with running_with(self._driver, self._collectives) as self._context:
            yield

    def raise_first(self) -> None:
        """Raises the first error that a plugin raised since the last call. The library reports only that a plugin
        failed."""
        if self._context is not None:
            self._context.raise_first()

    def close(self) -> None:
        """Unloads the kernels. The caller must have released the engine before, and its CUDA context must be
        current."""
        self._driver.close()
