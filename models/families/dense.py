"""The expectations of decoders that attend in every layer and have one MLP a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.models.families.expected import MATRICES, Expected


def llama(config: dict[str, Any]) -> dict[str, Expected]:
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


def qwen3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with a norm on every head of q and k."""
    return {**llama(config), "recognise_rms_norm": Expected(4, 1)}


def olmo2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms of whole q and k rows, and of what attention and MLP give; the residual stream itself is not normalised."""
    return {**llama(config), "recognise_rms_norm": Expected(4, 1), "fuse_add_rms_norm": Expected(0, 1)}


def gemma(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with an embedding scaled by the root of its width, norm weights that are differences from one, and gelu."""
    return llama(config)


def gemma2(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms before and after attention and MLP, all but the first with a sum."""
    return {
        **gemma(config),
        "recognise_rms_norm": Expected(4, 1),
        "recognise_masks": Expected(0, 2),
    }


def gemma3(config: dict[str, Any]) -> dict[str, Expected]:
    """Gemma 2 with a norm on every head of q and k."""
    return {**gemma2(config), "recognise_rms_norm": Expected(6, 1)}


def gemma4(config: dict[str, Any]) -> dict[str, Expected]:
    """Gemma 3 with a norm of v without a weight, heads of another width in layers without a window, and a number that
    scales each layer. Layers may have inputs of their own, the last ones no keys and values of their own, and all of
    them experts beside the MLP: their router has a norm, and each expert a number that its weight is multiplied by."""
    layers, shared = config.get("num_hidden_layers", 0), config.get("num_kv_shared_layers", 0)
    own_inputs = bool(config.get("hidden_size_per_layer_input", 256))
    heads, own = config.get("num_attention_heads", 8), config.get("per_layer_config") or {}
    groups = [own.get(str(i), {}).get("num_key_value_heads", config.get("num_key_value_heads")) for i in range(layers)]
    experts = bool(config.get("enable_moe_block"))
    # With experts there are five more: one that the router's and the experts' norms share until each gets its weight,
    # these two, and those of what MLP and experts give.
    norms = 7 + own_inputs + 5 * experts
    expected = {
        **gemma(config),
        "recognise_rms_norm": Expected(norms, (2 if own_inputs else 1) - 2 * shared),
        "recognise_router": Expected(1 if experts else 0),
        "recognise_rotary": Expected(2, -shared),
        "recognise_masks": Expected(0, 2),
        "rewrite_gqa": Expected(0, sum(count != heads for count in groups)),
        "split_layer_inputs": Expected(1 if own_inputs else 0),
        "repeat_scalar_weights": Expected(1),
        "fuse_qkv": Expected(1, -shared),
        "fuse_add_rms_norm": Expected(2 if experts else 1),
        "insert_kv_cache": Expected(1, -shared),
        "quantize_weights": Expected(5, 2) if experts else MATRICES,
    }
    return {k: v for k, v in expected.items() if k != "quantize_weights"} if own_inputs else expected


def phi3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama whose checkpoint holds q, k and v, and gate and up, as one matrix each already."""
    return {**llama(config), "fuse_qkv": Expected(), "fuse_gate_up": Expected()}


def layer_norms(expected: dict[str, Expected], serial: bool) -> dict[str, Expected]:
    """Returns `expected` for a family whose norms are layer norms, which a trace holds as such. A sum stands before
    every norm but the first.

    serial: whether the MLP follows attention. If both read the same norm or the same stream, a layer has one sum.
    """
    sums = {"fuse_add_layer_norm": Expected(2 if serial else 1), "fuse_add_rms_norm": Expected()}
    return {**expected, **sums, "recognise_rms_norm": Expected()}


def plain_mlp(expected: dict[str, Expected]) -> dict[str, Expected]:
    """Returns `expected` for a family whose MLP has no gate."""
    return {**expected, "fuse_gate_up": Expected(), "fuse_swiglu": Expected()}


def starcoder2(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, and a plain MLP."""
    return {**layer_norms(plain_mlp(llama(config)), serial=True), "recognise_masks": Expected(0, 1)}


def stablelm(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, of every head of q and k too if asked for; attention and MLP one after the other or side by side."""
    head_norms = Expected(2 if config.get("qk_layernorm", False) else 0)
    serial = not config.get("use_parallel_residual", False)
    return {**layer_norms(llama(config), serial), "fuse_head_norms": head_norms}


def gpt_neox(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms, a plain MLP, and q, k and v of each head side by side in one matrix."""
    serial = not config.get("use_parallel_residual", True)
    expected = layer_norms(plain_mlp(llama(config)), serial)
    return {**expected, "split_interleaved_linears": Expected(3), "rewrite_gqa": Expected()}


def gpt2(config: dict[str, Any]) -> dict[str, Expected]:
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


def falcon(config: dict[str, Any]) -> dict[str, Expected]:
    """q, k and v side by side in one matrix, split and joined again; products with matrices transposed as they run."""
    grouped = bool(config.get("new_decoder_architecture"))
    repeated = grouped and config.get("num_kv_heads") != config.get("num_attention_heads")
    return {
        "canonicalise_linears": Expected(12 if config.get("bias") else 8),
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(0 if config.get("alibi") else 2),
        "recognise_alibi": Expected(0, 1 if config.get("alibi") else 0),
        "recognise_attention": Expected(1),
        "rewrite_gqa": Expected(1 if repeated else 0),
        "split_interleaved_linears": Expected(3),
        "fuse_qkv": Expected(1),
        "fuse_add_layer_norm": Expected(1 if grouped or config.get("parallel_attn", True) else 2),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def bloom(config: dict[str, Any]) -> dict[str, Expected]:
    """Biases of scores instead of positions; q, k and v of each head side by side; norms behind the embedding too."""
    return {
        "canonicalise_products": Expected(4),
        "recognise_gelu": Expected(1),
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_alibi": Expected(0, 1),
        "recognise_attention": Expected(1),
        "split_interleaved_linears": Expected(3),
        "fuse_qkv": Expected(1),
        "fuse_add_layer_norm": Expected(2),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def mpt(config: dict[str, Any]) -> dict[str, Expected]:
    """Biases of scores instead of positions; layer norms without biases, and q, k and v in one matrix."""
    return {
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_alibi": Expected(0, 1),
        "recognise_attention": Expected(1),
        "fuse_qkv": Expected(),
        "fuse_add_layer_norm": Expected(2),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def interleaved(expected: dict[str, Expected]) -> dict[str, Expected]:
    """Returns `expected` for a family whose rotary embeddings turn neighbours. They are recognised, and moved into the
    weights of q and k."""
    moved = {"recognise_interleaved_rotary": Expected(2), "permute_rotary_rows": Expected(2)}
    return {**expected, **moved, "recognise_rotary": Expected()}


def ernie4_5(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with rotary embeddings of neighbours instead of halves."""
    return interleaved(llama(config))


def glm(config: dict[str, Any]) -> dict[str, Expected]:
    """Rotary embeddings of neighbours, of a part of each head; gate and up are one matrix already."""
    return {**interleaved(llama(config)), "fuse_gate_up": Expected()}


def glm4(config: dict[str, Any]) -> dict[str, Expected]:
    """GLM with norms before and after attention and MLP."""
    return {**glm(config), "recognise_rms_norm": Expected(4, 1)}


def cohere(config: dict[str, Any]) -> dict[str, Expected]:
    """Neighbours turn; one layer norm, written out and without bias, feeds attention and MLP side by side."""
    count = Expected(3 if config.get("use_qk_norm", False) else 1, 1)
    norms = {"recognise_rms_norm": count, "recognise_layer_norm": count}
    sums = {"fuse_add_rms_norm": Expected(), "fuse_add_layer_norm": Expected(1)}
    return {**interleaved(llama(config)), **norms, **sums}


def nemotron(config: dict[str, Any]) -> dict[str, Expected]:
    """Layer norms of weights that are differences from one; a squared relu without a gate."""
    norms = {"recognise_rms_norm": Expected(), "recognise_layer_norm": Expected(2, 1)}
    sums = {"fuse_add_rms_norm": Expected(), "fuse_add_layer_norm": Expected(2)}
    return {**llama(config), **norms, **sums, "fuse_gate_up": Expected(), "fuse_swiglu": Expected()}


def smollm3(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama in which q and k of some layers do not turn."""
    every = config.get("no_rope_layer_interval", 4)
    default = [int((i + 1) % every != 0) for i in range(config.get("num_hidden_layers", 0))]
    turning = config.get("no_rope_layers") or default
    return {**llama(config), "recognise_rotary": Expected(0, 2 * sum(turning))}


def opt(config: dict[str, Any]) -> dict[str, Expected]:
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


def biogpt(config: dict[str, Any]) -> dict[str, Expected]:
    """OPT with scaled embeddings, and scores that are scaled as usual."""
    return {**opt({}), "move_query_scale": Expected(), "quantize_weights": MATRICES}


def xglm(config: dict[str, Any]) -> dict[str, Expected]:
    """OPT with a table of sinusoids, which the model computes, in place of learned positions."""
    return {**opt({}), "quantize_weights": MATRICES}


def gpt_neo(config: dict[str, Any]) -> dict[str, Expected]:
    """Learned positions; scores that are not scaled; layers with a window and without, by masks of the model's own."""
    kinds = {kind for names, _ in config.get("attention_types") or [[["global", "local"], 12]] for kind in names}
    return {
        "recognise_gelu": Expected(1 if config.get("activation_function", "gelu_new") == "gelu_new" else 0),
        "recognise_rms_norm": Expected(),
        "recognise_rotary": Expected(),
        "recognise_masks": Expected(0, len(kinds)),
        "recognise_attention": Expected(1),
        "fuse_qkv": Expected(1),
        "fuse_add_layer_norm": Expected(2, 1),
        "insert_kv_cache": Expected(1),
        "quantize_weights": MATRICES,
    }


def gemma4_unified(config: dict[str, Any]) -> dict[str, Expected]:
    """Gemma 4 without inputs of single layers."""
    return gemma4({**config, "hidden_size_per_layer_input": 0})


def apertus(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with a norm on every head of q and k, and a plain MLP whose activation has numbers of its own (xIELU)."""
    return {**plain_mlp(qwen3(config)), "recognise_xielu": Expected(1)}


def gpt_bigcode(config: dict[str, Any]) -> dict[str, Expected]:
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


def gptj(config: dict[str, Any]) -> dict[str, Expected]:
    """Neighbours turn, by angles of a table that is read by position; one layer norm feeds attention and MLP."""
    expected = interleaved(layer_norms(plain_mlp(llama(config)), serial=False))
    gelu = Expected(1 if config.get("activation_function", "gelu_new") == "gelu_new" else 0)
    return {**expected, "recognise_gelu": gelu, "rewrite_gqa": Expected()}


def codegen(config: dict[str, Any]) -> dict[str, Expected]:
    """GPT-J with q, v and k in four parts of one matrix, and scores that are scaled behind the mask."""
    return {**gptj(config), "split_interleaved_linears": Expected(3)}


def hunyuan(config: dict[str, Any]) -> dict[str, Expected]:
    """Llama with a norm on every head of q and k behind the rotation."""
    return {**qwen3(config), "move_norms_before_rotary": Expected(1)}


def nanochat(config: dict[str, Any]) -> dict[str, Expected]:
    """Norms without weights, of the embeddings and of every head behind the rotation too; a rotation backwards."""
    expected = plain_mlp(llama(config))
    return {**expected, "recognise_rms_norm": Expected(4, 2), "move_norms_before_rotary": Expected(1)}


DENSE: dict[str, Callable[[dict[str, Any]], dict[str, Expected]]] = {
    "apertus": apertus,
    "biogpt": biogpt,
    "bloom": bloom,
    "codegen": codegen,
    "cohere": cohere,
    "ernie4_5": ernie4_5,
    "glm": glm,
    "glm4": glm4,
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4_unified,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt2": gpt2,
    "gptj": gptj,
    "granite": llama,
    "helium": ernie4_5,
    "hunyuan_v1_dense": hunyuan,
    "llama": llama,
    "mistral": llama,
    "mpt": mpt,
    "nanochat": nanochat,
    "nemotron": nemotron,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "opt": opt,
    "phi3": phi3,
    "qwen2": llama,
    "qwen3": qwen3,
    "smollm3": smollm3,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "xglm": xglm,
}
"""model_type -> expectations, of config.json or the config of its text part. The docstring describes the family."""
