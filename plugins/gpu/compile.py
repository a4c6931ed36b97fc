"""Compiles Triton kernels ahead of time: `compile_kernel(spec, sm)` needs neither a GPU nor its driver.

A raw cuLaunchKernel of the machine code needs (triton 3.9: backends/nvidia/compiler.py, driver.py, driver.c):
    parameters   the arguments that are not constexpr, in the order of the function, each of its own size: a pointer is
                 8 bytes, i32 4, i64 8, fp32 4; then two more pointers, global scratch and profile scratch, null where
                 the compiler asks for no such memory. Kernels that ask for some are refused. compile_kernel compares
                 this with the parameters of the PTX. Constants are not parameters. Only the attribute
                 tt.divisibility is used, and it drops none (Triton's own launches would drop an int that is 1).
    block        (32 * num_warps, 1, 1); no cluster, no cooperative launch, no attribute of the launch
    shared       `shared_bytes` of dynamic shared memory; above 48 KiB a function must be allowed it first, by
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
Code for SM 90 and above is "arch specific" (sm_90a, sm_120a, sm_121a): it runs on that SM only; SM 80's runs on 86 and
89 too.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.plugins.gpu.bundle import CompiledKernel, read_cached, write_cached
from tensorwright.plugins.gpu.launch import ALIGNMENT, SCRATCH, KernelSpec
from tensorwright.plugins.gpu.needs import OUR_NEEDS, SMS

_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 120: 99, 121: 99}
MAX_SHARED = {sm: kib << 10 for sm, kib in _KIB.items()}
"""Bytes of shared memory that a block of threads may have (CUDA C programming guide, compute capabilities)."""
CACHE_VERSION = 1
"""Must grow when the same spec may give other bytes for a reason that is not part of Triton's own keys."""
PTX_SIZES = {"u64": 8, "b64": 8, "s64": 8, "u32": 4, "b32": 4, "s32": 4, "f32": 4}
_COMPILING = threading.Lock()
"""Guards Triton's settings, which the whole process shares, and sys.stdout, which receives the compiler's report."""


def compile_kernel(spec: KernelSpec, sm: int, *, cache: Path | None = None) -> CompiledKernel:
    """Returns the kernel, from the cache if it is there. The bytes depend only on `spec` and `sm`.

    cache: a folder; None means the user's cache. Raises KernelError for a kernel that cannot be compiled for the SM.
    """
    if sm not in SMS:
        raise KernelError(f"GPU kernels are compiled for SM {', '.join(map(str, SMS))}, not {sm}")
    refusal = OUR_NEEDS["bfloat16"].refusal(sm)
    if refusal is not None and any("bf16" in kind for _, kind in spec.signature):
        raise KernelError(f"{spec.kernel} computes in bfloat16: {refusal}")
    function = _kernel_function(spec)
    path = (cache or cache_folder()) / f"{_cache_key(spec, sm, function)}.kernel"
    compiled = read_cached(path)
    if compiled is None:
        compiled = _compile(spec, sm, function)
        write_cached(path, compiled)
    if compiled.shared_bytes > MAX_SHARED[sm]:
        raise KernelError(
            f"{spec}: shared memory of a block must be at most {MAX_SHARED[sm]} bytes on SM {sm}, this kernel takes "
            f"{compiled.shared_bytes}: build without SM {sm}"
        )
    return compiled


def cache_folder() -> Path:
    """Returns $XDG_CACHE_HOME/tensorwright/gpu-kernels; a relative XDG_CACHE_HOME is ignored, as XDG specifies."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tensorwright" / "gpu-kernels"


def import_triton() -> Any:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise MissingDependencyError(
            f"GPU kernels are compiled by Triton, which is not installed ({error}): {install('gpu')}"
        ) from error


def _kernel_function(spec: KernelSpec) -> Any:
    import_triton()
    function = getattr(importlib.import_module(spec.module), spec.kernel)
    if not hasattr(function, "cache_key"):
        raise KernelError("TRITON_INTERPRET is set: kernels of this process are interpreted and cannot be compiled")
    fixed, given = dict(spec.constants), [name for name, _ in spec.signature]
    expected = [name for name in function.arg_names if name not in fixed]
    if given != expected or not set(fixed) <= set(function.arg_names) or not set(spec.aligned) <= set(given):
        raise KernelError(
            f"{spec.kernel} takes {', '.join(function.arg_names)}; the specification gives {', '.join(given)} and "
            f"fixes {', '.join(fixed) or 'nothing'}"
        )
    return function


def _cache_key(spec: KernelSpec, sm: int, function: Any) -> str:
    parts = (CACHE_VERSION, import_triton().__version__, function.cache_key, repr(spec), sm)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _compile(spec: KernelSpec, sm: int, function: Any) -> CompiledKernel:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict(spec.signature)
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    attrs = {(function.arg_names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in spec.aligned}
    source = ASTSource(function, signature, dict(spec.constants), attrs)
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages, "enable_fp_fusion": spec.fp_fusion}
    with _COMPILING, _settings() as log:
        triton = import_triton()
        try:
            result = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
        except Exception as error:
            raise KernelError(f"{spec}: Triton {triton.__version__} cannot compile it for SM {sm}: {error}") from error
    return _result(spec, sm, result, log.getvalue())


@contextlib.contextmanager
def _settings() -> Iterator[io.StringIO]:
    """Keeps paths and line numbers out of the code, and turns Triton's cache off. Yields ptxas' report."""
    from triton import knobs

    log = io.StringIO()
    scopes = (knobs.compilation.scope(), knobs.nvidia.scope(), knobs.cache.scope())
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tensorwright-triton-"))
        knobs.compilation.always_compile = True
        knobs.compilation.disable_line_info = True
        knobs.nvidia.dump_ptxas_log = True
        stack.enter_context(contextlib.redirect_stdout(log))
        yield log


def _result(spec: KernelSpec, sm: int, result: Any, log: str) -> CompiledKernel:
    metadata = result.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size or metadata.num_ctas != 1 or metadata.tmem_size:
        raise KernelError(f"{spec}: on SM {sm} it asks for scratch memory, tensor memory or a cluster: not provided")
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if registers is None or len(spills) != 2:
        raise KernelError(f"{spec}: ptxas did not report registers and spills for SM {sm}: {log!r}")
    ptx = result.asm["ptx"]
    parameters = (*(kind for _, kind in spec.signature), SCRATCH, SCRATCH)
    _check_parameters(spec, ptx, parameters)
    return CompiledKernel(
        kernel=spec.kernel,
        variant=spec.variant,
        sm=sm,
        name=metadata.name,
        num_warps=metadata.num_warps,
        shared_bytes=metadata.shared,
        registers=int(registers.group(1)),
        spill_bytes=sum(map(int, spills)),
        parameters=parameters,
        cubin=result.asm["cubin"],
        ptx=ptx,
    )


def _check_parameters(spec: KernelSpec, ptx: str, parameters: tuple[str, ...]) -> None:
    """Compares with the PTX's own list, so that a change of Triton's calling convention fails here, not on a GPU."""
    entry = re.search(r"\.visible \.entry \w+\(([^)]*)\)", ptx)
    found = re.findall(r"\.param \.(\w+)", entry.group(1)) if entry else []
    sizes = [PTX_SIZES.get(kind, 0) for kind in found]
    wanted = [4 if kind in ("i32", "fp32") else 8 for kind in parameters]
    if sizes != wanted:
        raise KernelError(f"{spec}: parameters of {wanted} bytes are expected, the PTX has {sizes}: another Triton?")
