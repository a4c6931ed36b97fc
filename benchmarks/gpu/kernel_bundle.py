"""Compiles the kernels of tests and benchmarks ahead of time, so that what a GPU machine proves is our compiler's code.

    python benchmarks/gpu/kernel_bundle.py FILE [--sm 90] [--jobs 2]        here: compiles, needs no GPU
    TENSORWRIGHT_GPU_BUNDLE=FILE python -m pytest tests/gpu ...             there: takes the code from the file

The machine with the GPU may have another Triton, or none: `machine_code` compiles there only what the file lacks, and
notes it in MISSED.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.launch import KernelSpec, Launch
from tensorwright.plugins.gpu.needs import SMS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUNDLE = "TENSORWRIGHT_GPU_BUNDLE"
"""The environment variable that names a file of machine code."""
MISSED: list[str] = []
"""The kernels that the file lacked, compiled on this machine instead."""
RECORD_TO, RECORD_SM = "TENSORWRIGHT_RECORD_KERNELS_TO", "TENSORWRIGHT_RECORD_KERNELS_FOR"


@functools.cache
def _carried() -> dict[tuple[str, str, int], CompiledKernel]:
    path = os.environ.get(BUNDLE)
    return bundle.from_bytes(Path(path).read_bytes()).kernels if path else {}


def _form(spec: KernelSpec) -> str:
    """Returns the name of a specialisation in the file: unlike in an engine, warps and stages are a part of it."""
    return f"{spec.variant}-{spec.num_warps}-{spec.num_stages}"


def machine_code(spec: KernelSpec, sm: int) -> CompiledKernel:
    """Returns the kernel from the file that TENSORWRIGHT_GPU_BUNDLE names, or compiles it."""
    found = _carried().get((spec.kernel, _form(spec), sm))
    if found is not None:
        return dataclasses.replace(found, variant=spec.variant)
    if os.environ.get(BUNDLE):
        MISSED.append(f"{spec}, SM {sm}")
    return compile_kernel(spec, sm)


class Recorder:
    """Stands in for gpu_device.Device: it notes the kernels that tests start, and runs nothing."""

    sm = 0
    specs: ClassVar[dict[tuple[str, str], KernelSpec]] = {}

    def __init__(self, api: Any = None) -> None:
        pass

    def run(self, specs: Iterable[KernelSpec], launches: Iterable[Launch], memory: Any) -> None:
        wanted = {(launch.kernel, launch.variant) for launch in launches}
        self.specs.update({(s.kernel, _form(s)): s for s in specs if (s.kernel, s.variant) in wanted})
        import pytest

        pytest.skip("recorded")


def pytest_configure() -> None:
    """As a plugin of pytest: records where RECORD_TO says so, and always reports what a given file lacked."""
    if RECORD_TO in os.environ:
        import gpu_device

        Recorder.sm = int(os.environ[RECORD_SM])
        gpu_device.Device = Recorder  # type: ignore[assignment, misc]


def pytest_sessionfinish() -> None:
    if RECORD_TO in os.environ:
        Path(os.environ[RECORD_TO]).write_bytes(pickle.dumps(list(Recorder.specs.values())))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSED:
        terminalreporter.write_line(f"{len(MISSED)} kernels are not in the file, compiled here: {MISSED[:3]}")


def specs_of_tests(sm: int) -> list[KernelSpec]:
    """Returns the kernels that tests/gpu starts on this SM, by running the tests with a Recorder."""
    from first_contact import KERNEL_TESTS

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "specs"
        path = os.pathsep.join([str(HERE), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, RECORD_TO: str(target), RECORD_SM: str(sm)}
        files = [str(ROOT / "tests" / "gpu" / name) for name in KERNEL_TESTS]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-p", "kernel_bundle"]
        done = subprocess.run(
            [*command, *files], env=environment, cwd=ROOT, text=True, capture_output=True, check=False
        )
        if not target.exists():
            raise SystemExit(f"the tests could not be recorded:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return list(pickle.loads(target.read_bytes()))


def specs_of_benchmarks(sm: int) -> Iterator[KernelSpec]:
    """Yields the kernels that the benchmarks of this folder start on this SM."""
    import gpu_attention
    import gpu_candidates
    import gpu_ceilings
    import gpu_step
    import gpu_tiles
    import int4_gemv

    yield from gpu_ceilings.specs()
    yield from gpu_attention.specs(sm)
    yield from int4_gemv.specs(sm)
    yield from gpu_tiles.specs(sm)
    yield from gpu_candidates.specs(sm)
    yield from gpu_step.specs(sm)


def _compiled(job: tuple[KernelSpec, int]) -> CompiledKernel | str:
    spec, sm = job
    try:
        return dataclasses.replace(compile_kernel(spec, sm), variant=_form(spec))
    except KernelError as error:
        return f"{spec.kernel}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sm", type=int, choices=SMS, default=90)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    wanted = [*specs_of_tests(args.sm), *specs_of_benchmarks(args.sm)]
    specs = {(spec.kernel, _form(spec)): spec for spec in wanted}
    with ProcessPoolExecutor(args.jobs) as pool:
        made = list(pool.map(_compiled, [(spec, args.sm) for spec in specs.values()], chunksize=4))
    refused = [one for one in made if isinstance(one, str)]
    data = bundle.to_bytes(one for one in made if not isinstance(one, str))
    args.file.write_bytes(data)
    print(
        f"{args.file}: {len(made) - len(refused)} kernels for SM {args.sm}, {len(data)} bytes; {len(refused)} refused"
    )
    print(*refused, sep="\n")


if __name__ == "__main__":
    main()
