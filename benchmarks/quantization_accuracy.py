"""What each format and method of quantized weights costs: engines of one model, on text it was not trained on.

    python benchmarks/quantization_accuracy.py models/pico [--only WORDS] [--minutes 9]     build and compare
    python benchmarks/quantization_accuracy.py models/pico --speeds-only --rounds 5         on an idle machine
    python benchmarks/quantization_accuracy.py models/pico --write-docs                     the tables of the docs

The rows are listed in benchmarks/formats/format_rows.py. A row has bits per weight and size of weights.bin as stored,
perplexity, KL divergence from the same model in float32, how often the likeliest token is the same, and the processor
seconds of the build; none of these depends on how busy the machine is. Windows of 512 tokens, spread evenly over the
text; without --text, over the files of the standard library that models/train_pico.py holds out. All engines see the
same windows.

Engines are kept in the folder --out, figures in the file of that name with .json. What is there is not measured again,
so a run that was stopped goes on when it is started again; --again measures the rows of --only anew, as after a change
of the builder. --speeds-only measures the engines that are there, all in turn, and adds its rounds to the figures.

--planted makes four channels behind every norm 128 times as large, and the columns that read them as much smaller: the
model computes what it did, since 128 is a power of two, but its activations have outliers. For checkpoints of one file
whose tensors have Llama's names.

--axes folds the norms into the matrices behind them and turns the residual (benchmarks/rotated_model.py); the model
computes what it did. For checkpoints as above.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER / "formats"), str(FOLDER)]

from format_accuracy import WINDOW, compare, windows  # noqa: E402
from format_rows import BASE, REFERENCE, ROWS, folder_of, options_of  # noqa: E402
from format_speeds import speeds  # noqa: E402
from format_tables import notes, table, written  # noqa: E402
from machine import describe, wait_until_idle  # noqa: E402
from rotated_model import AXES, rotate_model  # noqa: E402

from tensorwright.engine_format.file_names import CONFIG, CPU_WEIGHTS  # noqa: E402

PAGE = FOLDER.parent / "docs" / "quantization.md"
BUSY = 0.05
"""The part of the machine that others may use while speeds are measured."""
PLANTED = 128.0
READERS_OF_NORMS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "gate", "up"))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


class Figures:
    """What was measured so far, and the file that keeps it, which is written after every row.

    head: what all rows share. Raises SystemExit if the file is of another text or other windows.
    """

    def __init__(self, path: Path, head: dict[str, Any]):
        self.path = path
        self.record: dict[str, Any] = {**head, "rows": {}}
        if path.is_file():
            old = json.loads(path.read_text(encoding="utf-8"))
            other = [key for key, value in head.items() if old.get(key) != value]
            if other:
                raise SystemExit(
                    f"{path} was measured with another {', '.join(other)}; name another --out, or remove it"
                )
            self.record = old

    def row(self, name: str) -> dict[str, Any]:
        return self.record["rows"].setdefault(name, {})

    def save(self) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self.record, indent=1), encoding="utf-8")
        os.replace(beside, self.path)


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


def warm_up(model: Path) -> None:
    """Traces the model once, so that no row's build has the time in which libraries are imported."""
    from tensorwright.builder.trace.export import trace_for_engine
    from tensorwright.models.checkpoint import open_checkpoint

    trace_for_engine(open_checkpoint(model), dtype=BASE, max_seq_len=WINDOW)


def build_row(model: Path, name: str, folder: Path) -> dict[str, float]:
    """Builds the engine of a row. Returns its size, and the processor seconds that it took."""
    from tensorwright import build

    begin = time.process_time()
    build(model, folder, accuracy="none", overwrite=True, **asdict(options_of(name)))
    return {"seconds": time.process_time() - begin, "bytes": (folder / CPU_WEIGHTS).stat().st_size}


def measure_accuracy(
    figures: Figures, model: Path, names: list[str], out: Path, parts: list[list[int]], *, at_once: int, end: float
) -> list[str]:
    """Builds and compares the rows that have no figures, some at a time. Returns those that `end` left over."""
    waiting = [name for name in names if "accuracy" not in figures.row(name)]
    warm_up(model)
    while waiting and time.monotonic() < end:
        group = []
        for name in waiting[:at_once]:
            if time.monotonic() > end:
                break
            if "built" not in figures.row(name) or not (out / folder_of(name) / CONFIG).is_file():
                say(f"building {name}")
                figures.row(name)["built"] = build_row(model, name, out / folder_of(name))
                figures.save()
            group.append(name)
        found = compare(out / folder_of(REFERENCE), [out / folder_of(name) for name in group], parts, say)
        for name, accuracy in zip(group, found, strict=True):
            figures.row(name)["accuracy"] = accuracy
        figures.save()
        waiting = waiting[len(group) :]
    return waiting


