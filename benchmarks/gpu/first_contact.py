"""The first minutes on an NVIDIA GPU: what loads, what is right, what it costs, one step after the other.

    python benchmarks/gpu/kernel_bundle.py kernels.twk --sm 90      on any machine: compiles the kernels ahead of time
    python benchmarks/gpu/first_contact.py --bundle kernels.twk --out FOLDER [--engine ENGINE] [--only load kernels]

A step that fails or takes too long never stops the next one. FOLDER gets report.json, with each step's outcome, and a
log of each step. tensorwright need not be installed: without its C++ runtime all steps but those of an engine run. The
machine needs Python, numpy, pytest and cuda-bindings, for whole steps torch; Triton if the bundle lacks a kernel.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KERNEL_TESTS = ("test_rms_norm.py", "test_rotary.py", "test_rows.py", "test_int4.py", "test_paged_attention.py")
"""The files of tests/gpu that need kernels and nothing else."""
ROOMS = ("engine_format", "ir", "models", "builder", "passes", "plugins", "runtime")
TESTS = " ".join(f"tests/gpu/{name}" for name in KERNEL_TESTS)
SANITIZER = "compute-sanitizer --error-exitcode 9"
ATTENTION = "tests/gpu/test_paged_attention.py"
RACES = "block_sizes or soft_cap or groups or (rms_norm and not 2_31) or (17 and 128-128) or (int4 and 129)"
"""The tests that racecheck runs: some of each kernel, since it slows them down a hundred times."""
PYTEST = "{python} -m pytest -q -p no:cacheprovider -p kernel_bundle"
FACTS = (
    "nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.max.sm,clocks.max.mem,memory.total --format=csv; "
    "nvcc --version | tail -n 1; uname -r; nproc; {python} -c 'import sys; print(sys.version)'; "
    "{python} -m pip list 2>/dev/null | grep -E '^(triton|numpy|cuda-bindings|torch|tensorrt) '"
)


@dataclass(frozen=True)
class Part:
    """One step: what it asks, its command, and its limit in seconds. A command that has figures writes {json}."""

    name: str
    asks: str
    command: str
    limit: int
    needs_engine: bool = False


PARTS = (
    Part("facts", "which machine is it", FACTS, 20),
    Part("load", "does the driver load the machine code", "{python} benchmarks/gpu/gpu_load.py", 40),
    Part("smoke", "does a kernel run, with the right numbers", f"{PYTEST} -x tests/gpu/test_rms_norm.py", 60),
    Part("kernels", "do all kernels agree with their definitions",
         f"{PYTEST} -n {{workers}} --dist worksteal {TESTS}", 170),
    Part("host", "what do launches, graphs and copies cost", "{python} benchmarks/gpu/gpu_host.py --json {json}", 30),
    Part("attention", "how near is attention to the ceilings",
         "{python} benchmarks/gpu/gpu_attention.py --json {json}", 110),
    Part("int4", "how near are int4 products", "{python} benchmarks/gpu/int4_gemv.py --json {json}", 45),
    Part("tiles", "which tiles of attention are fastest", "{python} benchmarks/gpu/gpu_tiles.py --json {json}", 170),
    Part("step", "what does a whole step of our kernels and cuBLAS take",
         "{python} benchmarks/gpu/gpu_step.py --json {json}", 120),
    Part("memcheck", "is there an access out of bounds",
         f"{SANITIZER} --tool memcheck {PYTEST} -x {ATTENTION} -k block_sizes", 60),
    Part("racecheck", "is there a race in shared memory",
         f"{SANITIZER} --tool racecheck {PYTEST} {TESTS} -k '{RACES}'", 120),
    Part("candidates", "would other forms of the int4 and int8 kernels be faster",
         "{python} benchmarks/gpu/gpu_candidates.py --json {json}", 110),
    Part("engine", "does an engine load, and give the right logits",
         "{python} benchmarks/gpu/gpu_logits.py check {engine} --json {json}", 120, needs_engine=True),
    Part("generate", "how fast is the engine behind the public API",
         "{python} benchmarks/gpu/gpu_engine.py {engine} --rounds 3 --json {json}", 120, needs_engine=True),
)  # fmt: skip
KEPT_LINES, SHOWN_LINES, SHOWN_OF_A_FAILURE = 12, 40, 15
"""Of the end of a log: what report.json keeps, and what is printed."""


def package_of_links(folder: Path) -> Path:
    """Makes `tensorwright` importable from this checkout, without an install: a folder of links to its rooms."""
    package = folder / "tensorwright"
    package.mkdir()
    for entry in (ROOT / "src" / "tensorwright").iterdir():
        (package / entry.name).symlink_to(entry)
    for room in ROOMS:
        (package / room).symlink_to(ROOT / room)
    return folder


def environment(bundle: Path | None, links: Path) -> dict[str, str]:
    paths = [str(HERE), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    if importlib.util.find_spec("tensorwright") is None:
        paths.insert(0, str(package_of_links(links)))
    given = {"TENSORWRIGHT_GPU_BUNDLE": str(bundle.resolve())} if bundle else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", **given}


def run(part: Part, out: Path, env: dict[str, str], engine: str) -> dict[str, Any]:
    """Runs one step and returns its entry of the report."""
    log, data = out / f"{part.name}.log", out / f"{part.name}.json"
    workers = min(8, os.cpu_count() or 1)
    command = part.command.format(python=sys.executable, json=data, engine=engine, workers=workers)
    print(f"=== {part.name}: {part.asks}? (at most {part.limit} s)", flush=True)
    begin = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(part.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = 124
    seconds = time.monotonic() - begin
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    print(*lines[-(SHOWN_OF_A_FAILURE if code else SHOWN_LINES) :], sep="\n")
    print(f"--- {part.name}: exit code {code} after {seconds:.1f} s", flush=True)
    entry: dict[str, Any] = {"asks": part.asks, "exit_code": code, "seconds": round(seconds, 1)}
    entry["last_lines"] = lines[-KEPT_LINES:]
    if data.exists():
        entry["data"] = json.loads(data.read_text(encoding="utf-8"))
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="the file of kernel_bundle.py; without it Triton compiles here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", default="", help="an engine with logits beside it (gpu_logits.py make)")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="STEP")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all steps; what is left is skipped")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as links:
        env = environment(args.bundle, Path(links))
        for part in PARTS:
            if args.only and part.name not in args.only:
                continue
            if part.needs_engine and not args.engine:
                report[part.name] = {"asks": part.asks, "skipped": "no --engine was given"}
            elif time.monotonic() - begin > args.limit:
                report[part.name] = {"asks": part.asks, "skipped": f"the {args.limit:g} s of all steps were over"}
            else:
                report[part.name] = run(part, args.out, env, args.engine)
            (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, entry in report.items() if entry.get("exit_code")]
    print(f"{len(report)} steps, {len(failed)} failed: {', '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
