"""Says for each model family how often every rewrite must fire, per layer and once per model.

A family without an entry has the expectations of any decoder. A pass that is not named has no expectation. For
quantize_weights, a family's table counts every matrix that can be quantized; a build quantizes all of them or some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorwright.errors import CheckpointError


@dataclass(frozen=True)
class Expected:
    """A pass fires `per_layer` times in every layer and `constant` times besides."""

    per_layer: int = 0
    constant: int = 0

    def count(self, layers: int) -> int:
        return self.per_layer * layers + self.constant


class Quantized(NamedTuple):
    """The matrices of a model that a build quantizes."""

    layers: bool = False
    embedding: bool = False
    lm_head: bool = False


NOTHING = Quantized()
MATRICES = Expected(4, 2)
"""The matrices of a fused decoder that quantize_weights can rewrite: per layer qkv, o, gate and up (or up alone), and
down; once per model the embedding and lm_head, tied or not."""


def _llama(config: dict[str, Any]) -> dict[str, Expected]:
    """Pre-norm decoder: two RMS norms and one attention a layer, gated MLP, one final norm."""
    grouped = config.get("num_key_value_heads", config.get("num_attention_heads")) != config.get("num_attention_heads")
    return {
        "recognise_rms_norm": Expected(2, 1),
        "recognise_rotary": Expected(2),
        "recognise_attention": Expected(1),
        "rewrite_gqa": Expected(1 if grouped else 0),
        "fuse_qkv": Expected(1),
        "fuse_gate_up": Expected(1),
        "fuse_swiglu": Expected(1),
        "fuse_add_rms_norm": Expected(2),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def _qwen3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with a norm on every head of q and k."""
    return {**_llama(config), "recognise_rms_norm": Expected(4, 1)}


def _olmo2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms of whole q and k rows, and of what attention and MLP give; the residual stream itself is not normalised."""
    return {**_llama(config), "recognise_rms_norm": Expected(4, 1), "fuse_add_rms_norm": Expected(0, 1)}


def _gemma(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with an embedding scaled by the root of its width, norm weights that are differences from one, and gelu."""
    return _llama(config)


def _gemma2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms before and after attention and MLP, all but the first with a sum."""
    return {
        **_gemma(config),
        "recognise_rms_norm": Expected(4, 1),
        "recognise_masks": Expected(0, 2),
    }


def _gemma3(config: dict[str, Any]) -> dict[str, Expected]:
    """Gemma 2 with a norm on every head of q and k."""
    return {**_gemma2(config), "recognise_rms_norm": Expected(6, 1)}


def _phi3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose checkpoint holds q, k and v, and gate and up, as one matrix each already."""
    return {**_llama(config), "fuse_qkv": Expected(), "fuse_gate_up": Expected()}


def _layer_norms(expected: dict[str, Expected], serial: bool) -> dict[str, Expected]:
    """Returns `expected` for a family whose norms are layer norms, which a trace holds as such. A sum stands before
    every norm but the first.

    serial: whether the MLP follows attention. If both read the same norm or the same stream, a layer has one sum.
    """
    sums = {"fuse_add_layer_norm": Expected(2 if serial else 1), "fuse_add_rms_norm": Expected()}
    return {**expected, **sums, "recognise_rms_norm": Expected()}


def _plain_mlp(expected: dict[str, Expected]) -> dict[str, Expected]:
    """Returns `expected` for a family whose MLP has no gate."""
    return {**expected, "fuse_gate_up": Expected(), "fuse_swiglu": Expected()}


def _starcoder2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, and a plain MLP."""
    return {**_layer_norms(_plain_mlp(_llama(config)), serial=True), "recognise_masks": Expected(0, 1)}


def _stablelm(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, of every head of q and k too if asked for; attention and MLP one after the other or side by side."""
    head_norms = Expected(2 if config.get("qk_layernorm", False) else 0)
    serial = not config.get("use_parallel_residual", False)
    return {**_layer_norms(_llama(config), serial), "fuse_head_norms": head_norms}


