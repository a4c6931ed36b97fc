"""Medusa heads as a torch module, from checkpoints as the authors and as vLLM write them.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", section 2.1: head k
reads the model's last hidden state of position i, behind the final norm, by residual blocks x + SiLU(W x + b), and says
the token of position i + 1 + k by an output matrix of its own, or by the model's. Heads see no other head's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tensorwright.errors import CheckpointError

MOST_HEADS, MOST_BLOCKS = 16, 16
AT_ONCE = 4
"""The columns that one instruction joins come from so many values at most (plugins/concat)."""
_COUNTS = {"heads": ("medusa_num_heads", "num_heads"), "blocks": ("medusa_num_layers", "num_hidden_layers")}


@dataclass(frozen=True)
class MedusaOptions:
    """What config.json says: the number of heads, the residual blocks of each, and, where it says so, the sizes of the
    model that they belong to."""

    heads: int
    blocks: int
    hidden: int | None = None
    vocab: int | None = None


def read_options(config: Mapping[str, Any]) -> MedusaOptions:
    """Returns what config.json says. Raises CheckpointError for sizes that are none."""
    heads, blocks = (_count(config, keys) for keys in _COUNTS.values())
    if not 2 <= heads <= MOST_HEADS:
        raise CheckpointError(f"Medusa heads must be 2 to {MOST_HEADS}, config.json says {heads}")
    if blocks > MOST_BLOCKS:
        raise CheckpointError(f"a Medusa head must have 1 to {MOST_BLOCKS} blocks, config.json says {blocks}")
    hidden, vocab = config.get("hidden_size"), config.get("vocab_size")
    for key, value in (("hidden_size", hidden), ("vocab_size", vocab)):
        if value is not None and (type(value) is not int or value < 1):
            raise CheckpointError(f"the heads' config.json: {key} must be a positive whole number, not {value!r}")
    return MedusaOptions(heads, blocks, hidden, vocab)


def _count(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    key = next((key for key in keys if key in config), None)
    value = None if key is None else config[key]
    if type(value) is not int or value < 1:
        raise CheckpointError(f"the heads' config.json must say how many there are, as {' or '.join(keys)}: {value!r}")
    return value


class MedusaHead(nn.Module):
    """One head: hidden states [1, S, H] -> logits [1, S, V]. biased: for each residual block, whether it has a bias."""

    def __init__(self, hidden: int, vocab: int, biased: tuple[bool, ...]):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(hidden, hidden, bias=bias) for bias in biased])
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def linears(self) -> list[nn.Linear]:
        """Returns the matrices of the blocks."""
        return [block for block in self.blocks if isinstance(block, nn.Linear)]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + nn.functional.silu(block(hidden))
        return self.lm_head(hidden)


class MedusaHeads(nn.Module):
    """Token ids and positions, which are not read, and features [1, S, H], the model's last hidden states -> logits
    [1, S, K * V], those of the first head first, and the features."""

    def __init__(self, hidden: int, vocab: int, heads: int, biased: tuple[bool, ...]):
        super().__init__()
        self.heads = nn.ModuleList([MedusaHead(hidden, vocab, biased) for _ in range(heads)])

    def each(self) -> list[MedusaHead]:
        return [head for head in self.heads if isinstance(head, MedusaHead)]

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, given_features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = [head(given_features) for head in self.heads]
        while len(logits) > 1:
            logits = [torch.cat(logits[at : at + AT_ONCE], dim=-1) for at in range(0, len(logits), AT_ONCE)]
        return logits[0], given_features
