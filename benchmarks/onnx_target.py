"""Target onnx against target cpu, both behind the same scheduler: decode at several batch sizes, and prefill.

    python benchmarks/onnx_target.py MODEL [--forms float32 int4] [--threads N] [--trials 5] [--engines FOLDER]

MODEL is a checkpoint (benchmarks/shapes.py makes some); engines are built into FOLDER and kept there. All engines are
loaded at once and take turns, one trial of each after the other. A form other than a type is what --quantize takes, on
float32 activations: int4 on target cpu is integer arithmetic, on target onnx weight-only. The median of the trials.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

TARGETS = ("cpu", "onnx")
BATCHES = (1, 8)
PROMPT, DECODED, PREFILL = 16, 64, 512
MAX_SEQ_LEN = 1024


def build_engine(model: Path, folder: Path, target: str, form: str) -> Path:
    from tensorwright import build

    path = folder / f"{model.name}-{target}-{form.replace(':', '-')}"
    if not path.exists():
        quantize = None if form == "float32" else form
        build(model, path, target=target, dtype="float32", quantize=quantize, max_seq_len=MAX_SEQ_LEN, accuracy="none")
    return path


def open_bench(path: Path, batch: int, prompt: int, output: int, threads: int | None) -> tuple[Any, list[Any]]:
    """Returns an engine ready to run, and prompts for it."""
    from tensorwright.runtime.engine.engine_dir import open_engine
    from tensorwright.runtime.tools.bench_engine import BenchEngine, Load

    engine = open_engine(path)
    tokens = batch * -(-MAX_SEQ_LEN // engine.block_size) * engine.kv_block_bytes
    load = Load(
        input_len=prompt, output_len=output, batch_size=batch, requests=batch, warmup=1, seed=0,
        max_num_tokens=PREFILL, threads=threads, kv_cache_memory=str(tokens),
    )  # fmt: skip
    return BenchEngine(engine, load, batch), load.prompts(engine, batch)


def rate(traces: list[Any], batch: int) -> float:
    """Returns tokens per second: of the prompt for batch 0, else of decode steps."""
    if batch == 0:
        return PREFILL / traces[0].first
    begin = max(trace.tokens[0] for trace in traces)
    return sum(sum(at > begin for at in trace.tokens) for trace in traces) / (
        max(trace.tokens[-1] for trace in traces) - begin
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--forms", nargs="+", default=["float32", "int4"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--engines", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from machine import describe, wait_until_idle

    with ExitStack() as stack:
        folder = args.engines or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        paths = {(t, f): build_engine(args.model, folder, t, f) for f in args.forms for t in TARGETS}
        print(describe(), f"machine {wait_until_idle():.1%} busy before")
        rates: dict[tuple[str, str, int], list[float]] = {}
        for batch in (*BATCHES, 0):  # 0 stands for prefill
            sizes = (1, PREFILL, 1) if batch == 0 else (batch, PROMPT, DECODED)
            with ExitStack() as running:
                benches = {key: open_bench(path, *sizes, args.threads) for key, path in paths.items()}
                for bench, prompts in benches.values():
                    running.enter_context(bench)
                    bench.run(prompts)
                for _ in range(args.trials):
                    for key, (bench, prompts) in benches.items():
                        rates.setdefault((*key, batch), []).append(rate(bench.run(prompts), batch))
    report(rates, args.forms, args.json)


def report(rates: dict[tuple[str, str, int], list[float]], forms: list[str], path: Path | None) -> None:
    middle = {key: statistics.median(values) for key, values in rates.items()}
    titles = {**{batch: f"decode, batch {batch}" for batch in BATCHES}, 0: f"prefill {PREFILL}"}
    print("| weights | tokens/s | cpu | onnx | onnx / cpu |\n|---|---|---:|---:|---:|")
    for form in forms:
        for batch, title in titles.items():
            cpu, onnx = (middle[target, form, batch] for target in TARGETS)
            print(f"| {form} | {title} | {cpu:.0f} | {onnx:.0f} | {onnx / cpu:.2f} |")
    if path is not None:
        rows = [{"target": t, "form": f, "batch": b, "rates": values} for (t, f, b), values in rates.items()]
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
