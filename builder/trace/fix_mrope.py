"""Fixes mrope, which turns parts of each head by the time, the row and the column of a token of an image.

All three are the position where there is text alone, so the tables are those of a plain rotary embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tensorwright.builder.trace.text_part import TextPart
from tensorwright.errors import UnsupportedModelError

_COORDINATES = 3  # time, row, column; some models have a fourth one
_AXES = 3  # of coordinates: which one, batch, sequence
_POSITIONS = (0, 1, 2, 7, 1000, 131071)


class TextRotary(nn.Module):
    """A rotary embedding of positions [1, S], or of coordinates [3 or 4, 1, S] that equal them.

    It gives cosine and sine [1, S, R] of the angles position * inv_freq [R / 2], times `scaling`. neighbours: whether
    an angle stands for elements side by side, or else for one element of each half. casts: whether the tables get the
    type of the first operand, or else stay float32.
    """

    def __init__(self, sections: Sequence[int], inv_freq: torch.Tensor, scaling: float, neighbours: bool, casts: bool):
        super().__init__()
        self.mrope_section = sections  # Some models ask for it, to make coordinates of the positions.
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.scaling = scaling
        self.neighbours = neighbours
        self.casts = casts

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = position_ids[0] if position_ids.ndim == _AXES else position_ids
        frequencies = positions[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        if self.neighbours:
            angles = frequencies.repeat_interleave(2, dim=-1)
        else:
            angles = torch.cat((frequencies, frequencies), dim=-1)
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        return (cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)) if self.casts else (cos, sin)


class LayeredTextRotary(nn.Module):
    """Rotary embeddings of positions, one for each type of layers, which comes as the third argument."""

    def __init__(self, tables: dict[str, TextRotary]):
        super().__init__()
        self.tables = nn.ModuleDict(tables)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.tables[layer_type](x, position_ids)
        return cos, sin


def fix_mrope(model: PreTrainedModel, part: TextPart) -> None:
    """Replaces every mrope of the text part, in place, by a plain rotary embedding that gives the same for text.

    Raises UnsupportedModelError if a module has its own kind of mrope, which no plain embedding equals.
    """
    modules = [(name, module) for name, module in model.named_modules() if part.holds(name)]
    for name, module in modules:
        sections = getattr(module, "mrope_section", None)
        # Attention of HunYuan has the sections too, and turns by the tables alone.
        if isinstance(sections, (list, tuple)) and hasattr(module, "inv_freq"):
            _replace(model, name, _plain(name, module, sections))
        elif isinstance(sections, dict) and all(hasattr(module, f"{kind}_inv_freq") for kind in sections):
            tables = {kind: _plain(name, module, sections[kind], kind) for kind in sections}
            _replace(model, name, LayeredTextRotary(tables))


def _replace(model: PreTrainedModel, name: str, rotary: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, rotary)


def _plain(name: str, module: Any, sections: Sequence[int], *kind: str) -> TextRotary:
    """Returns what gives the tables that `module` gives to text. kind: the type of layers whose tables they are, if
    there are several."""
    x, positions = torch.zeros(1), torch.tensor([_POSITIONS])
    coordinates = positions.expand(max(_COORDINATES, len(sections)), 1, -1)
    wanted = module(x, coordinates, *kind)
    casts = module(x.bfloat16(), coordinates, *kind)[0].dtype == torch.bfloat16
    frequencies, scaling = (getattr(module, "_".join((*kind, what))) for what in ("inv_freq", "attention_scaling"))
    for inv_freq in _orders(frequencies, sections):
        for neighbours in (False, True):
            plain = TextRotary(sections, inv_freq, scaling, neighbours, casts)
            given = plain(x, positions)
            if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(given, wanted, strict=True)):
                return plain
    raise UnsupportedModelError(
        f"{name} ({type(module).__name__}) has an mrope of its own kind, which cannot be fixed at build; supported: "
        "one that equals a plain rotary embedding where time, row and column are equal"
    )


def _orders(inv_freq: torch.Tensor, sections: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yields the frequencies in the orders that classes put them in: as they are, or rows and columns by turns.

    Ernie 4.5 keeps the frequencies of rows, those of columns and those of the time behind each other, and brings rows
    and columns together again in its tables.
    """
    yield inv_freq
    if len(sections) == _COORDINATES and sections[0] == sections[1] and sum(sections) == len(inv_freq):
        rows, columns, times = inv_freq.split(list(sections))
        yield torch.cat([torch.stack([rows, columns], dim=-1).flatten(), times])
