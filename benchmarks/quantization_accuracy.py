"""What each format of quantized weights costs: engines of one model in every format, on text it was not trained on.

    python benchmarks/quantization_accuracy.py models/pico [--windows 24] [--text FILE ...] [--json FILE] [--only WORDS]
                                                [--planted]

Prints the table of docs/quantization.md: bits per weight and size of weights.bin as stored, perplexity, KL divergence
from the same model in float32, and how often the likeliest token is the same. Windows of 512 tokens, spread evenly over
the text; without --text, over the files of the standard library that models/train_pico.py holds out. All engines see
the same windows. Nothing here depends on how busy the machine is.

--planted makes four channels behind every norm 128 times as large, and the columns that read them as much smaller: the
model computes what it did, since 128 is a power of two, but its activations have outliers. For checkpoints of one file
whose tensors have Llama's names.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.builder.calibrate.calibrate import calibrate as choose_codes
from tensorwright.builder.calibrate.channel_scales import choose_scales, drop_ones
from tensorwright.builder.calibrate.chosen_codes import ChosenCodes
from tensorwright.builder.calibrate.mixed import choose_mixed
from tensorwright.builder.calibrate.sample import take_sample
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.measure.accuracy import EngineLogits
from tensorwright.builder.measure.interruptible import in_another_thread
from tensorwright.builder.target.cpu import BLOCK_SIZE
from tensorwright.builder.trace.export import trace_for_engine
from tensorwright.engine_format.calibrations import CALIBRATIONS
from tensorwright.engine_format.file_names import CPU_PLAN, CPU_WEIGHTS
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.weight_formats import every_format, parse_spec
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import run_pipeline

WINDOW = 512
REFERENCE = "float32"
_FEWER_BITS = (
    "int3:g32", "uint3:g32", "int3:g32,embedding=int8,lm_head=int8", "uint3:g32,embedding=int8,lm_head=int8",
    "uint3:g64,embedding=int8,lm_head=int8", "uint2:g32,embedding=int8,lm_head=int8",
)  # fmt: skip
SPECS = (
    "int8:g32", "int8:g64", "int8:g128", "w8a8", "w8a8,embedding=none,lm_head=none",
    "int4:g32", "int4:g64", "int4:g128",
    "int4:g32,embedding=int8,lm_head=int8", "int4:g64,embedding=int8,lm_head=int8",
    "int4:g128,embedding=int8,lm_head=int8",
    "int4:g32:fp16", "uint4:g32", "uint4:g64", "uint4:g128", "uint4:g32,embedding=int8,lm_head=int8",
    "uint8:g128", "w4a8:g32", "w4a8:g64", "w4a8:g128", "w4a8:g32,embedding=int8,lm_head=int8",
    "w4a8:g64,embedding=int8,lm_head=int8", "mxfp4", "mxfp4,embedding=int8,lm_head=int8",
    *_FEWER_BITS,
)  # fmt: skip
WITH_KV = (
    (None, "int8"), ("int8:g32", "int8"), ("int4:g32,embedding=int8,lm_head=int8", "int8"),
    (None, "int4"), ("int4:g32,embedding=int8,lm_head=int8", "int4"),
)  # fmt: skip
"""Formats that are also measured with a KV cache of integers, and its type."""

MIXED = ("mixed:3.5", "mixed:4.5", "mixed:5.5")
"""Budgets of bits per weight, whose formats are chosen on the built-in text."""
_FOUR_BITS = (
    "int4:g32", "int4:g64", "int4:g128",
    "int4:g32,embedding=int8,lm_head=int8", "int4:g128,embedding=int8,lm_head=int8",
)  # fmt: skip
_EIGHT_BITS = ("w8a8", "w8a8,embedding=none,lm_head=none")
CALIBRATED = {"gptq": _FOUR_BITS + _FEWER_BITS, "awq": _FOUR_BITS, "smoothquant": _EIGHT_BITS}
"""Formats that are also measured with what a calibration chose on the built-in text."""


PLANTED = 128.0
READERS_OF_NORMS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "gate", "up"))


@dataclass
class Row:
    """One engine, and the sums over its positions."""

    name: str
    engine: Path
    size: int
    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    agreements: int = 0

    def record(self, elements: float) -> dict[str, Any]:
        return {
            "format": self.name,
            "bits_per_weight": 8 * self.size / elements,
            "megabytes": self.size / 1e6,
            "perplexity": math.exp(sum(self.losses) / len(self.losses)),
            "kl_divergence": sum(self.divergences) / len(self.divergences),
            "top1_agreement": self.agreements / len(self.divergences),
        }


def windows(model: Path, texts: list[str], count: int) -> list[list[int]]:
    """Returns token ids, at most [count][WINDOW], spread evenly over the texts, which are joined by token 0."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = [i for text in texts for i in [*tokenizer.encode(text).ids, 0]]
    whole = len(ids) // WINDOW
    if whole == 0:
        raise SystemExit(f"the text must have at least {WINDOW} tokens, has {len(ids)}")
    starts = np.linspace(0, whole - 1, min(count, whole)).astype(int) * WINDOW
    return [ids[start : start + WINDOW] for start in starts]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def measure(rows: list[Row], engines: list[EngineLogits], ids: list[int]) -> None:
    """Adds one window to the sums. The first row is the reference. Engines run side by side, 32 positions at a time."""
    done = 0
    for blocks in zip(*(engine(ids, 32) for engine in engines), strict=True):
        following = ids[done + 1 : done + 1 + len(blocks[0])]
        exact = log_softmax(blocks[0])
        for row, logits in zip(rows, blocks, strict=True):
            log_q = log_softmax(logits)
            row.divergences += (np.exp(exact) * (exact - log_q)).sum(axis=1).tolist()
            row.agreements += int((exact.argmax(axis=1) == log_q.argmax(axis=1)).sum())
            row.losses += [-float(log_q[i, token]) for i, token in enumerate(following)]
        done += len(blocks[0])


