"""A stand-in for the modules tensorrt and tensorrt_rtx, over the device memory of fake_gpu.

The "engine" is made of its manifest and computes by a Python function on numpy views of that memory. It is as strict as
the library is, and stricter where that would compute nonsense: every shape against the profile, one value per symbol,
every address aligned, inside one allocation and apart from the others, nothing left unset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from support.fake_gpu import FakeCuda, FaultError
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.tensorrt_manifest import IoTensor, Manifest, resolve

STORAGE = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int32": np.int32, "int8": np.int8}
Network = Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], None]
"""(inputs, outputs) by name: fills the outputs. An aliased output is the same memory as its input."""


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BF16 = 7


DTYPES = {"float32": DataType.FLOAT, "float16": DataType.HALF, "bfloat16": DataType.BF16} | {
    "int32": DataType.INT32,
    "int8": DataType.INT8,
}


class Strategy(IntEnum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class Specialization(IntEnum):
    LAZY = 0
    EAGER = 1
    NONE = 2


class Graphs(IntEnum):
    DISABLED = 0
    WHOLE_GRAPH_CAPTURE = 1


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class Registry:
    def __init__(self) -> None:
        self.known: set[tuple[str, str, str]] = set()

    def get_creator(self, name: str, version: str, namespace: str = "") -> object | None:
        return object() if (name, version, namespace) in self.known else None


class FakeTensorRt:
    """In place of the module. `plan`: the bytes that deserialize; anything else is refused."""

    DataType, ILogger, ExecutionContextAllocationStrategy = DataType, ILogger, Strategy
    DynamicShapesKernelSpecializationStrategy, CudaGraphStrategy = Specialization, Graphs

    def __init__(self, cuda: FakeCuda, manifest: Manifest, network: Network, plan: bytes = b"plan"):
        self.cuda, self.manifest, self.network, self.plan = cuda, manifest, network, plan
        self.__version__ = manifest.library_version
        self.registry = Registry()
        self.plugins: Any = None
        self.plugin_errors: list[Exception] = []  # that plugins noted and nobody was told
        self.scratch = [5000, 300]  # bytes, per profile
        self.dropped: set[str] = set()  # inputs that the library optimized away
        self.ran: list[tuple[int, list[int]]] = []  # profile and tokens of each sequence, per step
        self.refuse: dict[str, int] = {}  # method of a context -> which call of it is refused
        self.capturable = True
        self.contexts: list[tuple[Specialization, Graphs]] = []  # of each context of an RTX engine, how it runs

    def Runtime(self, logger: Any) -> FakeRuntime:
        return FakeRuntime(self, logger)

    def get_plugin_registry(self) -> Registry:
        return self.registry


class FakePlugins:
    """In place of runtime.tensorrt.plugins.EnginePlugins: the library then knows those of the manifest."""

    def __init__(self, trt: FakeTensorRt, driver: FakeCuda, collectives: Any = None):
        assert driver is trt.cuda
        self.collectives = collectives
        self.trt, self.errors, self.is_loading = trt, trt.plugin_errors, False
        trt.registry.known |= {(name, version, "tensorwright") for name, version in trt.manifest.plugins.items()}
        trt.plugins = self

    @contextmanager
    def loading(self) -> Iterator[None]:
        self.is_loading = True
        yield
        self.is_loading = False

    def raise_first(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def close(self) -> None:
        self.trt.cuda.note("plugins closed")


class FakeRuntime:
    def __init__(self, trt: FakeTensorRt, logger: Any):
        self.trt, self.logger = trt, logger

    def deserialize_cuda_engine(self, plan: Any) -> FakeEngine | None:
        self.trt.cuda.note("deserialize")
        assert self.trt.plugins.is_loading
        if bytes(plan) != self.trt.plan:
            self.logger.log(ILogger.WARNING, "a warning")
            self.logger.log(ILogger.ERROR, "magicTag is wrong\n")
            return None
        return FakeEngine(self)

    def __del__(self) -> None:
        self.trt.cuda.note("runtime freed")


class FakeEngine:
    def __init__(self, runtime: FakeRuntime):
        self.runtime, self.trt = runtime, runtime.trt
        manifest = self.trt.manifest
        tensors = (*manifest.inputs, *manifest.outputs)
        self.tensors = {t.name: t for t in tensors if t.name not in self.trt.dropped}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(manifest.profiles)
        self.device_memory_size_v2 = max(self.trt.scratch)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DTYPES[self.tensors[name].dtype]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else -1 for d in self.tensors[name].shape)

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.tensors[name].alias

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return self.trt.scratch[profile]

    def create_runtime_config(self) -> FakeRuntimeConfig:
        assert self.trt.manifest.flavour == "tensorrt-rtx", "the settings are those of TensorRT for RTX"
        return FakeRuntimeConfig(self.trt)

    def create_execution_context(self, how: Strategy | FakeRuntimeConfig) -> FakeContext:
        self.trt.cuda.note("create_execution_context", how)
        if isinstance(how, FakeRuntimeConfig):
            assert how.cache is not None
            self.trt.contexts.append((how.dynamic_shapes_kernel_specialization_strategy, how.cuda_graph_strategy))
            return FakeContext(self, how.strategy, how.cache)
        return FakeContext(self, how)

    def __del__(self) -> None:
        self.trt.cuda.note("engine freed")


class FakeRuntimeCache:
    """Holds the shapes that steps had, as the library's holds what it compiled for them."""

    def __init__(self, trt: FakeTensorRt):
        self.trt, self.lines = trt, []

    def deserialize(self, blob: bytes) -> bool:
        lines = blob.decode().splitlines()
        if lines[0] != self.trt.__version__:
            return False
        self.lines = lines[1:]
        return True

    def serialize(self) -> bytes:
        return "\n".join([self.trt.__version__, *self.lines]).encode()


