"""The expectations of decoders with recurrent layers, alone or beside layers that attend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.models.families.dense import llama, qwen3
from tensorwright.models.families.expected import MATRICES, Expected
from tensorwright.models.families.mixtures import dense_layers, mixture


def attending_layers(config: dict[str, Any]) -> int:
    """Returns how many layers of a hybrid attend; the others are recurrent."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None and "full_attention_interval" in config:
        return int(config["num_hidden_layers"]) // int(config["full_attention_interval"])
    if kinds is None:
        return len(config.get("full_attn_idxs") or config.get("attn_layer_indices") or ())
    return sum(kind in ("full_attention", "attention") for kind in kinds)


def hybrid(expected: dict[str, Expected], attending: int, states: int, linears: int) -> dict[str, Expected]:
    """Returns `expected` of an attending layer for a family in which only some layers attend.

    attending: the number of those. A recurrent layer has so many states, and its inputs are made by one stored matrix
    that becomes `linears`.
    """
    every, tables = expected["quantize_weights"], MATRICES.constant
    more = linears - 1  # the one matrix of qkv has become so many
    apart = {name: Expected(0, expected[name].per_layer * attending) for name in _OF_ATTENTION if name in expected}
    return {
        **expected,
        **apart,
        "split_linears": Expected(linears, -linears * attending),
        "insert_kv_cache": Expected(states, (1 - states) * attending),
        "quantize_weights": Expected(every.per_layer + more, tables - more * attending),
    }


_OF_ATTENTION = ("recognise_rotary", "recognise_attention", "rewrite_gqa", "fuse_qkv")
"""The passes that rewrite what only layers with attention have."""


def lfm2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, with norms of q and k, or that convolve the last few tokens between two gates."""
    attending = attending_layers(config)
    expected = hybrid(llama(config), attending, states=1, linears=3)
    return {**expected, "recognise_rms_norm": Expected(2, 2 * attending + 1)}


def mamba(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers of one part each, without attention: a convolution, a scan of every channel and a gate."""
    expected = mamba2(config)
    return {
        **expected,
        "canonicalise_linears": Expected(1),
        "recognise_rms_norm": Expected(1, 1),
        "split_linears": Expected(5),
        "quantize_weights": Expected(7, 2),
    }


def falcon_mamba(config: dict[str, Any]) -> dict[str, Expected]:
    """Mamba with norms without weights of what makes the scan's steps, and of what it reads and writes."""
    return {**mamba(config), "recognise_rms_norm": Expected(4, 1)}


def jamba(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend without rotation, or that scan as those of Mamba do with norms; some MLPs mix experts."""
    layers = int(config.get("num_hidden_layers", 0))
    attending = _every(layers, config.get("attn_layer_period", 8), config.get("attn_layer_offset", 4))
    mixed = _every(layers, config.get("expert_layer_period", 2), config.get("expert_layer_offset", 1))
    mixed = mixed if config.get("num_experts", config.get("num_local_experts", 16)) > 1 else 0
    expected = {**hybrid(llama(config), attending, states=2, linears=5), "recognise_rotary": Expected()}
    return {
        **expected,
        "recognise_rms_norm": Expected(5, 1 - 3 * attending),
        "recognise_router": Expected(0, mixed),
        "fuse_gate_up": Expected(1, -mixed),
        "fuse_swiglu": Expected(1, -mixed),
        "quantize_weights": Expected(9, 2 - 5 * attending - mixed),
    }


def _every(layers: int, period: int, offset: int) -> int:
    """Returns how many layers are `offset` layers behind a multiple of `period`."""
    return sum(layer % period == offset for layer in range(layers))


def lfm2_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """LFM2 whose MLPs, but those of the first layers, are mixtures of experts chosen by corrected scores."""
    expected, dense = lfm2(config), config.get("num_dense_layers", 2)
    every = expected["quantize_weights"]
    return {**mixture(expected, dense), "quantize_weights": Expected(every.per_layer - 1, every.constant + dense)}


def mamba2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers of one part each, without attention: a convolution, a scan and a gated norm."""
    nothing = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected())
    expected = hybrid({**llama(config), **nothing}, 0, states=2, linears=3)
    return {
        **expected,
        "recognise_rms_norm": Expected(2, 1),
        "fuse_add_rms_norm": Expected(1),
        "quantize_weights": Expected(4, 2),
    }