def _gpt_neox(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, a plain MLP, and q, k and v of each head side by side in one matrix."""
    serial = not config.get("use_parallel_residual", True)
    expected = _layer_norms(_plain_mlp(_llama(config)), serial)
    return {**expected, "split_interleaved_linears": Expected(3), "rewrite_gqa": Expected()}


def _gpt2(config: dict[str, Any]) -> dict[str, Expected]:
    """Learned positions, so nothing turns; four matrices stored transposed, on rows without the batch."""
    return {
        "canonicalise_linears": Expected(8),
        "recognise_gelu": Expected(1 if config.get("activation_function", "gelu_new") == "gelu_new" else 0),
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_attention": Expected(1),
        "fuse_qkv": Expected(),
        "fuse_add_layer_norm": Expected(2, 1),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def _falcon(config: dict[str, Any]) -> dict[str, Expected]:
    """q, k and v side by side in one matrix, split and joined again; products with matrices transposed as they run."""
    grouped = bool(config.get("new_decoder_architecture"))
    repeated = grouped and config.get("num_kv_heads") != config.get("num_attention_heads")
    return {
        "canonicalise_linears": Expected(12 if config.get("bias") else 8),
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(2),
        "recognise_attention": Expected(1),
        "rewrite_gqa": Expected(1 if repeated else 0),
        "split_interleaved_linears": Expected(3),
        "fuse_qkv": Expected(1),
        "fuse_add_layer_norm": Expected(1 if grouped or config.get("parallel_attn", True) else 2),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def _interleaved(expected: dict[str, Expected]) -> dict[str, Expected]:
    """Returns `expected` for a family whose rotary embeddings turn neighbours. They are recognised, and moved into the
    weights of q and k."""
    moved = {"recognise_interleaved_rotary": Expected(2), "permute_rotary_rows": Expected(2)}
    return {**expected, **moved, "recognise_rotary": Expected()}


def _ernie4_5(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with rotary embeddings of neighbours instead of halves."""
    return _interleaved(_llama(config))


def _glm(config: dict[str, Any]) -> dict[str, Expected]:
    """Rotary embeddings of neighbours, of a part of each head; gate and up are one matrix already."""
    return {**_interleaved(_llama(config)), "fuse_gate_up": Expected()}


def _glm4(config: dict[str, Any]) -> dict[str, Expected]:
    """GLM with norms before and after attention and MLP."""
    return {**_glm(config), "recognise_rms_norm": Expected(4, 1)}


def _cohere(config: dict[str, Any]) -> dict[str, Expected]:
    """Neighbours turn; one layer norm, written out and without bias, feeds attention and MLP side by side."""
    count = Expected(3 if config.get("use_qk_norm", False) else 1, 1)
    norms = {"recognise_rms_norm": count, "recognise_layer_norm": count}
    sums = {"fuse_add_rms_norm": Expected(), "fuse_add_layer_norm": Expected(1)}
    return {**_interleaved(_llama(config)), **norms, **sums}


def _nemotron(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms of weights that are differences from one; a squared relu without a gate."""
    norms = {"recognise_rms_norm": Expected(), "recognise_layer_norm": Expected(2, 1)}
    sums = {"fuse_add_rms_norm": Expected(), "fuse_add_layer_norm": Expected(2)}
    return {**_llama(config), **norms, **sums, "fuse_gate_up": Expected(), "fuse_swiglu": Expected()}


def _smollm3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama in which q and k of some layers do not turn."""
    every = config.get("no_rope_layer_interval", 4)
    default = [int((i + 1) % every != 0) for i in range(config.get("num_hidden_layers", 0))]
    turning = config.get("no_rope_layers") or default
    return {**_llama(config), "recognise_rotary": Expected(0, 2 * sum(turning))}


def _opt(config: dict[str, Any]) -> dict[str, Expected]:
    """Learned positions behind an offset, and q scaled before its product with k; norms before or after each part."""
    before = config.get("do_layer_norm_before", True)
    expected = {
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_attention": Expected(1),
        "move_query_scale": Expected(1),
        "shift_position_tables": Expected(0, 1),
        "fuse_qkv": Expected(1),
        "fuse_add_layer_norm": Expected(2, 1 if before else 0),
        "insert_kv_cache": Expected(1),
    }
    projected = config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size")
    return expected if projected else {**expected, "quantize_weights": MATRICES}


def _biogpt(config: dict[str, Any]) -> dict[str, Expected]:
    """OPT with scaled embeddings, and scores that are scaled as usual."""
    return {**_opt({}), "move_query_scale": Expected(), "quantize_weights": MATRICES}


def _gpt_bigcode(config: dict[str, Any]) -> dict[str, Expected]:
    """GPT-2 with one head of k and v for all of q, or with q, k and v of each head side by side."""
    shared = config.get("multi_query", True)
    return {
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_attention": Expected(1),
        "rewrite_gqa": Expected(1 if shared else 0),
        "split_interleaved_linears": Expected(0 if shared else 3),
        "fuse_qkv": Expected(0 if shared else 1),
        "fuse_add_layer_norm": Expected(2, 1),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def _gptj(config: dict[str, Any]) -> dict[str, Expected]:
    """Neighbours turn, by angles of a table that is read by position; one layer norm feeds attention and MLP."""
    expected = _interleaved(_layer_norms(_plain_mlp(_llama(config)), serial=False))
    gelu = Expected(1 if config.get("activation_function", "gelu_new") == "gelu_new" else 0)
    return {**expected, "recognise_gelu": gelu, "rewrite_gqa": Expected()}


def _codegen(config: dict[str, Any]) -> dict[str, Expected]:
    """GPT-J with q, v and k in four parts of one matrix, and scores that are scaled behind the mask."""
    return {**_gptj(config), "split_interleaved_linears": Expected(3)}


def _hunyuan(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with a norm on every head of q and k behind the rotation."""
    return {**_qwen3(config), "move_norms_before_rotary": Expected(1)}


def _nanochat(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms without weights, of the embeddings and of every head behind the rotation too; a rotation backwards."""
    expected = _plain_mlp(_llama(config))
    return {**expected, "recognise_rms_norm": Expected(4, 2), "move_norms_before_rotary": Expected(1)}


def _latent(config: dict[str, Any], *, neighbours: bool) -> dict[str, Expected]:
    """Attention over latent rows, which q and k share with a part that rotates: norms of the latents, and of q's own
    where the config has a rank for q. The matrices of a layer are those of q, of the latents, two up-projections, o,
    gate and up, and down.

    neighbours: whether neighbours rotate instead of halves.
    """
    ranked = config.get("q_lora_rank", 1) is not None
    return {
        **_llama(config),
        "recognise_rms_norm": Expected(4 if ranked else 3, 1),
        "recognise_rotary": Expected(0 if neighbours else 2),
        "recognise_interleaved_rotary": Expected(2 if neighbours else 0),
        "rewrite_gqa": Expected(),
        "fuse_latent_attention": Expected(1),
        "fuse_qkv": Expected(),
        "quantize_weights": Expected(8 if ranked else 7, 2),
    }


def _minicpm3(config: dict[str, Any]) -> dict[str, Expected]:
    """Attention over latent rows, whose rotation turns halves; scaled embeddings, residuals and logits."""
    return _latent(config, neighbours=False)


def _deepseek(config: dict[str, Any]) -> dict[str, Expected]:
    """Attention over latent rows, whose rotation turns neighbours unless the config says otherwise. Behind the first
    layers, a mixture of experts beside one that all tokens take."""
    expected = _latent(config, neighbours=config.get("rope_interleave", True))
    layers = int(config.get("num_hidden_layers", 0))
    if kinds := config.get("mlp_layer_types"):
        dense = list(kinds).count("dense")
    else:
        dense = min(config.get("first_k_dense_replace", 1 if config["model_type"] == "glm4_moe_lite" else 0), layers)
    if dense == layers:
        return expected
    every, routes = expected["quantize_weights"], {"recognise_router": Expected(1, -dense)}
    if config.get("n_shared_experts", 1):
        return {**expected, **routes, "quantize_weights": Expected(every.per_layer + 1, every.constant - dense)}
    gates = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected(0, dense))
    return {**expected, **routes, **gates, "quantize_weights": Expected(every.per_layer - 1, every.constant + dense)}


def _mixture(expected: dict[str, Expected], dense: int = 0) -> dict[str, Expected]:
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


def _mixtral(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts."""
    return _mixture(_llama(config))


def _olmoe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with norms of whole q and k rows, whose MLPs are mixtures of experts."""
    return _mixture({**_llama(config), "recognise_rms_norm": Expected(4, 1)})


def _qwen3_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Qwen3 whose MLPs are mixtures of experts, in all or some of the layers."""
    every, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    layers = range(config.get("num_hidden_layers", 0))
    return _mixture(_qwen3(config), sum(layer in plain or (layer + 1) % every != 0 for layer in layers))


def _granitemoeshared(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts, each beside one expert that all tokens take."""
    if not config.get("shared_intermediate_size"):
        return _mixtral(config)
    return {**_mixtral(config), "fuse_swiglu": Expected(1), "quantize_weights": Expected(5, 2)}


def _flex_olmo(config: dict[str, Any]) -> dict[str, Expected]:
    """OLMo 2 whose MLPs are mixtures of experts."""
    return _mixture(_olmo2(config))


def _attending(config: dict[str, Any]) -> int:
    """Returns how many layers of a hybrid attend; the others are recurrent."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None and "full_attention_interval" in config:
        return int(config["num_hidden_layers"]) // int(config["full_attention_interval"])
    if kinds is None:
        return len(config.get("full_attn_idxs") or config.get("attn_layer_indices") or ())
    return sum(kind in ("full_attention", "attention") for kind in kinds)


def _hybrid(expected: dict[str, Expected], attending: int, states: int, linears: int) -> dict[str, Expected]:
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


def _lfm2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, with norms of q and k, or that convolve the last few tokens between two gates."""
    attending = _attending(config)
    expected = _hybrid(_llama(config), attending, states=1, linears=3)
    return {**expected, "recognise_rms_norm": Expected(2, 2 * attending + 1)}


def _mamba2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers of one part each, without attention: a convolution, a scan and a gated norm."""
    nothing = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected())
    expected = _hybrid({**_llama(config), **nothing}, 0, states=2, linears=3)
    return {
        **expected,
        "recognise_rms_norm": Expected(2, 1),
        "fuse_add_rms_norm": Expected(1),
        "quantize_weights": Expected(4, 2),
    }


def _bamba(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend, or that scan as those of Mamba-2 do; a gated MLP in both."""
    attending = _attending(config)
    expected = _hybrid(_llama(config), attending, states=2, linears=3)
    return {**expected, "recognise_rms_norm": Expected(3, 1 - attending)}


def _granitemoehybrid(config: dict[str, Any]) -> dict[str, Expected]:
    """Bamba whose MLPs have one matrix for gate and up, alone or beside a mixture of experts."""
    turning = {} if config.get("position_embedding_type") == "rope" else {"recognise_rotary": Expected()}
    expected = {**_bamba(config), **turning, "fuse_gate_up": Expected()}
    if not config.get("num_local_experts", 8):
        return expected
    every = expected["quantize_weights"]
    mixed = Expected(every.per_layer + 1, every.constant)
    return {**expected, "recognise_router": Expected(1), "quantize_weights": mixed}


def _qwen3_5(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend with a gate behind attention, or that convolve and keep a state by the delta rule."""
    attending = _attending(config)
    expected = _hybrid(_qwen3(config), attending, states=2, linears=4)
    return {
        **expected,
        "recognise_rms_norm": Expected(3, attending + 1),
        "unflatten_heads": Expected(3, -3 * attending),
        "split_interleaved_linears": Expected(0, 2 * attending),
        "split_linears": Expected(),
        "quantize_weights": Expected(7, 2 - 2 * attending),
    }


def _qwen3_next(config: dict[str, Any]) -> dict[str, Expected]:
    """Qwen3.5 whose checkpoint holds q, k, v and the gate of each head side by side."""
    attending = _attending({"full_attention_interval": 4, **config})
    parts = {"split_interleaved_linears": Expected(6, -4 * attending), "join_linears": Expected(2, -2 * attending)}
    return {**_qwen3_5({**config, "layer_types": ["attention"] * attending}), **parts}


def _falcon_h1(config: dict[str, Any]) -> dict[str, Expected]:
    """Layers that attend and scan side by side; numbers scale what goes into and out of nearly every part."""
    scaled = config.get("mlp_multipliers") not in (None, [1.0, 1.0])
    keys_scaled = config.get("key_multiplier", 1.0) != 1.0
    gates = dict.fromkeys(("fuse_gate_up", "fuse_swiglu"), Expected(0 if scaled else 1))
    return {
        **_llama(config),
        **gates,
        "recognise_rms_norm": Expected(3 if config.get("mamba_rms_norm", False) else 2, 1),
        "move_query_scale": Expected(1 if keys_scaled else 0),
        "split_linears": Expected(3),
        "insert_kv_cache": Expected(3),
        "quantize_weights": Expected(9 if scaled else 8, 2),
    }


def _with_shared_expert(expected: dict[str, Expected], dense: int = 0) -> dict[str, Expected]:
    """Returns `expected` of a mixture for a family whose mixtures stand beside an expert that all tokens take. `dense`
    layers have no mixture."""
    return {
        **expected,
        "fuse_gate_up": Expected(1),
        "fuse_swiglu": Expected(1),
        "quantize_weights": Expected(5, 2 - dense),
    }


def _qwen2_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose MLPs are mixtures of experts, each beside one expert that all tokens take, by a gate of its own."""
    every, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    layers = range(config.get("num_hidden_layers", 0))
    dense = sum(layer in plain or (layer + 1) % every != 0 for layer in layers)
    expected = _with_shared_expert(_mixture(_llama(config), dense))
    return {**expected, "recognise_gated_expert": Expected(1, -dense), "quantize_weights": Expected(4, 2)}


def _ernie4_5_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Ernie 4.5 whose MLPs are mixtures of experts chosen by corrected scores, and an expert that all tokens take."""
    count = config.get("num_hidden_layers", 0)
    first, last = config.get("moe_layer_start_index", 1), config.get("moe_layer_end_index", -1)
    last, every = (count - 1 if last == -1 else last), config.get("moe_layer_interval", 1)
    dense = count - sum((layer + 1) % every == 0 and first <= layer <= last for layer in range(count))
    expected = _mixture(_ernie4_5(config), dense)
    return _with_shared_expert(expected, dense) if config.get("moe_num_shared_experts", 0) else expected


def _glm4_moe(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama, with norms of heads if asked for, and mixtures: experts in groups, of which some count for a token, chosen
    by corrected scores, beside an expert that all tokens take."""
    norms = Expected(4 if config.get("use_qk_norm", False) else 2, 1)
    dense = min(config.get("first_k_dense_replace", 1), config.get("num_hidden_layers", 0))
    expected = _mixture({**_llama(config), "recognise_rms_norm": norms}, dense)
    return _with_shared_expert(expected, dense)


def _gpt_oss(config: dict[str, Any]) -> dict[str, Expected]:
    """Sinks, windows in every other layer, and mixtures of experts with biases and a clamped gate."""
    return _mixtral(config)


def _minimax_m2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms of whole q and k rows, and mixtures of experts that are chosen by corrected scores."""
    return _olmoe(config)


def _phimoe(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, and mixtures of two experts that are chosen one after the other (SparseMixer)."""
    return _mixture(_layer_norms(_llama(config), serial=True))


def _any_decoder(config: dict[str, Any]) -> dict[str, Expected]:
    """Returns the expectations of every decoder: each layer attends once and writes its cache once.

    `expected_counts` adds that every mixture of experts has a route.
    """
    return {"recognise_attention": Expected(1), "insert_kv_cache": Expected(1)}


_FAMILIES = {
    "bamba": _bamba,
    "biogpt": _biogpt,
    "codegen": _codegen,
    "cohere": _cohere,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "ernie4_5": _ernie4_5,
    "ernie4_5_moe": _ernie4_5_moe,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe_lite": _deepseek,
    "glm4_moe": _glm4_moe,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "flex_olmo": _flex_olmo,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "gptj": _gptj,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "granitemoe": _mixtral,
    "granitemoehybrid": _granitemoehybrid,
    "granitemoeshared": _granitemoeshared,
    "helium": _ernie4_5,
    "hunyuan_v1_dense": _hunyuan,
    "lfm2": _lfm2,
    "llama": _llama,
    "mamba2": _mamba2,
    "minicpm3": _minicpm3,
    "mistral": _llama,
    "minimax_m2": _minimax_m2,
    "mixtral": _mixtral,
    "nanochat": _nanochat,
    "nemotron": _nemotron,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _llama,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_5_text": _qwen3_5,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}


def registered() -> dict[str, Callable[[dict[str, Any]], dict[str, Expected]]]:
    """Returns by model_type the function that gives the expectations. The function's docstring describes the family."""
    return dict(_FAMILIES)


def expectations(config: dict[str, Any], quantized: Quantized = NOTHING) -> dict[str, Expected]:
    """Returns how often each pass must fire, by the pass's name.

    config: the content of config.json. quantized: the matrices that the build quantizes. Raises CheckpointError if the
    config does not name its family.
    """
    family = config.get("model_type")
    if not isinstance(family, str):
        raise CheckpointError(f"config.json: model_type must name the model's family, not {family!r}")
    expected = _FAMILIES.get(family, _any_decoder)(config)
    if "quantize_weights" in expected:
        every = expected["quantize_weights"]
        in_some_layers = every.constant - MATRICES.constant
        layers = Expected(every.per_layer, in_some_layers) if quantized.layers else Expected()
        tables = quantized.embedding + quantized.lm_head
        expected["quantize_weights"] = Expected(layers.per_layer, layers.constant + tables)
    return expected


def expected_counts(
    config: dict[str, Any], quantized: Quantized = NOTHING, layers: int | None = None, mixtures: int = 0
) -> dict[str, int]:
    """Returns the `expectations` as whole numbers.

    config: the config of the model's text part. layers: the layers that the graph has, where it leaves some out; None
    means those of the config. mixtures: the mixtures of experts in the trace, for families that are not registered:
    every family has its own words for the layers that have one. Raises CheckpointError if the config does not give the
    number of layers.
    """
    if layers is None:
        name = "n_layer" if "n_layer" in config and "num_hidden_layers" not in config else "num_hidden_layers"
        layers = config.get(name)
        if not isinstance(layers, int) or layers < 1:
            raise CheckpointError(f"config.json: {name} must be a positive number, not {layers!r}")
    counts = {name: expected.count(layers) for name, expected in expectations(config, quantized).items()}
    return counts if config["model_type"] in _FAMILIES else {**counts, "recognise_router": mixtures}