def plant_outliers(model: Path, folder: Path) -> Path:
    """Returns a copy of a checkpoint with outliers: see above."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        channels = np.random.default_rng(0).permutation(tensor.shape[-1])[:4].tolist()
        if name.endswith("layernorm.weight"):
            tensor[channels] *= PLANTED
        elif name.endswith(READERS_OF_NORMS):
            tensor[:, channels] /= PLANTED
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def choose(model: Path, checkpoint: Checkpoint, cached: Graph) -> None:
    """Puts the formats of a budget into the facts of a graph at stage "cached", as build() does."""
    spec = cached.facts.quantize
    if spec is None or not spec.choices:
        return
    formats, sample = every_format(TARGETS["cpu"].weight_formats), take_sample(model, None, cached)
    cached.facts.quantize, _ = choose_mixed(cached, checkpoint, spec, formats, sample, lambda done, total: None)


def build_all(model: Path, folder: Path, only: str) -> list[Row]:
    """Makes plan and weights of every engine, as build() does. Each type of activations is traced once.

    only: beside the unquantized engines, those are made whose names have a match of this regular expression.
    """
    checkpoint = open_checkpoint(model)
    rows = []
    plain = [(spec, "auto", "none") for spec in (None, *SPECS, *MIXED)]
    more = [(spec, "auto", method) for method, specs in CALIBRATED.items() for spec in specs]
    more += [(*pair, "none") for pair in WITH_KV]
    for dtype, choices in ((REFERENCE, plain[:1]), ("bfloat16", plain + more)):
        graph = trace_for_engine(checkpoint, dtype=dtype, max_seq_len=WINDOW)
        for spec, kv_cache, calibrate in choices:
            calibration = CALIBRATIONS[calibrate]
            name = (spec or dtype) + ("" if kv_cache == "auto" else f" + {kv_cache} KV cache")
            name += "" if calibrate == "none" else " + " + calibrate.replace("+", " + ")
            if name not in (REFERENCE, "bfloat16") and not re.search(only, name):
                continue
            print(f"building {name}", file=sys.stderr, flush=True)
            asked = {"quantize": None if spec is None else parse_spec(spec), "kv_cache_dtype": kv_cache}
            graph.facts.update(block_size=BLOCK_SIZE, channel_scales=calibration.scales, **asked)
            report = run_pipeline(graph, choose=partial(choose, model, checkpoint))
            sample = None if calibrate == "none" else take_sample(model, None, report.cached_graph)
            if sample is not None and calibration.scales:
                gains = choose_scales(report.cached_graph, checkpoint, sample, lambda done, total: None)
                for each in (report.cached_graph, report.graph):
                    drop_ones(each, gains)
            plan = emit_cpu_plan(report.graph, checkpoint)
            engine = folder / str(len(rows))
            (engine / CPU_PLAN).parent.mkdir(parents=True)
            (engine / CPU_PLAN).write_bytes(plan.data)
            with (engine / CPU_WEIGHTS).open("wb") as file, ChosenCodes(folder) as codes:
                if sample is not None and calibration.codes:
                    choose_codes(report.cached_graph, checkpoint, sample, codes, lambda done, total: None)
                plan.weights.stream(file, codes=codes)
            rows.append(Row(name, engine, plan.weights.total_bytes))
    return rows


def table(records: list[dict[str, Any]]) -> str:
    base = next(r["perplexity"] for r in records if r["format"] == "bfloat16")
    lines = [
        "| format | bits per weight | size, MB | perplexity | against bfloat16 | KL divergence | same top token |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{r['format']}` | {r['bits_per_weight']:.2f} | {r['megabytes']:.1f} | {r['perplexity']:.3f} | "
        f"{100 * (r['perplexity'] / base - 1):+.2f} % | {r['kl_divergence']:.2g} | {100 * r['top1_agreement']:.1f} % |"
        for r in records
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--text", type=Path, nargs="+", help="files of text instead of the held-out library files")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--only", default="", help="a regular expression: measure only formats that have a match")
    parser.add_argument("--planted", action="store_true", help="plant outliers in the model")
    options = parser.parse_args()
    if options.text:
        texts = [path.read_text(encoding="utf-8") for path in options.text]
    else:
        from tensorwright.models.train_pico import read_texts

        _, texts = read_texts(None)
    parts = windows(options.model, texts, options.windows)
    with tempfile.TemporaryDirectory() as folder:
        model = plant_outliers(options.model, Path(folder) / "planted") if options.planted else options.model
        rows = build_all(model, Path(folder), options.only)
        with in_another_thread() as call:
            engines = [EngineLogits(row.engine, WINDOW, call) for row in rows]
            for number, ids in enumerate(parts):
                print(f"window {number + 1} of {len(parts)}", file=sys.stderr, flush=True)
                measure(rows, engines, ids)
    records = [row.record(elements=rows[0].size / 4) for row in rows]
    if options.json:
        options.json.write_text(json.dumps({"windows": len(parts), "window": WINDOW, "formats": records}, indent=2))
    print(f"{len(parts)} windows of {WINDOW} tokens\n\n{table(records)}")


if __name__ == "__main__":
    main()
