"""How often a pass must fire on a model: the numbers that the families state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """A pass fires `per_layer` times in every layer and `constant` times besides."""

    per_layer: int = 0
    constant: int = 0

    def count(self, layers: int) -> int:
        return self.per_layer * layers + self.constant


MATRICES = Expected(4, 2)
"""The matrices of a fused decoder that quantize_weights can rewrite: per layer qkv, o, gate and up (or up alone), and
down; once per model the embedding and lm_head, tied or not."""
