"""Every family beside llama and qwen2: fp32 engines give transformers' tokens and logits, and the test can fail.

Each family has the mutations that break what is special about it: the same comparison on an engine with that one thing
wrong must turn red. Lengths go past every sliding window. The bound is that of test_parity_float32.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import chosen_mutations as chosen
import decoder_mutations as decoders
import expert_mutations as experts
import family_mutations as broken
import latent_mutations as latents
import norm_mutations as norms
import numpy as np
import pytest
import recurrence_mutations as recurrences
import torch

from support.harness import EngineSteps, load_reference, reference_choices, reference_logits, worst
from support.nested_models import NESTED, make_nested
from support.published import publish
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.trace.export import trace_for_engine
from tensorwright.ir import Graph
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline

FAMILIES: dict[str, tuple[Callable[[Graph], None], ...]] = {
    "mistral": (broken.drop_window, broken.widen_window),
    "qwen3": (broken.flatten_query_norm, broken.flatten_key_norm),
    "olmo2": (broken.flatten_query_norm, broken.flatten_key_norm, broken.norm_heads_apart),
    "granite": (broken.scale_embedding, broken.change_numbers),
    "phi3": (broken.drop_window, broken.shift_fused_rows, broken.swap_gate_and_up),
    "gemma": (
        broken.scale_embedding,
        broken.drop_weight_offset,
        broken.use_exact_gelu,
    ),
    "gemma2": (
        broken.drop_window,
        broken.swap_windows,
        broken.drop_attention_cap,
        broken.change_numbers,
        broken.scale_embedding,
        broken.drop_weight_offset,
        broken.use_exact_gelu,
        broken.swap_gate_and_up,
    ),
    "flint": (broken.drop_window, broken.drop_sinks, broken.turn_sinks),
    "gemma3": (broken.swap_rope_tables, broken.swap_windows, broken.flatten_query_norm, broken.drop_weight_offset),
    "olmo3": (broken.swap_rope_tables, broken.drop_rope_scale, broken.swap_windows),
    "llama_linear_rope": (broken.change_rope_factor,),
    "llama3_rope": (broken.change_rope_factor,),
    "llama_yarn": (broken.change_rope_factor, broken.drop_rope_scale),
    "llama_yarn_mscale": (broken.change_rope_factor, broken.drop_rope_scale),
    "llama_yarn_attention_factor": (broken.change_rope_factor, broken.drop_rope_scale),
    "starcoder2": (
        broken.drop_window,
        broken.widen_window,
        norms.flatten_layer_norm,
        norms.keep_the_mean,
        norms.enlarge_norm_epsilon,
        norms.drop_norm_biases,
        norms.drop_norm_residual,
        norms.drop_qkv_bias,
        norms.drop_output_bias,
        norms.drop_up_bias,
        norms.drop_down_bias,
        norms.use_exact_gelu,
        norms.shift_head_map,
        norms.untie_head,
    ),
    "stablelm": (
        norms.flatten_layer_norm,
        norms.drop_norm_biases,
        norms.drop_norm_residual,
        norms.spread_frequencies,
        norms.rotate_one_pair_less,
        norms.shift_head_map,
        norms.swap_gate_and_up,
    ),
    "stablelm_parallel": (norms.drop_qkv_bias, norms.drop_norm_residual, norms.spread_frequencies),
    "stablelm_head_norms": (
        norms.flatten_query_head_norms,
        norms.flatten_key_head_norms,
        norms.share_head_norms,
    ),
    "gpt_neox": (
        norms.take_rows_as_stored,
        norms.spread_frequencies,
        norms.rotate_one_pair_less,
        norms.share_parallel_norms,
        norms.keep_the_mean,
        norms.drop_norm_biases,
        norms.drop_qkv_bias,
        norms.drop_output_bias,
        norms.drop_up_bias,
        norms.drop_down_bias,
        norms.use_tanh_gelu,
    ),
    "gpt_neox_serial": (norms.take_rows_as_stored, norms.drop_norm_residual, norms.use_silu),
    "gpt2": (
        broken.shift_positions,
        broken.forget_positions,
        broken.drop_one_bias,
        broken.shift_fused_rows,
        broken.forget_transpose,
        norms.use_exact_gelu,
        broken.scale_scores,
        broken.untie_head,
    ),
    "gpt2_unscaled": (broken.scale_scores,),
    "gpt2_layer_scales": (broken.use_one_scale,),
    "falcon": (
        broken.scale_frequencies,
        broken.scale_scores,
        broken.shift_fused_rows,
        broken.approximate_gelu,
        broken.drop_parallel_branch,
        broken.untie_head,
    ),
    "falcon_groups": (broken.take_rows_as_stored, broken.shift_head_map, broken.swap_parallel_norms),
    "falcon_one_norm": (broken.shift_fused_rows, broken.drop_one_bias, broken.drop_parallel_branch),
    "falcon_serial": (broken.take_rows_as_stored, broken.drop_biases),
    "cohere": (chosen.keep_query_pairs, chosen.keep_key_pairs, chosen.keep_mean, broken.change_numbers),
    "ernie4_5": (chosen.keep_query_pairs, chosen.keep_key_pairs),
    "glm": (chosen.keep_query_pairs, chosen.keep_query_bias_pairs, chosen.keep_key_pairs, broken.swap_gate_and_up),
    "glm4": (chosen.keep_query_pairs, chosen.keep_key_pairs),
    "helium": (chosen.keep_query_pairs, chosen.keep_key_pairs),
    "nemotron": (chosen.drop_layer_norm_offset, chosen.drop_layer_norm_bias, chosen.forget_square),
    "smollm3": (chosen.turn_every_layer, chosen.turn_no_layer),
    "opt": (
        decoders.forget_offset,
        broken.forget_positions,
        broken.scale_scores,
        decoders.swap_key_and_value,
        norms.drop_qkv_bias,
        norms.drop_up_bias,
    ),
    "opt_post_norm": (decoders.forget_offset, broken.scale_scores, norms.drop_norm_residual),
    "biogpt": (decoders.forget_offset, broken.scale_embedding, norms.use_tanh_gelu),
    "gpt_bigcode": (broken.shift_positions, broken.shift_fused_rows, norms.drop_qkv_bias, norms.use_exact_gelu),
    "gpt_bigcode_heads": (norms.take_rows_as_stored, decoders.swap_key_and_value),
    "gptj": (
        chosen.keep_query_pairs,
        chosen.keep_key_pairs,
        broken.scale_frequencies,
        norms.rotate_one_pair_less,
        broken.drop_parallel_branch,
        decoders.drop_head_bias,
    ),
    "codegen": (decoders.swap_key_and_value, broken.scale_frequencies, broken.scale_scores, decoders.drop_head_bias),
    "cohere_head_norms": (
        decoders.keep_key_norm_pairs,
        norms.flatten_query_head_norms,
        norms.flatten_key_head_norms,
        norms.share_head_norms,
    ),
    "hunyuan_v1_dense": (decoders.drop_query_gain, decoders.drop_key_gain, decoders.weigh_before_rotation),
    "nanochat": (decoders.norm_no_keys, decoders.turn_backwards, chosen.forget_square, broken.change_numbers),
    "flex_olmo": (experts.turn_router, experts.turn_experts),  # a norm behind the mixture takes off any factor
    "ernie4_5_moe": (experts.turn_router, experts.drop_correction, experts.drop_shared_expert),
    "glm4_moe": (
        experts.turn_experts,
        experts.change_score,
        experts.drop_correction,
        experts.weigh_by_correction,
        experts.take_every_group,
        experts.score_groups_by_one,
        experts.forget_scale,
        experts.flip_normalisation,
        experts.drop_shared_expert,
    ),
    "gpt_oss": (
        broken.drop_sinks,
        experts.turn_router,
        experts.join_alternating_rows,
        experts.drop_clamp,
        experts.drop_up_offset,
        experts.change_slope,
        experts.drop_up_biases,
        experts.drop_down_biases,
    ),
    "minimax_m2": (experts.change_score, experts.drop_correction, broken.flatten_query_norm),
    "phimoe": (experts.turn_router, experts.change_score, experts.change_jitter, decoders.drop_head_bias),
    "qwen2_moe": (experts.turn_router, experts.drop_gated_expert, norms.drop_qkv_bias),
    "granitemoe": (experts.turn_experts, experts.turn_router, experts.flip_normalisation, broken.change_numbers),
    "granitemoeshared": (experts.turn_router, experts.flip_normalisation, experts.drop_shared_expert),
    "mixtral": (
        experts.turn_experts,
        experts.turn_router,
        experts.flip_normalisation,
        experts.swap_gate_and_up,
        experts.change_activation,
    ),
    "minicpm3": (
        latents.flatten_latent_norm,
        latents.norm_narrower_latents,
        latents.turn_no_latents,
        latents.turn_up_k,
        latents.turn_up_v,
        broken.change_numbers,
    ),
    "deepseek_v2_dense": (latents.keep_latent_pairs, latents.keep_query_pairs, latents.flatten_latent_norm),
    "deepseek_v3_dense": (latents.keep_latent_pairs, latents.keep_query_pairs, latents.turn_no_latents),
    "deepseek_v2_experts": (experts.take_every_group, experts.drop_shared_expert, experts.forget_scale),
    "deepseek_v3_experts": (experts.drop_correction, experts.take_every_group, latents.flatten_latent_norm),
    "glm4_moe_lite_experts": (experts.drop_correction, experts.drop_shared_expert),
    "deepseek_v3_yarn": (broken.change_rope_factor, broken.scale_scores),
    "glm4_moe_lite_dense": (latents.keep_latent_pairs, latents.norm_narrower_latents),
    "olmoe": (experts.turn_router, experts.flip_normalisation),
    "olmoe_normalised": (experts.turn_router, experts.flip_normalisation, experts.change_activation),
    "qwen3_moe": (experts.turn_experts, experts.turn_router, experts.flip_normalisation),
    "qwen3_moe_some": (experts.turn_router, experts.flip_normalisation),
    "lfm2": (
        recurrences.forget_oldest_input,
        recurrences.turn_convolution,
        recurrences.change_activation,
        recurrences.share_state,
        broken.flatten_query_norm,
    ),
    "lfm2_biases": (recurrences.drop_convolution_bias, recurrences.forget_oldest_input),
    "mamba2": (
        recurrences.turn_decay,
        recurrences.turn_skip,
        recurrences.turn_step_bias,
        recurrences.forget_limits,
        recurrences.share_groups,
        recurrences.drop_gate,
        recurrences.share_state,
        recurrences.change_activation,
        recurrences.drop_convolution_bias,
    ),
    "bamba": (recurrences.turn_decay, recurrences.turn_convolution, broken.scale_frequencies),
    "granitemoehybrid": (recurrences.turn_decay, recurrences.drop_gate, broken.change_numbers),
    "granitemoehybrid_experts": (experts.turn_router, experts.drop_shared_expert, recurrences.turn_step_bias),
    "falcon_h1": (
        recurrences.turn_decay,
        recurrences.drop_gate,
        broken.scale_scores,
        broken.change_numbers,
    ),
    "falcon_h1_norm": (recurrences.drop_gate, recurrences.share_groups),
    "qwen3_5_text": (
        recurrences.turn_delta_decay,
        recurrences.double_rate,
        recurrences.swap_queries_and_keys,
        recurrences.drop_gate,
        recurrences.turn_convolution,
        broken.flatten_query_norm,
    ),
    "qwen3_next": (recurrences.turn_delta_decay, recurrences.swap_queries_and_keys),
    "nested gemma3": (broken.swap_rope_tables, broken.swap_windows, broken.scale_embedding),
    "nested mistral3": (broken.drop_window, broken.scale_frequencies),
    "nested llava": (broken.scale_frequencies, broken.shift_head_map),
    "nested internvl": (norms.drop_qkv_bias, broken.scale_frequencies),
    "nested qwen2_vl": (norms.drop_qkv_bias, broken.scale_frequencies),
    "nested qwen2_5_vl": (norms.drop_qkv_bias, broken.scale_frequencies),
    "nested qwen3_vl": (broken.flatten_query_norm, broken.scale_frequencies),
    "nested mllama": (broken.change_rope_factor, broken.shift_head_map),
}
"""Variant of tiny_models or nested_models -> what turns its comparison red."""

ON_EVERY_PROCESSOR = (
    "deepseek_v3_experts", "falcon", "gemma2", "glm4_moe", "gpt_oss", "granitemoehybrid_experts", "lfm2", "mixtral",
    "qwen3_next", "stablelm_head_norms",
)  # fmt: skip
"""Variants that `make test-avx2` and `make test-scalar` compute whole, between them with every operation. That each
kernel gives the same bits on every instruction set is tested by itself (tests/plugins)."""

COMPUTED = [
    pytest.param(variant, marks=pytest.mark.computes if variant in ON_EVERY_PROCESSOR else ()) for variant in FAMILIES
]
LENGTHS = (1, 2, 16, 17, 33, 100)


class Family:
    """A random checkpoint in bfloat16, its float32 engine, and what transformers computes from it.

    The engine is built from the checkpoint as published, in the words of transformers 4.x; transformers reads its own.
    """

    def __init__(self, root: Path, variant: str):
        self.root = root
        make = make_nested if variant in NESTED else make_variant
        self.model = make(root / "model", variant, seed=3, dtype="bfloat16")
        self.published = publish(self.model, root / "published")
        build(self.published, root / "engine", dtype="float32", accuracy="none")
        self.references: dict[int, tuple[np.ndarray, float]] = {}

    def ids(self, length: int) -> list[int]:
        return np.random.default_rng(length).integers(0, 97, length).tolist()

    def reference(self, length: int) -> tuple[np.ndarray, float]:
        """Logits in float64, and how far from them ours may be."""
        if length not in self.references:
            exact = reference_logits(self.model, self.ids(length), torch.float64)
            theirs = reference_logits(self.model, self.ids(length), torch.float32)
            rounding = float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
            self.references[length] = exact, 4 * worst(theirs, exact) + rounding
        return self.references[length]

    @cached_property
    def lowered(self) -> Graph:
        """The lowered graph as it should be; each mutation gets a copy, since a trace takes seconds."""
        traced = trace_for_engine(open_checkpoint(self.published), dtype="float32", max_seq_len=128)
        traced.facts.block_size = 32
        return run_pipeline(traced).graph

    def broken_engine(self, mutation: Callable[[Graph], None]) -> Path:
        checkpoint, graph = open_checkpoint(self.published), copy.deepcopy(self.lowered)
        mutation(graph)
        verify(graph, "lowered")
        cpu = self.root / mutation.__name__ / "cpu"
        cpu.mkdir(parents=True)
        plan = emit_cpu_plan(graph, checkpoint)
        (cpu / "plan.bin").write_bytes(plan.data)
        with (cpu / "weights.bin").open("wb") as file:
            plan.weights.stream(file)
        return cpu.parent


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    made: dict[str, Family] = {}

    def get(variant: str) -> Family:
        if variant not in made:
            made[variant] = Family(tmp_path_factory.mktemp(variant), variant)
        return made[variant]

    return get


@pytest.mark.parametrize("variant", COMPUTED)
def test_logits_equal_transformers(families, variant):
    family = families(variant)
    steps = EngineSteps(family.root / "engine")
    for length in LENGTHS:
        exact, allowed = family.reference(length)
        assert worst(steps.logits(family.ids(length)), exact) <= allowed
    exact, allowed = family.reference(LENGTHS[-1])
    assert worst(steps.logits(family.ids(LENGTHS[-1]), chunks=[7, 40] + [1] * 60), exact) <= allowed


@pytest.mark.parametrize("variant", ["gemma3", "gpt_neox", "llama_yarn", "phi3"])
def test_every_spelling_of_a_config_gives_the_same_engine(families, variant):
    family = families(variant)
    again = build(family.model, family.root / "again", dtype="float32", accuracy="none").path
    for file in ("cpu/plan.bin", "cpu/weights.bin", "graph.txt"):
        assert (again / file).read_bytes() == (family.root / "engine" / file).read_bytes()


@pytest.mark.parametrize("variant", COMPUTED)
def test_greedy_tokens_equal_transformers(families, variant):
    family = families(variant)
    reference = load_reference(family.model, torch.float32)
    prompts = [family.ids(n) for n in (1, 5, 40)]
    with LLM(str(family.root / "engine"), kv_cache_memory="64MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 20
        assert answer == reference_choices(reference, prompt, answer)


@pytest.mark.parametrize(("variant", "mutation"), [(v, m) for v, mutations in FAMILIES.items() for m in mutations])
def test_mutation_turns_red(families, variant, mutation):
    family = families(variant)
    exact, allowed = family.reference(LENGTHS[-1])
    steps = EngineSteps(family.broken_engine(mutation))
    chunks = [60, 40] if mutation is recurrences.share_state else None
    assert worst(steps.logits(family.ids(LENGTHS[-1]), chunks=chunks), exact) > 10 * allowed