def measure_speeds(figures: Figures, names: list[str], out: Path, rounds: int, *, force: bool) -> None:
    """Adds rounds to the speeds of all rows that have an engine."""
    built = [name for name in names if (out / folder_of(name) / CONFIG).is_file()]
    for _ in range(rounds):
        busy = wait_until_idle(BUSY)
        if busy > BUSY and not force:
            raise SystemExit(f"{busy:.0%} of the machine is in use; wait until it is idle, or give --force")
        for name in built:
            lists = figures.row(name).setdefault("speeds", {"decode": [], "prefill": []})
            vocabulary = json.loads((out / folder_of(name) / CONFIG).read_text())["model"]["vocab_size"]
            for kind, value in speeds(out / folder_of(name), vocabulary, len(lists["decode"])).items():
                lists[kind].append(value)
        figures.save()
        say(f"a round of {len(built)} rows; {busy:.1%} of the machine was in use before it")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--text", type=Path, nargs="+", help="files of text instead of the held-out library files")
    parser.add_argument("--out", type=Path, default=Path("out/quantization"), help="the folder of the engines")
    parser.add_argument("--only", default="", help="a regular expression: measure only rows whose names have a match")
    parser.add_argument("--rows", nargs="+", default=[], help="names of further rows")
    parser.add_argument("--again", action="store_true", help="measure the rows of --only again, from the build on")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so many minutes")
    parser.add_argument("--at-once", type=int, default=8, help="the most engines that are compared beside each other")
    parser.add_argument("--speeds-only", action="store_true", help="measure speeds of the engines that are there")
    parser.add_argument("--rounds", type=int, default=5, help="how often --speeds-only measures each row")
    parser.add_argument("--force", action="store_true", help="measure speeds on a busy machine too")
    parser.add_argument("--write-docs", action="store_true", help="write the tables of docs/quantization.md")
    parser.add_argument("--planted", action="store_true", help="plant outliers in the model")
    parser.add_argument("--axes", choices=AXES, help="fold the norms, and turn the residual to these axes")
    parser.add_argument("--seed", type=int, default=0, help="with --axes: the seed of the signs of a Hadamard matrix")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    end = time.monotonic() + 60 * options.minutes
    turned = "" if options.axes is None else f"-{options.axes}-{options.seed}"
    out: Path = options.out.with_name(options.out.name + "-planted" * options.planted + turned)
    out.mkdir(parents=True, exist_ok=True)
    model = options.model
    if options.planted:
        model = out / "model"
        if not model.is_dir():
            plant_outliers(options.model, model)
    if options.axes is not None:
        plain, model = model, out / "turned"
        if not model.is_dir():
            rotate_model(plain, model, options.axes, options.seed)
    if options.text:
        texts = [path.read_text(encoding="utf-8") for path in options.text]
    else:
        from tensorwright.models.train_pico import read_texts

        _, texts = read_texts(None)
    parts = windows(model, texts, options.windows)
    head = {"model": options.model.name, "planted": options.planted, "windows": len(parts), "window": WINDOW}
    figures = Figures(out.with_name(out.name + ".json"), head | {"machine": describe(), "first_tokens": parts[0][:8]})
    every = [*ROWS, *options.rows]
    names = [name for name in every if name in (REFERENCE, BASE) or re.search(options.only, name)]
    if options.again:
        for name in names:
            if name not in (REFERENCE, BASE) or not options.only:
                figures.record["rows"].pop(name, None)
    left = [name for name in names if "accuracy" not in figures.row(name)]
    if options.speeds_only:
        measure_speeds(figures, names, out, options.rounds, force=options.force)
    elif left:
        left = measure_accuracy(figures, model, names, out, parts, at_once=options.at_once, end=end)
    print(f"{notes(figures.record)}\n\n{table(figures.record, names)}")
    if left:
        raise SystemExit(f"{len(left)} rows are left; run the same command again")
    if options.write_docs:
        missing = [name for name in ROWS if "accuracy" not in figures.row(name)]
        if missing:
            raise SystemExit(f"the page has all rows, and these are not measured: {', '.join(missing)}")
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures.record), encoding="utf-8")


if __name__ == "__main__":
    main()
