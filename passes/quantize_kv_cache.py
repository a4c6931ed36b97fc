"""quantize_kv_cache:  kv_layers[l]  ->  kv_layers[l] with dtype "int8", "int4" or "fp8"

The fact "kv_cache_dtype" asks for it; without that fact, or with "auto", the cache keeps the activations' type. The
rewrite is the same for all targets: rotary_kv_write then rounds each head of K (rotated) and V to 8 bits and a scale,
and paged_attention rounds each head of q to 15 bits, as plugins/paged_attention/quantize.py defines it; or to 4 bits
with a scale and an offset for 64 dimensions, and q to 12 bits; or to E4M3 and a scale, and q not at all. Nothing is
calibrated: a scale belongs to a token. A cache of latent rows is refused: a scale of a whole row would serve two parts
of different size, the normalised latent and what rotates.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS, KV_CACHE_DTYPES
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.plugins.paged_attention.quantize import MAX_HEAD_DIM


def quantize_kv_cache(graph: Graph) -> int:
    """Returns how many layers' caches changed their type. Raises UnsupportedModelError for heads that are too wide,
    and for latent rows."""
    asked = graph.facts.kv_cache_dtype
    if asked not in KV_CACHE_DTYPES:
        raise InvalidOptionError(f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, not {asked!r}")
    if asked == AS_ACTIVATIONS:
        return 0
    layers = graph.facts.kv_layers
    for i, layer in enumerate(layers):
        if layer.v_dim:
            raise UnsupportedModelError(
                f"an {asked} KV cache of latent rows is not supported, and layer {i} has one; "
                "build with kv_cache_dtype auto"
            )
        if layer.head_dim > MAX_HEAD_DIM:
            raise UnsupportedModelError(
                f"an {asked} KV cache takes heads of at most {MAX_HEAD_DIM} dimensions, those of layer {i} have "
                f"{layer.head_dim}; build with kv_cache_dtype auto"
            )
    count = sum(layer.dtype != asked for layer in layers)
    graph.facts.kv_layers = [replace(layer, dtype=asked) for layer in layers]
    return count
