"""The expectations of decoders that attend over latent rows, with and without mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.models.families.dense import llama
from tensorwright.models.families.expected import Expected


def latent(config: dict[str, Any], *, neighbours: bool) -> dict[str, Expected]:
    """Attention over latent rows, which q and k share with a part that rotates: norms of the latents, and of q's own
    where the config has a rank for q. The matrices of a layer are those of q, of the latents, two up-projections, o,
    gate and up, and down.

    neighbours: whether neighbours rotate instead of halves.
    """
    ranked = config.get("q_lora_rank", 1) is not None
    return {
        **llama(config),
        "recognise_rms_norm": Expected(4 if ranked else 3, 1),
        "recognise_rotary": Expected(0 if neighbours else 2),
        "recognise_interleaved_rotary": Expected(2 if neighbours else 0),
        "rewrite_gqa": Expected(),
        "fuse_latent_attention": Expected(1),
        "fuse_qkv": Expected(),
        "quantize_weights": Expected(8 if ranked else 7, 2),
    }


def minicpm3(config: dict[str, Any]) -> dict[str, Expected]:
    """Attention over latent rows, whose rotation turns halves; scaled embeddings, residuals and logits."""
    return latent(config, neighbours=False)


DENSE = {"deepseek_v3": 3, "deepseek_v32": 3, "glm4_moe_lite": 1, "glm_moe_dsa": 3}
"""How many layers a family begins with that have no mixture, where config.json does not say it. Others begin with 0."""


def deepseek(config: dict[str, Any]) -> dict[str, Expected]:
    """Attention over latent rows, whose rotation turns neighbours unless the config says otherwise. Behind the first
    layers, a mixture of experts beside one that all tokens take."""
    return with_experts(config, latent(config, neighbours=config.get("rope_interleave", True)))


def indexed(config: dict[str, Any]) -> dict[str, Expected]:
    """Attention over latent rows, whose rotation turns neighbours, without the indexers, which pick every position.
    Behind the first layers, a mixture of experts beside one that all tokens take."""
    return with_experts(config, latent(config, neighbours=True))


def with_experts(config: dict[str, Any], expected: dict[str, Expected]) -> dict[str, Expected]:
    """Returns the expectations of a model whose first layers are those of `expected`, and whose others are mixtures."""
    layers = int(config.get("num_hidden_layers", 0))
    if kinds := config.get("mlp_layer_types"):
        dense = list(kinds).count("dense")
    else:
        dense = min(config.get("first_k_dense_replace", DENSE.get(config["model_type"], 0)), layers)
    if dense == layers:
        return expected
    every, routes = expected["quantize_weights"], {"recognise_router": Expected(1, -dense)}
    if config.get("n_shared_experts", 1):
        return {**expected, **routes, "quantize_weights": Expected(every.per_layer + 1, every.constant - dense)}
    gates = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected(0, dense))
    return {**expected, **routes, **gates, "quantize_weights": Expected(every.per_layer - 1, every.constant + dense)}


LATENT: dict[str, Callable[[dict[str, Any]], dict[str, Expected]]] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": indexed,
    "glm_moe_dsa": indexed,
    "glm4_moe_lite": deepseek,
    "minicpm3": minicpm3,
}
"""model_type -> expectations, of config.json or the config of its text part. The docstring describes the family."""
