"""The portable form of every family computes in ONNX Runtime what the graph does, chunk by chunk and in batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tolerances import chain_tolerance

from support.onnx_slots import Slots, write_model
from support.places import ROOT
from support.tiny_families import VARIANTS as ALL_VARIANTS
from support.tiny_families import families_of_experts
from tensorwright.builder.emit.onnx.plugin_form import emit_plugin_form
from tensorwright.builder.emit.onnx.portable import emit_portable
from tensorwright.builder.emit.onnx.portable_io import make_manifest
from tensorwright.builder.emit.quantized_weights import QuantizingWeights
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import Graph
from tensorwright.ir.ops import emit, summing_ops
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.passes.lower_weight_only import lower_weight_only
from tensorwright.passes.quantize_weights import quantize_weights

VARIANTS = (
    "llama", "qwen2", "mistral", "qwen3", "olmo2", "granite", "phi3_longrope_partial", "gemma", "gemma2", "flint",
    "gemma3", "olmo3", "starcoder2", "stablelm_head_norms", "gpt_neox", "gpt2", "falcon_groups", "cohere", "ernie4_5",
    "glm", "glm4", "helium", "nemotron", "smollm3", "opt", "biogpt", "gpt_bigcode", "gptj", "codegen", "nanochat",
    "llama_mqa", "apertus", "gpt_neo", "xglm",
)  # fmt: skip
"""One of each family, and heads of 10 dims, which no kernel takes as they are."""
SLOPES = r"attention in transformer\.\S+ has slopes \(alibi\), which have no portable ONNX form"
REFUSED = {
    "hunyuan_v1_dense": "what q is multiplied by behind its rotation has no portable ONNX form",
    **dict.fromkeys(("gemma4_experts", "gemma4_unified_text"), "a norm of columns must be of all of q or all of"),
    **dict.fromkeys(("bloom", "mpt", "falcon_alibi"), SLOPES),
}
MIXTURES = families_of_experts()
"""Families with layers that have no portable form."""
LATENTS = {"minicpm3": "minicpm3", "deepseek_v2_dense": "deepseek_v2", "deepseek_v3_dense": "deepseek_v3",
           "glm4_moe_lite_dense": "glm4_moe_lite", "deepseek_v32_dense": "deepseek_v32",
           "glm_moe_dsa_dense": "glm_moe_dsa", "kimi_linear": "kimi_linear"}  # fmt: skip
"""Variants with latent attention, which has no portable form, and their families."""
STATES = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "zamba2",
)  # fmt: skip
"""Families with recurrent layers, whose states have no portable form."""
LENGTHS = (41, 1, 23)
"""Past every window of 16."""


def sequences() -> list[list[int]]:
    return [np.random.default_rng(n).integers(0, 97, n).tolist() for n in LENGTHS]


def expected(graph: Graph, checkpoint, ids: list[list[int]]) -> list[np.ndarray]:
    return [logits.numpy() for logits in interpret_ragged(graph, ids, QuantizingWeights(checkpoint))]


def worst(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """NaN counts as infinitely far."""
    return max(float(np.nan_to_num(np.abs(a - b), nan=np.inf).max()) for a, b in zip(got, wanted, strict=True))


def allowed(graph: Graph, wanted: list[np.ndarray], dtype: str = "float32") -> float:
    """Sums in another order, or in another type."""
    products = {"quantized_embedding"} | summing_ops()
    widest = max(d for v in graph.values() for d in v.shape if isinstance(d, int) and v.node and v.node.op != "weight")
    depth = sum(node.op in products for node in graph.nodes)
    return chain_tolerance(dtype, widest, depth, max(float(np.abs(w).max()) for w in wanted))


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_the_interpreter(case, variant, tmp_path):
    made, ids = case(variant), sequences()
    wanted = expected(made.graph, made.checkpoint, ids)
    got = Slots(write_model(made.graph, made.checkpoint, "float32", tmp_path), 3).ragged(ids)
    assert worst(got, wanted) <= allowed(made.graph, wanted)
    for logits, reference in zip(got, wanted, strict=True):
        assert (logits.argmax(-1) == reference.argmax(-1)).all()


def test_greedy_tokens_equal_the_interpreter(case, tmp_path):
    made = case("gemma2")
    slots = Slots(write_model(made.graph, made.checkpoint, "float32", tmp_path), 2)
    prompts = [[5, 17, 40], [88, 2, 61, 9]]
    answers = [[int(slots.step(i, [p], [0], [len(p) - 1]).argmax())] for i, p in enumerate(prompts)]
    for step in range(24):
        past = [len(p) + step for p in prompts]
        for answer, row in zip(answers, slots.step(0, [[a[-1]] for a in answers], past), strict=True):
            answer.append(int(row.argmax()))
    whole = [p + a for p, a in zip(prompts, answers, strict=True)]
    for prompt, answer, reference in zip(prompts, answers, expected(made.graph, made.checkpoint, whole), strict=True):
        assert answer == reference[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_page_lists_every_family():
    page = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    listed = {name: int(count) for name, count in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)}
    refused = {*MIXTURES, *LATENTS.values(), *STATES}
    assert listed == Counter(family for family, _ in ALL_VARIANTS.values() if family not in refused)
    assert all(f"`{family}`" in page for family in refused)
    assert {ALL_VARIANTS[variant][0] for variant in (*VARIANTS, *REFUSED)} == set(listed)


@pytest.mark.parametrize("variant", REFUSED)
def test_what_has_no_form_is_refused_by_name(case, variant, tmp_path):
    made = case(variant)
    with pytest.raises(LoweringError, match=REFUSED[variant]):
        write_model(made.graph, made.checkpoint, "float32", tmp_path)


@pytest.mark.parametrize(("family", "quantize"), [*((family, None) for family in MIXTURES), ("mixtral", "int8")])
def test_mixtures_of_experts_are_refused_by_name(case, family, quantize):
    made = case(family)
    graph = made.graph.clone()
    graph.facts.quantize = None if quantize is None else parse_spec(quantize)
    quantize_weights(graph)
    lower_weight_only(graph)
    with pytest.raises(LoweringError, match=r"route in model.layers.[01]\S* has no portable ONNX form; build with"):
        emit_portable(graph, made.checkpoint, "float32")


@pytest.mark.parametrize("family", STATES)
def test_states_of_recurrent_layers_are_refused_by_name(case, family, tmp_path):
    made = case(family)
    for emit_form in (emit_portable, lambda *given: emit_plugin_form(*given[:2], tmp_path, given[2])):
        with pytest.raises(LoweringError, match=r"\d recurrent layers keep a state .* cpu and cuda can"):
            emit_form(made.graph, made.checkpoint, "float32")


def test_layers_that_share_keys_and_values_are_refused_by_name(case, tmp_path):
    made = case("gemma4_shared")
    for emit_form in (emit_portable, lambda *given: emit_plugin_form(*given[:2], tmp_path, given[2])):
        with pytest.raises(LoweringError, match=r"2 layers read the keys and values of other layers, .* cpu and cuda"):
            emit_form(made.graph, made.checkpoint, "float32")


def test_chunks_are_refused_by_name(case, tmp_path):
    made = case("mistral")
    graph = made.graph.clone()
    graph.facts.kv_layers = [replace(layer, chunked=True) for layer in graph.facts.kv_layers]
    for emit_form in (emit_portable, lambda *given: emit_plugin_form(*given[:2], tmp_path, given[2])):
        with pytest.raises(LoweringError, match=r"within chunks of 16 positions, .* --max-seq-len of at most 16"):
            emit_form(graph, made.checkpoint, "float32")


@pytest.mark.parametrize("variant", LATENTS)
def test_latent_attention_is_refused_by_name(case, variant):
    made = case(variant)
    with pytest.raises(LoweringError, match=r"latent attention in model.layers.\d+\S* has no portable ONNX form"):
        emit_portable(made.graph, made.checkpoint, "float32")


def drop_window(graph: Graph) -> None:
    for node in graph.find("paged_attention"):
        node.attrs["window"] = 0


def shorten_window(graph: Graph) -> None:
    for node in graph.find("paged_attention"):
        node.attrs["window"] = max(node.attrs["window"] - 1, 0)


def drop_cap(graph: Graph) -> None:
    for node in graph.find("paged_attention"):
        node.attrs["softcap"] = 0.0


def drop_sinks(graph: Graph) -> None:
    for node in graph.find("paged_attention"):
        node.inputs = node.inputs[:5]


def stretch_table(graph: Graph) -> None:
    for node in graph.find("rotary_table"):
        node.attrs["scale"] *= 1.01


def flatten_key_norm(graph: Graph) -> None:
    for node in graph.find("rms_norm_columns"):
        if node.attrs["start"]:
            node.attrs["eps"] = 1.0


MUTATIONS: tuple[tuple[str, Callable[[Graph], None]], ...] = (
    ("gemma2", drop_window), ("gemma2", shorten_window), ("gemma2", drop_cap), ("flint", drop_sinks),
    ("llama", stretch_table), ("qwen3", flatten_key_norm),
)  # fmt: skip


@pytest.mark.parametrize(("variant", "mutate"), MUTATIONS)
def test_mutation_turns_red(case, variant, mutate, tmp_path):
    made, ids = case(variant), sequences()
    wanted, broken = expected(made.graph, made.checkpoint, ids), made.graph
    mutate(broken)
    got = Slots(write_model(broken, made.checkpoint, "float32", tmp_path), 3).ragged(ids)
    assert worst(got, wanted) > 10 * allowed(made.graph, wanted)


@pytest.mark.parametrize("variant", ["llama", "gemma2", "gpt2", "qwen3"])
def test_float16_is_rounding_away(case, variant, tmp_path):
    made, ids = case(variant), sequences()
    wanted = expected(made.graph, made.checkpoint, ids)
    slots = Slots(write_model(made.graph, made.checkpoint, "float16", tmp_path), 3)
    got = slots.ragged(ids)
    assert {c.dtype for c in slots.caches.values()} == {np.dtype(np.float16)}
    assert got[0].dtype == np.float32
    assert 1e-5 < worst(got, wanted) <= allowed(made.graph, wanted, "float16")


@pytest.mark.parametrize(
    ("variant", "formats", "dtype"),
    [
        ("llama", "int4:g32,embedding=none,lm_head=int4:g32", "float32"),
        ("gemma2", "int8:g32,embedding=int8:g32,lm_head=int8:g32", "float32"),
        ("gpt2", "int4:g64,embedding=none,lm_head=int8:g128", "float32"),
        ("llama", "int4:g32,embedding=int8:g64,lm_head=none", "float16"),
    ],
)
def test_weight_only_products_equal_the_interpreter(case, variant, formats, dtype, tmp_path):
    made, ids, graph = case(variant), sequences(), case(variant).graph
    graph.facts.quantize = parse_spec(formats)
    quantize_weights(graph)
    lower_weight_only(graph)
    wanted = expected(graph, made.checkpoint, ids)
    got = Slots(write_model(graph, made.checkpoint, dtype, tmp_path), 3).ragged(ids)
    assert worst(got, wanted) <= allowed(graph, wanted, dtype)
    if dtype == "float32":  # what rounding the weights costs is far more
        assert worst(got, expected(made.graph, made.checkpoint, ids)) > 100 * allowed(graph, wanted)


@pytest.mark.parametrize("bits", [4, 8])
def test_int8_activations_are_those_of_target_cpu(case, bits, tmp_path):
    made, ids, graphs = case("llama"), sequences(), {}
    for activations in ("auto", "int8"):
        graphs[activations] = made.graph
        graphs[activations].facts.quantize = parse_spec(f"int{bits}:g32,embedding=none")
        graphs[activations].facts.activations = activations
        quantize_weights(graphs[activations])
        lower_weight_only(graphs[activations])
    rounded = expected(graphs["int8"], made.checkpoint, ids)
    got = Slots(write_model(graphs["int8"], made.checkpoint, "float32", tmp_path), 3).ragged(ids)
    errors = np.abs(np.concatenate(got) - np.concatenate(rounded)).max(axis=-1)
    # A float32 rounding may take an activation over a step's edge: seldom, and then it is one step of many.
    assert np.mean(errors <= allowed(made.graph, rounded)) > 0.9
    assert errors.max() < worst(rounded, expected(graphs["auto"], made.checkpoint, ids))


def test_tied_int8_matrix_is_stored_once(case, tmp_path):
    made = case("gemma2")
    sizes = {}
    for formats in ("int8:g32,embedding=int8:g32,lm_head=int8:g32", "int8:g32,embedding=none,lm_head=int8:g32"):
        graph = made.graph
        graph.facts.quantize = parse_spec(formats)
        quantize_weights(graph)
        lower_weight_only(graph)
        sizes[formats] = emit_portable(graph, made.checkpoint, "float32").model.total_bytes
    shared, apart = sizes.values()
    assert apart - shared > 101 * 32 * 4 - 128  # the table, [101, 32] float32, but for gaps between tensors


def test_no_rows_of_logits_may_be_asked_for(case, tmp_path):
    made = case("llama")
    slots = Slots(write_model(made.graph, made.checkpoint, "float32", tmp_path), 1)
    assert slots.step(0, [[1, 2, 3]], [0], []).shape == (0, 101)
    (wanted,) = expected(made.graph, made.checkpoint, [[1, 2, 3, 4]])
    assert worst([slots.step(0, [[4]], [3])], [wanted[3:]]) <= allowed(made.graph, [wanted])


@pytest.mark.parametrize(("config", "inside"), [({}, False), ({"head_dim": 16}, True)])
def test_attention_rotates_where_its_kernel_can(case, config, inside, tmp_path):
    made, ids = case("llama", **config), sequences()
    path = write_model(made.graph, made.checkpoint, "float32", tmp_path)
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    turns = {a.name: a.i for n in nodes if n.op_type == "GroupQueryAttention" for a in n.attribute}["do_rotary"]
    assert (turns, "RotaryEmbedding" in {n.op_type for n in nodes}) == (int(inside), not inside)
    wanted = expected(made.graph, made.checkpoint, ids)
    assert worst(Slots(path, 3).ragged(ids), wanted) <= allowed(made.graph, wanted)


def test_names_keep_the_module_path(case, tmp_path):
    made = case("llama")
    path = write_model(made.graph, made.checkpoint, "float32", tmp_path)
    graph = onnx.load(str(path), load_external_data=False).graph
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))
    assert "model.layers.1.self_attn/GroupQueryAttention" in names
    assert "model.layers.0.mlp.down_proj/Gemm" in names
    weights = {t.name for t in graph.initializer}
    assert {"model.norm.weight", "lm_head.weight", "model.layers.0.mlp.gate_proj+up_proj.weight"} <= weights
    assert "model.layers.1.self_attn.q_proj+k_proj+v_proj.weight" in weights


def test_io_says_what_the_model_has(case, tmp_path):
    made = case("llama_mqa")
    made_graph = made.graph
    session = Slots(write_model(made_graph, made.checkpoint, "float32", tmp_path), 1).session
    io = make_manifest(made_graph.facts, "float32", 23).to_dict()
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    for name, dtype in io["inputs"].items():
        assert inputs.pop(name) == (f"tensor({dtype})", io["shapes"][name])
    for layer in io["cache"]:
        for key in ("key", "value"):
            assert inputs.pop(layer[key]) == ("tensor(float)", layer["shape"])
    assert not inputs
    presents = [layer[key] for layer in io["cache"] for key in ("present_key", "present_value")]
    assert [o.name for o in session.get_outputs()] == ["logits", *presents]
    assert io["cache"][0]["head_dim"] == 16  # 10 dims, in a cache whose rows are multiples of 8
    assert io["slot_bytes"] == 2 * 2 * 128 * 16 * 4


def test_op_without_a_portable_form_is_refused_by_name(case):
    made = case("llama")
    graph = made.graph
    graph.find("swiglu")[0].op = "cumsum"
    with pytest.raises(LoweringError, match=r"cumsum in model.layers.0.mlp has no portable ONNX form"):
        emit_portable(graph, made.checkpoint, "float32")


def test_clamped_and_sliced_logits(case, tmp_path):
    """Ops that no tiny family has: logits between bounds, every second one of some."""
    made = case("llama")
    graph, (ids,) = made.graph, sequences()[:1]
    (logits,) = graph.outputs
    clamped = emit(graph, "clamp", [logits], min=-1.0, max=None).output
    cut = {"dim": 1, "start": 3, "end": 11, "step": 2}
    graph.outputs = [emit(graph, "slice", [clamped], **cut).output]
    for dtype in ("float32", "float16"):
        (wanted,) = expected(graph, made.checkpoint, [ids])
        got = Slots(write_model(graph, made.checkpoint, dtype, tmp_path / dtype), 1).step(0, [ids], [0])
        assert got.shape == (len(ids), 4)
        assert got.min() == -1.0 < got.max()
        assert worst([got], [wanted]) <= allowed(graph, [wanted], dtype)
