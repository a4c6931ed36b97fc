"""Lets Kosmos count positions from the tokens' positions, as it does where nobody gives positions.

Its tables of sinusoids begin behind the number of the padding token. Given positions it takes as they are, and others
it makes of the token ids: the first is the padding's number and 1 more. No sequence of an engine is padded.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from tensorwright.errors import UnsupportedModelError

_TOKENS = 9


def fix_text_positions(model: PreTrainedModel) -> None:
    """Makes every such table add the padding's number and 1 to the positions that it is given, in place.

    Raises UnsupportedModelError if a module makes other positions of token ids.
    """
    for name, module in model.named_modules():
        make = getattr(module, "create_position_ids_from_input_ids", None)
        if make is not None and isinstance(getattr(module, "padding_idx", None), int):
            _fix(name, module, make)


def _fix(name: str, module: Any, make: Any) -> None:
    first = module.padding_idx + 1
    tokens = torch.full((1, _TOKENS), first)
    if not torch.equal(make(tokens, module.padding_idx), torch.arange(first, first + _TOKENS)[None]):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) makes positions of tokens in its own way, which cannot be fixed at "
            "build; supported: positions that count from the padding's number and 1"
        )
    forward = module.forward

    def forward_behind(*args: Any, position_ids: torch.Tensor | None = None, **more: Any) -> Any:
        return forward(*args, position_ids=None if position_ids is None else position_ids + first, **more)

    module.forward = forward_behind
