"""Holds steps of tiny models of many families on a GPU against the graph interpreter, on a machine without a builder.

    python benchmarks/gpu/cuda_families.py make FOLDER [--sm 90] [--only llama]    here, with the packages of the tests
    python benchmarks/gpu/cuda_families.py check FOLDER [--json FILE]              on the machine with the GPU

`make` builds plans of target cuda of tiny models in several types and formats, and writes for ragged steps what the
interpreter says, with the engine's roundings and without. `check` runs the same steps. In float32 a logit may be off by
what another order of sums can do; else the error may be root two of what rounding costs at all, in the mean square.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS: tuple[tuple[str, str, str | None, str], ...] = (
    ("llama", "float16", None, "auto"), ("llama", "float16", "int8,embedding=int8,lm_head=fp8", "auto"),
    ("qwen2", "float16", "int4", "auto"), ("qwen3", "bfloat16", None, "int8"),
    ("qwen3", "bfloat16", None, "fp8"), ("gemma2", "bfloat16", None, "auto"),
    ("gemma3", "bfloat16", None, "auto"), ("gpt2", "float32", None, "auto"), ("gpt_neox", "float16", None, "auto"),
    ("phi3", "float16", None, "auto"), ("cohere", "float16", None, "auto"), ("olmo2", "bfloat16", None, "auto"),
    ("granite", "bfloat16", None, "auto"), ("glm4", "bfloat16", None, "auto"), ("qwen3_moe", "float32", None, "auto"),
    ("mixtral", "bfloat16", None, "auto"), ("gpt_oss", "bfloat16", None, "auto"),
    ("mixtral", "float16", "int4", "auto"), ("mixtral", "bfloat16", "fp8", "auto"), ("bloom", "bfloat16", None, "auto"),
    ("llama4_text_some", "bfloat16", None, "auto"), ("gemma4_shared", "bfloat16", None, "int8"),
    ("minicpm3", "bfloat16", None, "auto"), ("deepseek_v2_experts", "float16", "int4", "auto"),
    ("mamba", "bfloat16", None, "auto"), ("mamba2", "float32", None, "auto"), ("falcon_h1", "bfloat16", None, "auto"),
    ("recurrent_gemma", "bfloat16", None, "auto"), ("qwen3_next", "bfloat16", None, "auto"),
    ("kimi_linear", "bfloat16", "int8", "auto"), ("minimax", "bfloat16", None, "auto"),
    ("lfm2", "float16", "int4", "auto"),
)  # fmt: skip
"""(variant of tests/support/tiny_families.py, type, formats of weights, type of the KV cache)"""
BLOCK = 16
LIMITS = (64, 64, 8)


def make(folder: Path, sm: int, only: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from support.cached_graphs import cached_case
    from support.cuda_model import MAX_STEP, wide_enough
    from support.plugin_form import SEQUENCES, STEPS, PluginModel, lower, step_metadata
    from tensorwright.builder.emit.cuda.emit import plan_graph
    from tensorwright.builder.emit.cuda.plan_file import to_bytes
    from tensorwright.errors import TensorwrightError
    from tensorwright.ir.ragged import RaggedAdapter
    from tensorwright.plugins.gpu.compile import compile_kernel

    class Expected(PluginModel):
        """The interpreter's side of a model, without its other form."""

        def __init__(self, checkpoint: Any, graph: Any):
            self.checkpoint, self.graph, self.dtype = checkpoint, graph, graph.facts.dtype

    assert MAX_STEP == LIMITS
    folder.mkdir(parents=True, exist_ok=True)
    for variant, dtype, quantize, kv in VARIANTS:
        if only and variant not in only:
            continue
        name = "-".join(filter(None, (variant, dtype, (quantize or "").partition(",")[0], kv.replace("auto", ""))))
        try:
            with tempfile.TemporaryDirectory() as place:
                case = cached_case(_Folders(Path(place)), variant, **wide_enough(variant))
                graph = lower(case.graph, dtype, quantize, kv, block=BLOCK, target="cuda")
                planned = plan_graph(graph, case.checkpoint, graph.facts.dtype, MAX_STEP)
                planner, instructions = planned.traced(sm)
                plan = planned.plan(sm, instructions, tuple(compile_kernel(spec, sm) for spec in planner.specs))
                weights = io.BytesIO()
                planned.emitter.file.write(weights, lambda done, total: None)
                model = Expected(case.checkpoint, graph)
                expected = model.expected
                unrounded = model.unrounded if model.rounds else expected
        except TensorwrightError as error:
            print(f"{name}: {error}", flush=True)
            continue
        groups = len(plan.groups)
        adapter = RaggedAdapter(graph, SEQUENCES, block_size=BLOCK)
        arrays: dict[str, np.ndarray] = {
            "counts": np.array(STEPS), "blocks": np.array([adapter.blocks + group for group in range(groups)]),
            "chain": np.array(model._chain(max(float(np.abs(x).max()) for x in expected))),
            "rounds": np.array(model.rounds),
        }  # fmt: skip
        for i, (rounded, exact) in enumerate(zip(expected, unrounded, strict=True)):
            arrays |= {f"expected.{i}": rounded, f"unrounded.{i}": exact}
        for number, counts in enumerate(STEPS):
            arrays |= {f"{number}.{key}": value for key, value in step_metadata(adapter, counts, groups).items()}
            adapter.done = [d + n for d, n in zip(adapter.done, counts, strict=True)]
        (folder / f"{name}.plan").write_bytes(to_bytes(plan))
        (folder / f"{name}.weights").write_bytes(weights.getvalue())
        np.savez_compressed(folder / f"{name}.npz", **arrays)
        print(f"{name}: {len(plan.kernels)} kernels", flush=True)


