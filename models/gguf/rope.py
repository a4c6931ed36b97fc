"""Finds the rotary embedding of a GGUF file: the base, the columns that turn, and what scales the frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import UnsupportedModelError
from tensorwright.models.dtypes import to_float32
from tensorwright.models.gguf.metadata import Metadata
from tensorwright.models.stored_tensors import StoredTensors

FREQUENCIES = "rope_freqs.weight"
"""A divisor for each frequency: Llama 3's scaling, which no metadata names."""
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""Divisors for each frequency, of long and of short contexts: longrope."""
VECTORS = frozenset({FREQUENCIES, LONG, SHORT})
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The numbers of all published models with Llama 3's scaling, but its factor."""


def rope_parameters(data: Metadata, stored: StoredTensors, head_dim: int, *, partial: bool) -> dict[str, Any]:
    """Returns rope_parameters of a config. partial: whether fewer columns than head_dim may turn."""
    theta = data.real("rope.freq_base", 10000.0)
    turning = data.whole("rope.dimension_count", head_dim)
    if not 0 < turning <= head_dim or (turning < head_dim and not partial):
        raise _refusal(stored, f"{turning} of {head_dim} columns of a head turn (rope.dimension_count)")
    found = {"rope_theta": theta, **_scaling(data, stored, theta, turning)}
    return {**found, "partial_rotary_factor": turning / head_dim} if partial else found


def _scaling(data: Metadata, stored: StoredTensors, theta: float, turning: int) -> dict[str, Any]:
    kind = data.text(f"{data.architecture}.rope.scaling.type", "linear")  # llama.cpp's default
    data.skip("rope.scaling.type", "rope.scaling.finetuned")
    factor = data.real("rope.scaling.factor", 0.0)
    if LONG in stored and SHORT in stored:
        data.skip("rope.scaling.attn_factor")  # It follows from the lengths of the contexts.
        factors = {ours: stored.read(name) for ours, name in (("long_factor", LONG), ("short_factor", SHORT))}
        original = data.whole("rope.scaling.original_context_length")
        lists = {ours: [float(str(each)) for each in to_float32(tensor)] for ours, tensor in factors.items()}
        return {"rope_type": "longrope", "original_max_position_embeddings": original, **lists}
    if kind == "yarn":
        original = data.whole("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    if kind not in ("linear", "none"):
        raise _refusal(stored, f"the scaling of rope is {kind!r:.100}")
    data.skip("rope.scaling.original_context_length")
    if kind == "linear" and factor not in (0.0, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if FREQUENCIES in stored:
        return _llama3(to_float32(stored.read(FREQUENCIES)), stored, theta, turning)
    return {"rope_type": "default"}


def _llama3(divisors: np.ndarray, stored: StoredTensors, theta: float, turning: int) -> dict[str, Any]:
    """Returns Llama 3's scaling with the factor that gives these divisors (transformers, modeling_rope_utils.py)."""
    if (divisors == 1).all():
        return {"rope_type": "default"}
    factor = float(divisors.max())
    inverse = theta ** (-np.arange(0, turning, 2, dtype=np.float64) / turning)
    low, high, length = LLAMA3.values()
    smooth = np.clip((length * inverse / (2 * np.pi) - low) / (high - low), 0, 1)
    wanted = 1 / ((1 - smooth) / factor + smooth)
    if divisors.shape != wanted.shape or not np.allclose(divisors, wanted, rtol=1e-4, atol=0):
        raise _refusal(stored, f"{FREQUENCIES} has other divisors than Llama 3's scaling by {factor:g}")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _refusal(stored: StoredTensors, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{stored.path}: GGUF files are not read where {what}; give the checkpoint in safetensors "
        "(docs/quantization.md)"
    )