class FakeRuntimeConfig:
    """Like the library's, it keeps what it knows and drops what it does not."""

    def __init__(self, trt: FakeTensorRt):
        self.trt, self.cache = trt, None
        self.strategy = Strategy.STATIC
        self.dynamic_shapes_kernel_specialization_strategy = Specialization.LAZY
        self.cuda_graph_strategy = Graphs.DISABLED

    def set_execution_context_allocation_strategy(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> FakeRuntimeCache:
        return FakeRuntimeCache(self.trt)

    def set_runtime_cache(self, cache: FakeRuntimeCache) -> bool:
        self.cache = cache
        return True


class FakeContext:
    def __init__(self, engine: FakeEngine, strategy: Strategy, cache: FakeRuntimeCache | None = None):
        self.strategy, self.cache = strategy, cache
        self.engine, self.trt, self.cuda = engine, engine.trt, engine.trt.cuda
        self.inputs = {t.name: t for t in self.trt.manifest.inputs if t.name in engine.tensors}
        self.outputs = {t.name: t for t in self.trt.manifest.outputs}
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.scratch: tuple[int, int] | None = None

    def __del__(self) -> None:
        self.cuda.note("context freed", self.profile)

    def _accepts(self, method: str, *args: Any, fault: str | None = None) -> bool:
        self.cuda.note(method, *args)
        if self.cuda.names().count(method) == self.trt.refuse.get(method):
            fault = "told to refuse"
        if fault:
            self.engine.runtime.logger.log(ILogger.ERROR, f"{method}{args}: {fault}")
        return fault is None

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        fault = None if profile < self.engine.num_optimization_profiles else "no such profile"
        self.profile = profile
        return self._accepts("set_optimization_profile_async", profile, stream, fault=fault)

    def is_stream_capturable(self, stream: int) -> bool:
        return self.trt.capturable

    def set_device_memory(self, address: int, size: int) -> None:
        assert self.strategy is Strategy.USER_MANAGED, "the context has memory of its own"
        assert self.profile is not None
        assert size >= self.engine.device_memory_size_v2
        self.cuda.note("set_device_memory", address, size)
        self.scratch = (address, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        fault = self._shape_fault(name, shape)
        if self._accepts("set_input_shape", self.profile, name, shape, fault=fault):
            self.shapes[name] = shape
            return True
        return False

    def _shape_fault(self, name: str, shape: tuple[int, ...]) -> str | None:
        if name not in self.inputs or len(shape) != len(self.inputs[name].shape):
            return "no input of this name and rank"
        for have, dim in zip(shape, self.inputs[name].shape, strict=True):
            if not isinstance(have, int):
                return f"{have!r} is no int"
            low, high = self._range(dim)
            if not low <= have <= high:
                return f"{have} is not {low} to {high}"
        return None

    def _range(self, dim: int | str) -> tuple[int, int]:
        if isinstance(dim, int):
            return dim, dim
        r = self.trt.manifest.profiles[self.profile].symbols[dim.removesuffix(" + 1")]
        more = int(dim.endswith(" + 1"))
        return r.min + more, r.max + more

    def set_tensor_address(self, name: str, address: int) -> bool:
        known = name in self.inputs or name in self.outputs
        fault = "no such tensor" if not known else "not aligned" if address % 256 else None
        if self._accepts("set_tensor_address", self.profile, name, address, fault=fault):
            self.addresses[name] = address
            return True
        return False

    def execute_async_v3(self, stream: int) -> bool:
        fault = self._fault()
        if not self._accepts("execute_async_v3", self.profile, stream, fault=fault):
            return False
        shapes = self.shapes | {t.name: resolve(t.shape, self._symbols()) for t in self.outputs.values()}
        places, scratch = dict(self.addresses), self.scratch
        compiled = f"{self.profile} {sorted(shapes.items())}"
        if self.cache is not None and compiled not in self.cache.lines:
            self.cache.lines.append(compiled)
        self.cuda.queue(stream, lambda: self._compute(shapes, places, scratch))
        return True

    def _fault(self) -> str | None:
        unset = [n for n in self.inputs if n not in self.shapes or n not in self.addresses]
        unset += [n for n in self.outputs if n not in self.addresses]
        if unset or self.scratch is None:
            return f"unset: {unset}, scratch {self.scratch}"
        for output in self.outputs.values():
            if output.alias and self.addresses[output.name] != self.addresses[output.alias]:
                return f"{output.name} is not where {output.alias} is"
        self._symbols()
        return None

    def _symbols(self) -> dict[str, int]:
        """What each symbol is, from all inputs; two values of one are a fault that the library would not see."""
        found: dict[str, int] = {}
        for tensor in self.inputs.values():
            for have, dim in zip(self.shapes[tensor.name], tensor.shape, strict=True):
                if isinstance(dim, str):
                    name, value = dim.removesuffix(" + 1"), have - dim.endswith(" + 1")
                    if found.setdefault(name, value) != value:
                        raise AssertionError(f"{tensor.name}: {name} is {value}, and {found[name]} elsewhere")
        return found

    def _compute(self, shapes: dict[str, Any], places: dict[str, int], scratch: Any) -> None:
        self._check_apart(shapes, places, scratch)
        self.cuda.view(*scratch)[:] = 0xAB  # activations
        views = {name: self._view(t, shapes[name], places[name]) for name, t in (self.inputs | self.outputs).items()}
        if "logits" in views:  # a stage that is not the last has none
            views["logits"].fill(np.nan)
        self.trt.ran.append((self.profile, np.diff(views["seq_starts"]).tolist()))
        try:
            self.trt.network({n: views[n] for n in self.inputs}, {n: views[n] for n in self.outputs})
        except IndexError as error:
            raise FaultError(f"the network reads beyond its arrays: {error}") from error

    def _view(self, tensor: IoTensor, shape: tuple[int, ...], address: int) -> np.ndarray:
        size = prod(shape) * ITEM_BYTES[tensor.dtype]
        return self.cuda.view(address, size).view(STORAGE[tensor.dtype]).reshape(shape)

    def _check_apart(self, shapes: dict[str, Any], places: dict[str, int], scratch: tuple[int, int]) -> None:
        tensors = [t for t in (self.inputs | self.outputs).values() if not t.alias]
        spans = [(places[t.name], prod(shapes[t.name]) * ITEM_BYTES[t.dtype], t.name) for t in tensors]
        spans = sorted([*spans, (*scratch, "scratch")])
        for (start, size, name), (after, _, other) in pairwise(spans):
            if start + size > after:
                raise FaultError(f"{name} and {other} lie in one another")
