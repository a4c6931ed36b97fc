"""Says how TensorRT for RTX runs a context: which kernels it compiles for the shapes of a step, whether CUDA graphs
replay decode steps, and where it keeps what it compiled.

The library compiles machine code on the machine with the GPU. Without a cache it does so at each start. The cache is a
file beside the plan. It is no part of the engine's identity: no checksum covers it, no result depends on it, and an
engine in a folder that cannot be written runs without it. Full TensorRT compiles when it builds, and has none of this.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.engine_format.tensorrt_manifest import DECODE
from tensorwright.errors import DeviceError, EngineError, InvalidOptionError, reason

log = logging.getLogger(__name__)

KERNELS_VARIABLE = "TENSORWRIGHT_TENSORRT_KERNELS"
"""The environment variable that says one of KERNELS."""
KERNELS = ("lazy", "eager", "none")
"""How the library makes kernels for shapes that it meets: in the background while a general kernel runs, before the
step runs, or never. With "lazy" two steps of the same shapes can differ in their last bits."""
CACHE_SUFFIX = ".cache"
MAX_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class RuntimeSettings:
    """What a user says of this. kernels: one of KERNELS. graphs: whether CUDA graphs replay decode steps.

    Raises InvalidOptionError for another word.
    """

    kernels: str = "lazy"
    graphs: bool = False

    def __post_init__(self) -> None:
        if self.kernels not in KERNELS:
            raise InvalidOptionError(f"{KERNELS_VARIABLE} must be one of {', '.join(KERNELS)}, got {self.kernels!r}")

    def check(self, flavour: str, ranks: int) -> None:
        """Raises InvalidOptionError where the library or the ranks have no such setting."""
        if flavour != "tensorrt-rtx" and self != RuntimeSettings():
            raise InvalidOptionError(
                f"target {flavour} compiles its kernels when it builds and has no graphs of its own: the settings of "
                "kernels and graphs are for target tensorrt-rtx"
            )
        if self.graphs and ranks > 1:
            raise InvalidOptionError(f"CUDA graphs of {ranks} ranks are not supported: run them without graphs")


class KernelCache:
    """The file that keeps compiled kernels from one start to the next."""

    def __init__(self, plan: Path):
        self.path = plan.with_name(plan.name + CACHE_SUFFIX)
        self._cache: Any = None
        self._taken = b""

    def attach(self, config: Any) -> None:
        """Gives the configuration of a context the cache, which all contexts of an engine share."""
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            self._read()
        if self._cache is None or not config.set_runtime_cache(self._cache):
            raise DeviceError(f"{self.path}: the library takes no cache of kernels; report it with io.json")

    def _read(self) -> None:
        try:
            if self.path.stat().st_size > MAX_CACHE_BYTES:
                raise EngineError(f"{self.path}: has more than {MAX_CACHE_BYTES} bytes; remove it")
            stored = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise EngineError(f"{self.path}: cannot be read ({reason(error)}); remove it") from error
        if self._cache.deserialize(stored):
            self._taken = stored
        else:  # another GPU or version: kernels are compiled anew, and the file is replaced
            log.info("%s: is of another GPU or version of the library, so kernels are compiled again", self.path)

    def save(self) -> None:
        """Writes what was compiled since the engine was opened. A folder that cannot be written is told of in the log,
        and the next start compiles again."""
        made = self._cache.serialize() if self._cache is not None else None
        content = b"" if made is None else bytes(made)
        if not content or content == self._taken or len(content) > MAX_CACHE_BYTES:
            return
        beside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            beside.write_bytes(content)
            os.replace(beside, self.path)
            self._taken = content
        except OSError as error:
            beside.unlink(missing_ok=True)
            log.warning("%s: compiled kernels are not kept (%s)", self.path, reason(error))

    def close(self) -> None:
        self._cache = None


def make_config(trt: Any, engine: Any, profile: int, settings: RuntimeSettings, cache: KernelCache) -> Any:
    """Returns the configuration of a context of this profile. Graphs are for decode steps, whose shapes come again.

    Raises DeviceError if the library does not take a setting.
    """
    config = engine.create_runtime_config()
    if config is None:
        raise DeviceError("the library makes no runtime configuration; report it with io.json")
    config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    specialization = getattr(trt.DynamicShapesKernelSpecializationStrategy, settings.kernels.upper())
    config.dynamic_shapes_kernel_specialization_strategy = specialization
    replays = settings.graphs and profile == DECODE
    graphs = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE if replays else trt.CudaGraphStrategy.DISABLED
    config.cuda_graph_strategy = graphs
    found = (config.dynamic_shapes_kernel_specialization_strategy, config.cuda_graph_strategy)
    if found != (specialization, graphs):
        raise DeviceError(f"the library took {found} for {(specialization, graphs)}; report it with io.json")
    cache.attach(config)
    return config
