"""Defines the layouts of weights in an engine of target cpu.

raw         float32, unchanged
bias        float32, padded with zeros to whole panels
panels      the activation type, in panels of 16 rows (plugins/packing.py)
quantized   panels of whole numbers with their scales, in a format of weight_formats.py

The two halves of a matrix or bias (gate, up) may be interleaved by panel, each padded to whole panels: then the layout
is gated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorwright.engine_format.weight_formats import WeightFormat, parse_format
from tensorwright.errors import InvalidOptionError

KINDS = ("raw", "bias", "panels", "quantized")
GATED = ("bias", "panels", "quantized")
"""The kinds that may be gated."""


@dataclass(frozen=True)
class WeightLayout:
    """The layout of one weight. `format` is that of a quantized weight; an operand may leave it open with None."""

    kind: str
    gated: bool = False
    format: WeightFormat | None = None

    def __str__(self) -> str:
        """Returns the text that `parse_layout` reads, such as "panels_gated" or "quantized:int4:g32"."""
        name = f"{self.kind}_gated" if self.gated else self.kind
        return name if self.format is None else f"{name}:{self.format}"

    @property
    def is_matrix(self) -> bool:
        return self.kind in ("panels", "quantized")

    def in_format(self, fmt: WeightFormat | None) -> WeightLayout:
        """Returns the layout of the same weight once it is quantized. None: the weight is not quantized."""
        return self if fmt is None else replace(self, kind="quantized", format=fmt)

    def without_format(self) -> WeightLayout:
        """Returns the layout with its format left open, as an operand names it."""
        return replace(self, format=None)


RAW = WeightLayout("raw")
BIAS = WeightLayout("bias")
PANELS = WeightLayout("panels")
QUANTIZED = WeightLayout("quantized")


def gated(layout: WeightLayout) -> WeightLayout:
    """Returns the layout with its halves interleaved."""
    return replace(layout, gated=True)


def parse_layout(text: str) -> WeightLayout:
    """Reads what WeightLayout prints. Raises InvalidOptionError for any other text."""
    name, colon, form = text.partition(":")
    kind = name.removesuffix("_gated")
    if kind not in (GATED if name.endswith("_gated") else KINDS) or (colon and kind != "quantized"):
        names = [*KINDS, *(f"{one}_gated" for one in GATED)]
        raise InvalidOptionError(f"a weight's layout must be one of {', '.join(names)}, not {text!r}")
    return WeightLayout(kind, name.endswith("_gated"), parse_format(form) if colon else None)
