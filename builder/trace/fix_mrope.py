"""Fixes mrope, which turns parts of each head by the time, the row and the column of a token of an image.

All three are the position where there is text alone, so the tables are those of a plain rotary embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tensorwright.builder.trace.text_part import TextPart
from tensorwright.errors import UnsupportedModelError

_COORDINATES = 3  # time, row, column
_POSITIONS = (0, 1, 2, 7, 1000, 131071)


class TextRotary(nn.Module):
    """A rotary embedding of positions [1, S], or of coordinates [3, 1, S] that are all equal to them.

    It gives cosine and sine [1, S, R] for the frequencies of `module`; neighbours: whether an angle stands for elements
    side by side, or else for one element of each half.
    """

    def __init__(self, module: Any, neighbours: bool):
        super().__init__()
        self.inv_freq = nn.Buffer(module.inv_freq, persistent=False)
        self.attention_scaling = module.attention_scaling
        self.neighbours = neighbours

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = position_ids[0] if position_ids.ndim == _COORDINATES else position_ids
        frequencies = positions[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        if self.neighbours:
            angles = frequencies.repeat_interleave(2, dim=-1)
        else:
            angles = torch.cat((frequencies, frequencies), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def fix_mrope(model: PreTrainedModel, part: TextPart) -> None:
    """Replaces every mrope of the text part, in place, by a plain rotary embedding that gives the same for text.

    Raises UnsupportedModelError if a module has its own kind of mrope, which no plain embedding equals.
    """
    modules = [(name, module) for name, module in model.named_modules() if part.holds(name)]
    for name, module in modules:
        if isinstance(getattr(module, "mrope_section", None), (list, tuple)):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, _plain(name, module))


def _plain(name: str, module: Any) -> TextRotary:
    x, positions = torch.zeros(1), torch.tensor([_POSITIONS])
    wanted = module(x, positions.expand(_COORDINATES, 1, -1))
    for neighbours in (False, True):
        plain = TextRotary(module, neighbours)
        given = plain(x, positions)
        if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(given, wanted, strict=True)):
            return plain
    raise UnsupportedModelError(
        f"{name} ({type(module).__name__}) has an mrope of its own kind, which cannot be fixed at build; supported: "
        "one that equals a plain rotary embedding where time, row and column are equal"
    )
