"""Names the plugin form's inputs and outputs, with types and shapes, for the model and for the executor of its engine.

G stands for the number of a cache group, L for that of a layer.  Unused entries of block_tables are -1.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir.facts import Facts

Tensor = tuple[str, str, tuple[int | str, ...]]
"""(name, element type, shape)."""

STEP: tuple[Tensor, ...] = (
    ("token_ids", "int32", ("tokens",)),
    ("positions", "int32", ("tokens",)),
    ("seq_starts", "int32", ("seqs + 1",)),
    ("context_lens", "int32", ("seqs",)),
    ("logit_rows", "int32", ("rows",)),
)


def groups_of(facts: Facts) -> list[dict[str, Any]]:
    """Returns the window and the layers of each cache group."""
    layers = facts.kv_layers
    numbers = sorted({one.group for one in layers})
    members = [[i for i, one in enumerate(layers) if one.group == group] for group in numbers]
    return [{"window": layers[found[0]].window, "layers": found} for found in members]


def inputs_of(facts: Facts, dtype: str) -> list[Tensor]:
    """Returns all inputs, in order."""
    found = list(STEP)
    for group in range(len(groups_of(facts))):
        found.append((f"block_tables.{group}", "int32", ("seqs", f"max_blocks.{group}")))
        found.append((f"slots.{group}", "int32", ("tokens",)))
    return found + cache_tensors(facts, dtype, "")


def outputs_of(facts: Facts, dtype: str) -> list[Tensor]:
    """Returns the outputs: the logits, and the cache."""
    return [("logits", "float32", ("rows", facts.vocab_size)), *cache_tensors(facts, dtype, "_out")]


def cache_tensors(facts: Facts, dtype: str, ending: str) -> list[Tensor]:
    """Returns the pages of every layer, each followed by its scales if the cache is int8."""
    found: list[Tensor] = []
    for layer, cache in enumerate(facts.kv_layers):
        page = (f"pages.{cache.group}", cache.kv_heads, facts.block_size)
        kind = cache.dtype_or(dtype)
        found += [(f"{name}_pages{ending}.{layer}", kind, (*page, cache.head_dim)) for name in "kv"]
        if kind == "int8":
            found += [(f"{name}_scales{ending}.{layer}", "float32", page) for name in "kv"]
    return found


def describe_io(facts: Facts, dtype: str) -> dict[str, Any]:
    """Returns {"dtype", "block_size", "groups": [{"window", "layers"}], "inputs", "outputs"}.

    inputs and outputs: [{"name", "dtype", "shape"}].
    """

    def described(tensors: list[Tensor]) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": kind, "shape": list(shape)} for name, kind, shape in tensors]

    return {
        "dtype": dtype,
        "block_size": facts.block_size,
        "groups": groups_of(facts),
        "inputs": described(inputs_of(facts, dtype)),
        "outputs": described(outputs_of(facts, dtype)),
    }
