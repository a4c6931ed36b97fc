"""Our plugins beneath a running engine: known to the library, with a driver for their kernels and their errors kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class EnginePlugins:
    """Of one engine, which is to be deserialized inside `loading`. driver: the module cuda.bindings.driver."""

    def __init__(self, trt: Any, driver: Any):
        from tensorwright.plugins.gpu.creators import register
        from tensorwright.plugins.gpu.driver import CudaDriver

        register(trt)
        self._driver = CudaDriver(driver)
        self._context: Any = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The plugins that are made inside are this engine's."""
        from tensorwright.plugins.gpu.build_context import running_with

        with running_with(self._driver) as self._context:
            yield

    def raise_first(self) -> None:
        """What a plugin raised since the last call, which the library only told as a failure."""
        if self._context is not None:
            self._context.raise_first()

    def close(self) -> None:
        """Unloads the kernels; the engine is gone by then, and its CUDA context still current."""
        self._driver.close()