class _Folders:
    """Does what pytest's factory of folders does for cached_case."""

    def __init__(self, place: Path):
        self._place = place

    def getbasetemp(self) -> Path:
        return self._place


def check(folder: Path, report: str | None) -> float:
    """Returns the worst error, as a multiple of what costs of rounding there are."""
    from tensorwright.errors import TensorwrightError
    from tensorwright.runtime import _runtime
    from tensorwright.runtime.engine.cuda.library import cublaslt_names

    rows = []
    for path in sorted(folder.glob("*.plan")):
        with np.load(path.with_suffix(".npz")) as file:
            held = dict(file)
        try:
            executor = _runtime.CudaExecutor(
                str(path), str(path.with_suffix(".weights")), 0, cublaslt=cublaslt_names(), graphs=True
            )
            slots = held["counts"].shape[1] if "0.state_slots" in held else 0
            executor.allocate([int(count) for count in held["blocks"]], *LIMITS, slots)
            row = {"model": path.stem, **_excess(executor, held)}
            executor.close()
        except TensorwrightError as error:
            row = {"model": path.stem, "excess": math.inf, "error": str(error)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    if report:
        Path(report).write_text(json.dumps(rows, indent=1) + "\n")
    return max((row["excess"] for row in rows), default=math.inf)


def _excess(executor: Any, held: dict[str, np.ndarray]) -> dict[str, Any]:
    groups = len(held["blocks"])
    pieces: list[list[np.ndarray]] = [[] for _ in range(held["counts"].shape[1])]
    for number, counts in enumerate(held["counts"].tolist()):
        names = ("token_ids", "positions", "seq_starts", "context_lens", "logit_rows")
        tables = [(held[f"{number}.block_tables.{g}"], held[f"{number}.slots.{g}"]) for g in range(groups)]
        tables = [(np.ascontiguousarray(table), slots) for table, slots in tables]
        states = held.get(f"{number}.state_slots", np.zeros(0, np.int32))
        logits = executor.step(*(held[f"{number}.{name}"].astype(np.int32) for name in names), tables, states)
        for piece, part in zip(pieces, np.split(logits.astype(np.float64), np.cumsum(counts)[:-1]), strict=True):
            piece.append(part)
    got = [np.concatenate(piece) for piece in pieces]
    expected = [held[f"expected.{i}"] for i in range(len(got))]
    unrounded = [held[f"unrounded.{i}"] for i in range(len(got))]
    largest = max(float(np.abs(a - b).max()) for a, b in zip(got, expected, strict=True))
    if not held["rounds"]:
        return {"excess": _finite(largest / float(held["chain"])), "largest": largest}
    return {"excess": _finite(_rms(got, expected) / _rms(expected, unrounded)), "largest": largest}


def _rms(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate([(x - y).ravel() for x, y in zip(a, b, strict=True)]) ** 2)))


def _finite(x: float) -> float:
    return x if math.isfinite(x) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--sm", type=int, default=90)
    making.add_argument("--only", nargs="*", default=[])
    checking = commands.add_parser("check")
    checking.add_argument("folder", type=Path)
    checking.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.command == "make":
        make(args.folder, args.sm, args.only)
    else:
        worst = check(args.folder, args.json)
        sys.exit(0 if worst <= math.sqrt(2) else f"the worst is {worst:.2f}, where {math.sqrt(2):.2f} is allowed")


if __name__ == "__main__":
    main()
