"""Loads TensorRT or TensorRT-RTX, checks its version and the GPU against the manifest, and deserializes an engine."""

from __future__ import annotations

import importlib
import mmap
from collections import deque
from pathlib import Path
from typing import Any

from tensorwright.engine_format.tensorrt_manifest import MODULES, IoTensor, Manifest, step_inputs
from tensorwright.errors import DeviceError, EngineError, MissingDependencyError, reason
from tensorwright.installing import install
from tensorwright.runtime.engine.tensorrt.cuda import Cuda
from tensorwright.runtime.engine.tensorrt.plugins import EnginePlugins
from tensorwright.runtime.engine.tensorrt.runtime_config import KernelCache, RuntimeSettings, make_config

NAMESPACE = "tensorwright"
TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int8": "INT8"}
"""The name in trt.DataType of each element type."""
REFUSED_SMS = (90, 100, 103)
"""The SMs that TensorRT-RTX neither builds for nor runs on. Its release 1.7.1 says so of an H100 (SM 90), and that it
supports 8.0, 8.6, 8.9, 12.0, 12.1 and later."""
OLDEST_DEFAULT = 80
"""The lowest SM that runs an engine whose build named no SM, as NVIDIA's documentation says."""


def load_bindings(flavour: str) -> Any:
    """Returns the module `tensorrt` or `tensorrt_rtx`. Raises MissingDependencyError."""
    try:
        return importlib.import_module(MODULES[flavour])
    except (ImportError, OSError) as error:  # OSError: a library of the package does not load
        raise MissingDependencyError(
            f"an engine of target {flavour} needs the package {MODULES[flavour]} ({reason(error)}): {install(flavour)}"
        ) from error


def check_version(trt: Any, manifest: Manifest, path: Path) -> None:
    """Raises EngineError unless the installed release is the one that wrote the plan. The last number of the version,
    that of the build, may differ."""
    installed, required = trt.__version__.split(".")[:3], manifest.library_version.split(".")[:3]
    if installed != required:
        raise EngineError(
            f"{path}: built with {MODULES[manifest.flavour]} {manifest.library_version}, and {trt.__version__} is "
            f"installed: install version {'.'.join(required)}, or build the engine again"
        )


def check_device(cuda: Cuda, manifest: Manifest, path: Path) -> None:
    """Raises EngineError unless the engine was made for this GPU. For an engine whose build named no SM, the library
    itself decides later."""
    what = f"{path}: this GPU, {cuda.name}, is of SM {cuda.sm}, and the engine"
    if manifest.flavour == "tensorrt-rtx" and cuda.sm in REFUSED_SMS:
        raise EngineError(
            f"{path}: TensorRT-RTX does not run on this GPU, {cuda.name}, whose SM is {cuda.sm}: take a GPU of SM 80, "
            "86, 89, 120 or later, or build the engine for target cpu or onnx"
        )
    if manifest.sms and cuda.sm not in manifest.sms:
        raise EngineError(f"{what} was built for SM {_listed(manifest.sms)}: {_remedy(manifest.flavour, cuda.sm)}")
    if not manifest.sms and cuda.sm < OLDEST_DEFAULT:
        raise EngineError(f"{what} runs on SM {OLDEST_DEFAULT} and later: {_remedy(manifest.flavour, cuda.sm)}")
    if cuda.sm < manifest.kernel_sms[0]:
        raise EngineError(
            f"{what} has kernels for SM {_listed(manifest.kernel_sms)} and later: {_remedy(manifest.flavour, cuda.sm)}"
        )


def _remedy(flavour: str, sm: int) -> str:
    if flavour == "tensorrt":
        return "build it again on a machine with this GPU"
    return f"build it again with --sm {sm}"


def _listed(sms: tuple[int, ...]) -> str:
    return ", ".join(map(str, sms))


