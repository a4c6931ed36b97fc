"""Fixes dynamic NTK rope, which rescales its frequencies while a sequence is longer than the positions of the model.

The rescaled frequencies depend on the longest sequence of a batch, so one request would change the tokens of another.
Up to the model's own positions nothing is rescaled: there it is plain rope. No engine is longer than those.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedModel

from tensorwright.builder.trace.fix_longrope import rotates_alike
from tensorwright.errors import UnsupportedModelError

DYNAMIC = "dynamic"


def fix_dynamic_rope(model: PreTrainedModel, max_seq_len: int) -> None:
    """Makes every dynamic rope of `model` plain rope, in place.

    Raises UnsupportedModelError if `max_seq_len` is longer than the model's own positions, or if a module has its own
    kind of dynamic rope.
    """
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        if kinds == DYNAMIC:
            _fix(name, module, None, max_seq_len)
        elif isinstance(kinds, dict):
            for layer_type in [layer for layer, kind in kinds.items() if kind == DYNAMIC]:
                _fix(name, module, layer_type, max_seq_len)


def _fix(name: str, module: Any, layer_type: str | None, max_seq_len: int) -> None:
    """Names the rope of `module` plain, and checks that it turns as before at the longest length."""
    positions = module.config.max_position_embeddings
    if max_seq_len > positions:
        raise UnsupportedModelError(
            f"{name} has dynamic NTK rope, which rescales its frequencies with the longest sequence so far beyond "
            f"{positions} positions, so one request would change the tokens of another; max_seq_len must be at most "
            f"{positions}, not {max_seq_len}"
        )
    before = copy.deepcopy(module)
    module.rope_type = "default" if layer_type is None else {**module.rope_type, layer_type: "default"}
    if not rotates_alike(before, copy.deepcopy(module), layer_type, max_seq_len):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) has a dynamic rope of its own kind, which cannot be fixed at build; "
            f"supported: frequencies that are not rescaled up to max_position_embeddings ({positions})"
        )
