"""The expectations of decoders whose MLPs are mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.models.families.dense import ernie4_5, layer_norms, llama, olmo2, qwen3
from tensorwright.models.families.expected import Expected


def mixture(expected: dict[str, Expected], dense: int = 0) -> dict[str, Expected]:
    """Returns `expected` for a family whose MLPs are mixtures of experts, but for those of `dense` layers.

    A mixture counts as one matrix that can be quantized. The linear that its route reads is not quantized.
    """
    return {
        **expected,
        "recognise_router": Expected(1, -dense),
        "fuse_gate_up": Expected(0, dense),
        "fuse_swiglu": Expected(0, dense),
        "quantize_weights": Expected(3, 2 + dense),
    }


def with_shared_expert(expected: dict[str, Expected], dense: int = 0) -> dict[str, Expected]:
    """Returns `expected` of a mixture for a family whose mixtures stand beside an expert that all tokens take. `dense`
    layers have no mixture."""
    return {
        **expected,
        "fuse_gate_up": Expected(1),
        "fuse_swiglu": Expected(1),
        "quantize_weights": Expected(5, 2 - dense),
    }


def dense_layers(config: dict[str, Any]) -> int:
    """Returns how many layers of a Qwen have no mixture."""
    every, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    return sum(layer in plain or (layer + 1) % every != 0 for layer in range(config.get("num_hidden_layers", 0)))


def mixtral(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts."""
    return mixture(llama(config))


def olmoe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with norms of whole q and k rows, whose MLPs are mixtures of experts."""
    return mixture({**llama(config), "recognise_rms_norm": Expected(4, 1)})


def qwen2_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts, each beside one expert that all tokens take, by a gate of its own."""
    dense = dense_layers(config)
    expected = with_shared_expert(mixture(llama(config), dense))
    return {**expected, "recognise_gated_expert": Expected(1, -dense), "quantize_weights": Expected(4, 2)}


def qwen3_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Qwen3 whose MLPs are mixtures of experts, in all or some of the layers."""
    return mixture(qwen3(config), dense_layers(config))


def granitemoeshared(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts, each beside one expert that all tokens take."""
    if not config.get("shared_intermediate_size"):
        return mixtral(config)
    return {**mixtral(config), "fuse_swiglu": Expected(1), "quantize_weights": Expected(5, 2)}


def flex_olmo(config: dict[str, Any]) -> dict[str, Expected]:
    """OLMo 2 whose MLPs are mixtures of experts."""
    return mixture(olmo2(config))


def ernie4_5_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Ernie 4.5 whose MLPs are mixtures of experts chosen by corrected scores, and an expert that all tokens take."""
    count = config.get("num_hidden_layers", 0)
    first, last = config.get("moe_layer_start_index", 1), config.get("moe_layer_end_index", -1)
    last, every = (count - 1 if last == -1 else last), config.get("moe_layer_interval", 1)
    dense = count - sum((layer + 1) % every == 0 and first <= layer <= last for layer in range(count))
    expected = mixture(ernie4_5(config), dense)
    return with_shared_expert(expected, dense) if config.get("moe_num_shared_experts", 0) else expected


def llama4(config: dict[str, Any]) -> dict[str, Expected]:
    """Neighbours turn in some of the layers, with norms of heads behind the rotation; queries of others grow with the
    position. Experts read rows that are scaled by their scores, beside an expert that all tokens take."""
    layers = int(config.get("num_hidden_layers", 0))
    every = config.get("no_rope_layer_interval", 4)
    turning = sum(config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)])
    step = config.get("interleave_moe_layer_step", 1)
    sparse = config.get("moe_layers")
    dense = layers - sum(layer < layers for layer in (range(step - 1, layers, step) if sparse is None else sparse))
    normed = turning if config.get("use_qk_norm", True) else 0
    turned = Expected(0, 2 * turning)
    expected = {
        **ernie4_5(config),
        "recognise_interleaved_rotary": turned,
        "permute_rotary_rows": turned,
        "recognise_query_growth": Expected(0, layers - turning if config.get("attn_temperature_tuning", True) else 0),
        "recognise_rms_norm": Expected(2, 1 + 2 * normed),
        "move_norms_before_rotary": Expected(0, normed),
    }
    return with_shared_expert(mixture(expected, dense), dense)


def glm4_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama, with norms of heads if asked for, and mixtures: experts in groups, of which some count for a token, chosen
    by corrected scores, beside an expert that all tokens take."""
    norms = Expected(4 if config.get("use_qk_norm", False) else 2, 1)
    dense = min(config.get("first_k_dense_replace", 1), config.get("num_hidden_layers", 0))
    expected = mixture({**llama(config), "recognise_rms_norm": norms}, dense)
    return with_shared_expert(expected, dense)


def gpt_oss(config: dict[str, Any]) -> dict[str, Expected]:
    """Sinks, windows in every other layer, and mixtures of experts with biases and a clamped gate."""
    return mixtral(config)


def minimax_m2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms of whole q and k rows, and mixtures of experts that are chosen by corrected scores."""
    return olmoe(config)


def phimoe(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, and mixtures of two experts that are chosen one after the other (SparseMixer)."""
    return mixture(layer_norms(llama(config), serial=True))


MIXTURES: dict[str, Callable[[dict[str, Any]], dict[str, Expected]]] = {
    "ernie4_5_moe": ernie4_5_moe,
    "glm4_moe": glm4_moe,
    "flex_olmo": flex_olmo,
    "gpt_oss": gpt_oss,
    "granitemoe": mixtral,
    "granitemoeshared": granitemoeshared,
    "llama4_text": llama4,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
}
"""model_type -> expectations, of config.json or the config of its text part. The docstring describes the family."""