class LoadedEngine:
    """A deserialized engine with the objects that it needs: the runtime, its log and our plugins.

    path: the file of the plan. driver: the module with which the plugins start their kernels. settings: how contexts
    run. collectives: by what they do what ranks do together.
    """

    def __init__(
        self,
        trt: Any,
        manifest: Manifest,
        path: Path,
        driver: Any,
        settings: RuntimeSettings | None = None,
        collectives: Any = None,
    ):
        self._trt, self._path = trt, path
        self._settings = settings or RuntimeSettings()
        self._cache = KernelCache(path) if manifest.flavour == "tensorrt-rtx" else None
        self._log = make_log(trt)
        self._plugins = EnginePlugins(trt, driver, collectives)
        self._engine: Any = None
        self._runtime: Any = None
        try:
            self._check_plugins(manifest)
            self._runtime = trt.Runtime(self._log)
            self._engine = self._deserialize()
            check_engine(trt, self._engine, manifest, self._path)
        except BaseException:
            self.close()
            raise
        self.tensors = frozenset(tensor_names(self._engine))

    def _check_plugins(self, manifest: Manifest) -> None:
        registry = self._trt.get_plugin_registry()
        for name, version in manifest.plugins.items():
            if registry.get_creator(name, version, NAMESPACE) is None:
                raise EngineError(
                    f"{self._path}: the engine has layers of plugin {name}, version {version}, which this tensorwright "
                    "does not have; build the engine again"
                )

    def _deserialize(self) -> Any:
        with (
            self._path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan,
            self._plugins.loading(),
        ):
            engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineError(
                f"{self._path}: the library cannot take in this plan on this GPU ({self.complaints()}); "
                "build the engine again, for this GPU and with the installed version"
            )
        return engine

    def complaints(self) -> str:
        """Returns the last errors that the library logged. If a plugin raised an error, raises that error instead."""
        self._plugins.raise_first()
        return "; ".join(self._log.errors) or "it logged no error"

    @property
    def scratch_bytes(self) -> int:
        """The bytes of device memory that a step of any profile needs while it runs."""
        profiles = range(self._engine.num_optimization_profiles)
        each = (self._engine.get_device_memory_size_for_profile_v2(index) for index in profiles)
        return max(self._engine.device_memory_size_v2, *each)

    def make_context(self, profile: int, scratch: int, stream: int) -> Any:
        """Makes a context of this profile. All contexts share `scratch`, because one stream runs one step at a time.

        Raises DeviceError.
        """
        how = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._cache is not None:
            how = make_config(self._trt, self._engine, profile, self._settings, self._cache)
        context = self._engine.create_execution_context(how)
        if context is None:
            raise DeviceError(f"{self._path}: the library makes no execution context ({self.complaints()})")
        if not context.set_optimization_profile_async(profile, stream):
            raise DeviceError(f"{self._path}: the library refuses profile {profile} ({self.complaints()})")
        context.set_device_memory(scratch, self.scratch_bytes)
        if self._settings.graphs and not context.is_stream_capturable(stream):
            raise EngineError(
                f"{self._path}: CUDA graphs cannot replay the steps of this engine; run it without graphs, or build it "
                "again with this version"
            )
        return context

    def save_kernels(self) -> None:
        """Keeps what the library compiled for the next start."""
        if self._cache is not None:
            self._cache.save()

    def close(self) -> None:
        """Releases the engine. Its contexts must be released before, because the library requires this order."""
        if self._cache is not None:
            self._cache.close()
        self._engine = self._runtime = None
        self._plugins.close()


def make_log(trt: Any) -> Any:
    """Returns a logger that keeps the last errors, for our own messages."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=4)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors.append(message.strip())

    return Log()


def tensor_names(engine: Any) -> list[str]:
    return [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]


def check_engine(trt: Any, engine: Any, manifest: Manifest, path: Path) -> None:
    """Raises EngineError if the manifest and the plan differ, because then they come from two builds."""
    names = tensor_names(engine)
    known = {t.name: t for t in (*manifest.inputs, *manifest.outputs)}
    # The library may drop inputs of metadata that no layer reads.
    needed = set(known) - {t.name for t in step_inputs(manifest.groups)}
    faults = [f"no {name}" for name in sorted(needed - set(names))] + [f"a {n}" for n in names if n not in known]
    for tensor in (known[name] for name in names if name in known):
        faults += _differences(trt, engine, tensor)
    profiles = engine.num_optimization_profiles
    if profiles != len(manifest.profiles):
        faults.append(f"{profiles} profiles, not {len(manifest.profiles)}")
    if faults:
        raise EngineError(
            f"{path}: the plan is not the one that io.json tells of, it has {'; '.join(faults)}: files of two builds "
            "are mixed; build the engine again"
        )


def _differences(trt: Any, engine: Any, tensor: IoTensor) -> list[str]:
    dtype, shape = engine.get_tensor_dtype(tensor.name), tuple(engine.get_tensor_shape(tensor.name))
    expected = tuple(d if isinstance(d, int) else -1 for d in tensor.shape)
    faults = []
    if dtype != getattr(trt.DataType, TYPES[tensor.dtype]):
        faults.append(f"{tensor.name} of {dtype}, not {tensor.dtype}")
    if shape != expected:
        faults.append(f"{tensor.name} of shape {shape}, not {expected}")
    aliased = engine.get_aliased_input_tensor(tensor.name) if tensor.alias else None
    if aliased and aliased != tensor.alias:  # for a plugin's output the library may return no alias
        faults.append(f"{tensor.name} in the place of another input than {tensor.alias}")
    return faults