def nemotron_h(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers of one part each: a scan as those of Mamba-2 have, attention without rotation, an MLP without a gate, or
    a mixture of such MLPs beside one that all tokens take."""
    kinds = [_KINDS_OF_LAYERS.get(kind, kind) for kind in _kinds_of_nemotron_h(config)]
    scans, attending, mixed, dense = (
        kinds.count(kind) for kind in ("linear_attention", "full_attention", "moe", "mlp")
    )
    of_attention = {name: Expected(0, llama(config)[name].per_layer * attending) for name in _OF_ATTENTION}
    nothing = dict.fromkeys(("fuse_gate_up", "fuse_swiglu", "recognise_rotary"), Expected())
    return {
        **of_attention,
        **nothing,
        "recognise_rms_norm": Expected(1, scans + 1),
        "recognise_router": Expected(0, mixed),
        "fuse_add_rms_norm": Expected(1),
        "split_linears": Expected(0, 3 * scans),
        "insert_kv_cache": Expected(0, 2 * scans + attending),
        "quantize_weights": Expected(0, 2 + 4 * scans + 2 * attending + 2 * dense + 3 * mixed),
    }


_KINDS_OF_LAYERS = {
    "M": "linear_attention", "mamba": "linear_attention", "*": "full_attention", "attention": "full_attention",
    "E": "moe", "-": "mlp",
}  # fmt: skip
"""The kinds of Nemotron-H's layers by the names of older configs, and by the letters of their patterns."""


def _kinds_of_nemotron_h(config: dict[str, Any]) -> list[str]:
    found = config.get("layers_block_type") or config.get("layer_types") or config.get("hybrid_override_pattern")
    return list(found or ("linear_attention", "moe", "full_attention", "mlp"))


def bamba(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, or that scan as those of Mamba-2 do; a gated MLP in both."""
    attending = attending_layers(config)
    expected = hybrid(llama(config), attending, states=2, linears=3)
    return {**expected, "recognise_rms_norm": Expected(3, 1 - attending)}


def granitemoehybrid(config: dict[str, Any]) -> dict[str, Expected]:
    """Bamba whose MLPs have one matrix for gate and up, alone or beside a mixture of experts."""
    turning = {} if config.get("position_embedding_type") == "rope" else {"recognise_rotary": Expected()}
    expected = {**bamba(config), **turning, "fuse_gate_up": Expected()}
    if not config.get("num_local_experts", 8):
        return expected
    every = expected["quantize_weights"]
    mixed = Expected(every.per_layer + 1, every.constant)
    return {**expected, "recognise_router": Expected(1), "quantize_weights": mixed}


def qwen3_5(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend with a gate behind attention, or that convolve and keep a state by the delta rule."""
    attending = attending_layers(config)
    expected = hybrid(qwen3(config), attending, states=2, linears=4)
    return {
        **expected,
        "recognise_rms_norm": Expected(3, attending + 1),
        "unflatten_heads": Expected(3, -3 * attending),
        "split_interleaved_linears": Expected(0, 2 * attending),
        "split_linears": Expected(),
        "quantize_weights": Expected(7, 2 - 2 * attending),
    }


def with_mixtures(expected: dict[str, Expected], plain: int) -> dict[str, Expected]:
    """Returns `expected` for a family whose MLPs, but those of `plain` layers, are mixtures of experts, each beside one
    expert that all tokens take, by a gate of its own. The two have as many matrices as a plain MLP."""
    mixtures, heads = Expected(1, -plain), expected["unflatten_heads"]
    return {
        **expected,
        "recognise_router": mixtures,
        "recognise_gated_expert": mixtures,
        "unflatten_heads": Expected(heads.per_layer + 1, heads.constant - plain),
    }


def qwen3_5_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Qwen3.5 whose MLPs are mixtures of experts, each beside one expert that all tokens take, by a gate of its own."""
    return with_mixtures(qwen3_5(config), 0)


def olmo_hybrid(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, with norms of whole q and k rows and of what attention and MLP give, or that keep a state by
    the delta rule, with norms of the residual stream. A rate up to two takes back more than an error."""
    layers, attending = int(config.get("num_hidden_layers", 0)), attending_layers(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    turning = rope.get("rope_theta", config.get("rope_theta")) is not None
    begins = int((config.get("layer_types") or ["linear_attention"])[0] == "linear_attention")
    return {
        **hybrid(llama(config), attending, states=2, linears=4),
        "recognise_rms_norm": Expected(3, attending + 1),
        "recognise_rotary": Expected(0, 2 * attending * turning),
        # A norm follows two sums of each recurrent layer and the last sum of all; none comes before the first layer.
        "fuse_add_rms_norm": Expected(0, 2 * (layers - attending) - begins + 1),
        "unflatten_heads": Expected(3, -3 * attending),
        "join_linears": Expected(1, -attending),
        "split_linears": Expected(),
        "quantize_weights": Expected(7, 2 - 3 * attending),
    }


def qwen3_next(config: dict[str, Any]) -> dict[str, Expected]:
    """Qwen3.5 with mixtures in all or some layers; the checkpoint holds q, k, v and the gate of each head together."""
    attending = attending_layers({"full_attention_interval": 4, **config})
    parts = {"split_interleaved_linears": Expected(6, -4 * attending), "join_linears": Expected(2, -2 * attending)}
    expected = {**qwen3_5({**config, "layer_types": ["attention"] * attending}), **parts}
    return with_mixtures(expected, dense_layers(config)) if config.get("num_experts", 512) else expected


def kimi_linear(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend over latent rows without rotation, or that convolve and keep a state by a delta rule with a
    decay for each element of a key. Behind the first layers, a mixture of experts beside one that all tokens take."""
    layers, own = int(config.get("num_hidden_layers", 0)), config.get("linear_attn_config") or {}
    if config.get("layer_types"):
        attending = attending_layers(config)
    else:
        attending = len(own.get("full_attn_layers", range(4, layers, 4)))
    dense = config.get("first_k_dense_replace", 1)
    kinds = config.get("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (layers - dense)
    mixed, ranked = kinds.count("sparse"), config.get("q_lora_rank") is not None
    nothing = dict.fromkeys(("recognise_rotary", "rewrite_gqa", "fuse_qkv"), Expected())
    attentions = dict.fromkeys(("recognise_attention", "fuse_latent_attention"), Expected(0, attending))
    return {
        **llama(config),
        **nothing,
        **attentions,
        "recognise_rms_norm": Expected(3, 1 + ranked * attending),
        "recognise_router": Expected(0, mixed),
        "unflatten_heads": Expected(1, -attending),
        "join_linears": Expected(1, -attending),
        "insert_kv_cache": Expected(2, -attending),
        "quantize_weights": Expected(9, 2 + mixed - (2 - ranked) * attending),
    }


def minimax(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, or that attend without a softmax by a state that decays (lightning attention), with mixtures
    of experts; norms stand in the residual stream, and numbers scale what is added there."""
    layers = int(config.get("num_hidden_layers", 0))
    attending = attending_layers(config) if config.get("layer_types") else (layers + 1) // 2
    expected = hybrid(mixture(llama(config)), attending, states=1, linears=2)
    return {
        **expected,
        "recognise_rms_norm": Expected(3, 1 - attending),
        "split_linears": Expected(),
        "split_interleaved_linears": Expected(3, -3 * attending),
        "join_linears": Expected(1, -attending),
    }


def recurrent_gemma(config: dict[str, Any]) -> dict[str, Expected]:
    """Gemma with a window, whose layers attend, or convolve and keep a state by gates that each head makes of its own
    channels: a real-gated linear recurrent unit."""
    kinds = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    layers = int(config.get("num_hidden_layers", 0))
    attending = [kinds[i % len(kinds)] for i in range(layers)].count("attention")
    return {**hybrid(llama(config), attending, states=2, linears=4), "split_linears": Expected()}


def falcon_h1(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend and scan side by side; numbers scale what goes into and out of nearly every part."""
    scaled = config.get("mlp_multipliers") not in (None, [1.0, 1.0])
    keys_scaled = config.get("key_multiplier", 1.0) != 1.0
    gates = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected(0 if scaled else 1))
    return {
        **llama(config),
        **gates,
        "recognise_rms_norm": Expected(3 if config.get("mamba_rms_norm", False) else 2, 1),
        "move_query_scale": Expected(1 if keys_scaled else 0),
        "split_linears": Expected(3),
        "insert_kv_cache": Expected(3),
        "quantize_weights": Expected(9 if scaled else 8, 2),
    }


def zamba2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that scan as those of Mamba-2 do. Before the scan some call a block that layers share, which attends and
    has an MLP, on the residual stream beside the embeddings, with adapters of the layer's own."""
    calls, first = _calls_of_blocks(config)
    adapted = bool(config.get("use_shared_attention_adapter"))
    linears = (9 if adapted else 1) + 6  # q, k and v; the output, gate and up, their adapter, down, and the layer's own
    return {
        **_with_shared_blocks(config, calls, first),
        "recognise_rms_norm": Expected(2, 2 * calls + 1),
        "recognise_rotary": Expected(0, 2 * calls if config.get("use_mem_rope") else 0),
        "fuse_qkv": Expected(0, 0 if adapted else calls),
        "join_qkv": Expected(0, calls if adapted else 0),
        "fuse_gate_up": Expected(),
        "split_linears": Expected(3),
        "quantize_weights": Expected(4, 2 + linears * calls),
    }


def _with_shared_blocks(config: dict[str, Any], calls: int, first: bool) -> dict[str, Expected]:
    """Returns what the Zambas have in common. calls: how often a block is called; first: whether layer 0 does it."""
    heads = config.get("num_attention_heads")
    grouped = (config.get("num_key_value_heads") or heads) != heads
    return {
        "recognise_attention": Expected(0, calls),
        "rewrite_gqa": Expected(0, calls if grouped else 0),
        "fuse_swiglu": Expected(0, calls),
        "fuse_add_rms_norm": Expected(1, int(first)),
        "insert_kv_cache": Expected(2, calls),
    }


def _calls_of_blocks(config: dict[str, Any]) -> tuple[int, bool]:
    """Returns how many layers call a shared block, and whether the first one does."""
    kinds = config.get("layers_block_type") or config.get("layer_types") or ()
    return sum(kind == "hybrid" for kind in kinds), list(kinds[:1]) == ["hybrid"]


RECURRENT: dict[str, Callable[[dict[str, Any]], dict[str, Expected]]] = {
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_mamba": falcon_mamba,
    "granitemoehybrid": granitemoehybrid,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "lfm2_moe": lfm2_moe,
    "mamba": mamba,
    "mamba2": mamba2,
    "minimax": minimax,
    "nemotron_h": nemotron_h,
    "olmo_hybrid": olmo_hybrid,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": qwen3_5,
    "qwen3_next": qwen3_next,
    "recurrent_gemma": recurrent_gemma,
    "zamba2": zamba2,
}
"""model_type -> expectations, of config.json or the config of its text part. The docstring describes the family."""
