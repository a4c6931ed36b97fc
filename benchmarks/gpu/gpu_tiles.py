"""Times attention with other tiles and splits than those of plugins/paged_attention/tiles.py, next to these.

    python benchmarks/gpu/gpu_tiles.py [--only TEXT] [--json FILE]

The shapes are those of gpu_attention.py: 32 query heads, 8 KV heads of 128, bfloat16; and heads of 256. Needs a GPU and
its driver; the code of the tiles may be carried (kernel_bundle.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_attention
from gpu_ceilings import copy_rate, product_rate
from gpu_device import Device

from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.plugins.gpu.launch import KernelSpec
from tensorwright.plugins.paged_attention import launch, tiles
from tensorwright.plugins.paged_attention.tiles import SPLIT, Tile

DTYPE = "bfloat16"
LAYER_BYTES = 1 << 28
"""Bytes of K and V that a decode case reads before it returns to the first layer: more than four L2 caches."""
DECODES = ((64, 1024), (8, 4096), (1, 1024), (1, 4096), (1, 32768))
"""(sequences, context)"""
PREFILLS = ((1, 8192), (4, 2048))
"""(sequences, tokens of each)"""


@dataclass(frozen=True)
class Choice:
    """What is tried: a tile, or a number of positions of the shortest split. None leaves it as it is."""

    tile: Tile | None = None
    split: int = SPLIT

    def __str__(self) -> str:
        form = (
            f"{self.tile.block_m}x{self.tile.block_n}, {self.tile.num_warps} warps, {self.tile.num_stages} stages"
            if self.tile
            else "as it is"
        )
        return form + (f", splits of {self.split}" if self.split != SPLIT else "")


@dataclass(frozen=True)
class Form:
    """A form of attention, and the choices for its prefill or its decode."""

    name: str
    choices: tuple[Choice, ...]
    prefill: bool
    head_dim: int = 128
    window: int = 0
    kv_dtype: str = "auto"

    def attributes(self) -> dict[str, Any]:
        with shape(self):
            return gpu_attention.attributes(self.window, self.kv_dtype)


def prefills(*forms: tuple[int, int, int, int]) -> tuple[Choice, ...]:
    """Returns choices of (rows, positions, warps, stages), the present one first."""
    return (Choice(), *(Choice(Tile(rows, positions, 4, warps, stages)) for rows, positions, warps, stages in forms))


NARROW = Tile(16, 64, 4, 2, 3)
FORMS = (
    Form("prefill", prefills((64, 64, 4, 2), (128, 128, 8, 2), (256, 64, 16, 2)), True),
    Form("prefill, window 1024", prefills((128, 32, 8, 3), (64, 64, 4, 2)), True, window=1024),
    Form("prefill, KV int8", prefills((64, 64, 4, 2), (64, 128, 4, 3), (128, 128, 8, 2)), True,
         kv_dtype="int8"),
    Form("prefill, KV int8, window 1024", prefills((64, 64, 4, 2), (64, 32, 4, 3)), True, window=1024, kv_dtype="int8"),
    Form("prefill, heads of 256", prefills((64, 64, 4, 2), (128, 32, 8, 2), (128, 32, 8, 3)), True, head_dim=256),
    Form("prefill, heads of 256, KV int8", prefills((64, 64, 4, 2), (128, 32, 8, 2), (64, 128, 8, 2)), True,
         head_dim=256, kv_dtype="int8"),
    Form("decode", (Choice(), Choice(split=256), Choice(split=128)), False),
    Form("decode, KV int8", (Choice(), Choice(split=256), Choice(split=128)), False, kv_dtype="int8"),
    Form("decode, heads of 256", (Choice(), Choice(Tile(16, 32, 4, 2, 3)), Choice(Tile(16, 64, 4, 4, 2))), False,
         head_dim=256),
)  # fmt: skip


@contextlib.contextmanager
def shape(form: Form) -> Iterator[None]:
    """Makes gpu_attention time heads of the form."""
    own = gpu_attention.HEAD_DIM
    gpu_attention.HEAD_DIM = form.head_dim
    try:
        yield
    finally:
        gpu_attention.HEAD_DIM = own


@contextlib.contextmanager
def chosen(form: Form, choice: Choice) -> Iterator[None]:
    """Makes attention use the choice."""
    own = launch.prefill_tile, launch.decode_tile
    try:
        if choice.tile and form.prefill:
            launch.prefill_tile = lambda op, sm: choice.tile
        elif choice.tile:
            launch.decode_tile = lambda op, sm: choice.tile
        launch.SPLIT = tiles.SPLIT = choice.split
        yield
    finally:
        launch.prefill_tile, launch.decode_tile = own
        launch.SPLIT = tiles.SPLIT = SPLIT


def specs(sm: int) -> Iterator[KernelSpec]:
    """Yields the kernels of all choices."""
    for form in FORMS:
        for choice in form.choices:
            with chosen(form, choice):
                yield from launch.kernels(form.attributes(), {"q": DTYPE}, sm)


def measure(device: Device, only: str) -> list[dict[str, Any]]:
    rows = []
    product, whose = product_rate(device)
    copy = copy_rate(device)
    gpu_attention.LAYER_BYTES = LAYER_BYTES
    for form in (form for form in FORMS if only in form.name):
        for seqs, count in PREFILLS if form.prefill else DECODES:
            for choice in form.choices:
                with shape(form), chosen(form, choice):
                    time = seconds(device, form, seqs, count)
                    entry: dict[str, Any] = {"case": f"{form.name}, {seqs} x {count}", "choice": str(choice)}
                    if time and form.prefill:
                        rate = gpu_attention.operations(seqs, count, form.window) / time
                        entry |= {"tflop_per_s": rate / 1e12, "share": rate / product, "of": f"product ({whose})"}
                    elif time:
                        rate = gpu_attention.kv_bytes(seqs, count, form.kv_dtype) / time
                        entry |= {"gb_per_s": rate / 1e9, "share": rate / copy, "of": "copy"}
                entry["microseconds"] = time and time * 1e6
                show(entry)
                rows.append(entry)
    return rows


def seconds(device: Device, form: Form, seqs: int, count: int) -> float | None:
    """Returns the seconds of one layer; None if the GPU or the compiler refuses the choice."""
    tokens, layers = (count, 1) if form.prefill else (1, gpu_attention.layers_of(seqs, count, form.kv_dtype))
    options: dict[str, Any] = {"window": form.window, "kv_dtype": form.kv_dtype, "listed": False}
    try:
        return gpu_attention.seconds(device, DTYPE, seqs, tokens, count, layers, **options)
    except KernelError as error:
        print(f"refused: {error}", file=sys.stderr)
        return None


def show(entry: dict[str, Any]) -> None:
    if entry["microseconds"] is None:
        return print(f"{entry['case']:34} {entry['choice']:42} refused", flush=True)
    rate = entry.get("tflop_per_s") or entry["gb_per_s"]
    figures = f"{entry['microseconds']:10.1f} us {rate:9.1f} {entry['share']:5.0%} of {entry['of']}"
    return print(f"{entry['case']:34} {entry['choice']:42} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="forms whose name holds the text")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    rows = measure(device, args.only)
    if args.json:
        Path(args.json).write_text(json.dumps({"sm": device.sm, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
