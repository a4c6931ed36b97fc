"""What each type and format of target onnx costs on a processor: engines of one model, run by ONNX Runtime alone.

    python benchmarks/onnx_formats.py models/pico [--threads 1] [--json FILE]

Prints the table of docs/onnx.md: size of the weights, the best time of a decode step of one sequence at position 128,
and from the engine's own accuracy record the KL divergence from float32 and how often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime

from tensorwright import build
from tensorwright.builder.emit.onnx.onnxruntime_logits import OneSlot

PROMPT = 128
VARIANTS: tuple[dict[str, str], ...] = (
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"quantize": "int8"},
    {"quantize": "int8", "activations": "int8"},
    {"quantize": "int4"},
    {"quantize": "int4:g128"},
    {"quantize": "int4", "activations": "int8"},
    {"quantize": "int4:g128", "activations": "int8"},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(options.model, variant, options.threads) for variant in VARIANTS]
    machine = platform.processor() or platform.machine()
    print(f"onnxruntime {onnxruntime.__version__}, {machine}, {options.threads} threads")
    print("| build with | weights, MB | decode step, ms | KL divergence | same top token |")
    print("|---|---|---|---|---|")
    for row in rows:
        print("| `{options}` | {megabytes:.1f} | {decode:.2f} | {kl:.2g} | {top1:.1%} |".format(**row))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(model: str, variant: dict[str, str], threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = build(model, Path(folder) / "engine", target="onnx", max_seq_len=512, **variant).config  # type: ignore[arg-type]
        slot = OneSlot(Path(folder) / "engine" / "onnx" / "model.onnx", threads)
        prompt = [(7 * i) % config["model"]["vocab_size"] for i in range(PROMPT)]
        slot.step(prompt, 0, [PROMPT - 1])
        decode = best(lambda: slot.step([7], PROMPT, [0]), 100)
    record = config["accuracy"]
    return {
        "options": " ".join(f"--{name} {value}" for name, value in variant.items()),
        "megabytes": config["sizes"]["onnx/model.onnx.data"] / 1e6,
        "decode": decode * 1e3,
        "kl": record["kl_divergence"],
        "top1": record["top1_agreement"],
    }


def best(run: Callable[[], object], times: int) -> float:
    """Returns the seconds of the fastest of some runs, because other processes use this machine too."""
    run()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


if __name__ == "__main__":
    main()
