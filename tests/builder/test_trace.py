"""The tracer: what a trace reads and keeps, and what it refuses by name. test_trace_variants.py compares numbers."""

from __future__ import annotations

import json
import re
import resource
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.gemma2 import modeling_gemma2

from support.tiny_models import make_tiny, make_variant
from support.traced import assert_same_logits
from support.waiting import PATIENCE
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.lean_export import lean_export
from tensorwright.builder.trace.load_model import load_model
from tensorwright.builder.trace.lower_aten import TABLE
from tensorwright.errors import CheckpointError, InvalidOptionError, TraceError, UnsupportedModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.weights import Ref
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint


def test_the_graph_survives_its_text(tmp_path):
    path = make_tiny(tmp_path / "m", "qwen2")
    text = print_graph(trace(open_checkpoint(path), dtype="bfloat16", max_seq_len=128))
    graph = parse_graph(text)
    assert print_graph(graph) == text
    assert_same_logits(graph, path, "bfloat16")


def test_stored_type_and_traced_type_are_independent(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, dtype="bfloat16")
    assert_same_logits(trace(open_checkpoint(path), dtype="float32", max_seq_len=128), path, "float32")


def test_no_module_switches_gradients_off_in_an_export(tmp_path, monkeypatch):
    """transformers does around the forward of rotary embeddings, and the exporter would cut its graph there."""
    export, switched = torch.export.export, []

    def look(module, *args, **options):
        forwards = [part.forward for part in module.modules()]
        switched.append([each for each in forwards if each.__code__.co_name == "decorate_context"])
        return export(module, *args, **options)

    monkeypatch.setattr(torch.export, "export", look)
    trace(open_checkpoint(make_tiny(tmp_path / "m", "llama")), dtype="float32", max_seq_len=128)
    assert switched == [[]]


@pytest.mark.parametrize("variant", ["gemma3", "gemma4_text"])
def test_the_graph_does_not_depend_on_the_order_of_a_set(tmp_path, monkeypatch, variant):
    """These have a rotary table for each kind of their layers, and go through a set of the kinds, whose order is
    another one in another process. The second one keeps the set."""

    class Reversed(set):
        def __iter__(self):
            return iter(sorted(super().__iter__(), reverse=True))

    checkpoint = open_checkpoint(make_variant(tmp_path / "m", variant))
    text = print_graph(trace(checkpoint, dtype="float32", max_seq_len=128))
    kinds = re.findall(r"%model.rotary_emb.(\w+_attention)_inv_freq: ", text)
    assert kinds == sorted(kinds)
    assert len(kinds) == 2
    monkeypatch.setattr("tensorwright.builder.trace.sorted_sets.SortedSet", Reversed)
    assert print_graph(trace(checkpoint, dtype="float32", max_seq_len=128)) != text


def test_exports_side_by_side_leave_the_exporter_as_it_was():
    """Its switches are those of the process; a second export must wait."""
    inside, done = threading.Event(), threading.Event()

    def export():
        with lean_export():
            inside.set()
            done.wait(PATIENCE)

    before = torch.fx.config.do_not_emit_stack_traces
    other = threading.Thread(target=export)
    with lean_export():
        other.start()
        inside.wait(0.3)  # it never comes
    done.set()
    other.join()
    assert torch.fx.config.do_not_emit_stack_traces == before


def test_models_loaded_side_by_side_keep_their_types(tmp_path, monkeypatch):
    """While a model is made its type is torch's default, for every thread; a second one must wait."""
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "gemma2"))
    inside, done, made = threading.Event(), threading.Event(), {}
    original = modeling_gemma2.Gemma2TextScaledWordEmbedding.__init__
    other = threading.Thread(target=lambda: made.update(other=load_model(checkpoint, "bfloat16")))

    def meet(self, *args, **options):
        if threading.current_thread() is other:
            inside.set()
            done.wait(PATIENCE)
        else:
            other.start()
            inside.wait(0.3)  # it never comes
        original(self, *args, **options)

    monkeypatch.setattr(modeling_gemma2.Gemma2TextScaledWordEmbedding, "__init__", meet)
    scale = load_model(checkpoint, "float32").model.embed_tokens.embed_scale
    done.set()
    other.join()
    assert scale.dtype == torch.float32
    assert made["other"].model.embed_tokens.embed_scale.dtype == torch.bfloat16
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


def test_two_traces_print_the_same_text(tmp_path):
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "llama", num_hidden_layers=1))
    texts = {print_graph(trace(checkpoint, dtype="bfloat16", max_seq_len=64)) for _ in range(2)}
    assert len(texts) == 1


def test_dual_chunk_attention_is_what_transformers_computes(tmp_path):
    """transformers passes by what the Qwen2.5-1M models say of far positions, and so does the trace."""
    far = {"chunk_size": 16, "local_size": 4, "original_max_position_embeddings": 16}
    plain = make_tiny(tmp_path / "plain", "qwen2")
    dual = make_tiny(tmp_path / "dual", "qwen2", dual_chunk_attention_config=far)
    assert json.loads((dual / "config.json").read_text())["dual_chunk_attention_config"] == far
    graphs = [trace(open_checkpoint(path), dtype="float32", max_seq_len=128) for path in (dual, plain)]
    assert print_graph(graphs[0]) == print_graph(graphs[1])
    assert_same_logits(graphs[0], dual, "float32", [40])


def test_shape_of_the_graph(tmp_path):
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "llama", attention_bias=True))
    graph = trace(checkpoint, dtype="bfloat16", max_seq_len=64)
    assert [(v.name, v.dtype, v.shape) for v in graph.inputs] == [
        ("input_ids", "int64", (1, "seq")),
        ("position_ids", "int64", (1, "seq")),
    ]
    (output,) = graph.outputs
    assert (output.dtype, output.shape) == ("bfloat16", (1, "seq", 101))
    assert dict(graph.facts.literals()) == {
        "model_type": "llama",
        "dtype": "bfloat16",
        "max_seq_len": 64,
        "vocab_size": 101,
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_ids": [2],
    }
    q_proj = next(n for n in graph.find("linear") if n.scope == "model.layers.1.self_attn.q_proj")
    names = [str(v.node.attrs["expr"]) for v in q_proj.inputs[1:]]
    assert names == ['"model.layers.1.self_attn.q_proj.weight"', '"model.layers.1.self_attn.q_proj.bias"']
    # Rotary frequencies are computed in float32 even when the model runs in bfloat16.
    (frequencies,) = [n for n in graph.find("constant") if n.output.rank == 1]
    assert frequencies.output.dtype == "float32"
    assert frequencies.scope == "model.rotary_emb"


def test_no_weight_is_read_or_made(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True))

    def refuse(self, name):
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(Checkpoint, "read", refuse)
    trace(checkpoint, dtype="float32", max_seq_len=64)
    model = load_model(checkpoint, "bfloat16")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.device.type for b in model.buffers()} == {"cpu"}
    # The patch that keeps storage away is gone again.
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


def test_a_model_larger_than_memory_is_built(tmp_path):
    """19 billion parameters, whose storage would take 77 GB: only buffers may cost memory."""
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    edit_config(
        path, hidden_size=8192, intermediate_size=28672, num_hidden_layers=20, num_attention_heads=64, head_dim=128
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = load_model(open_checkpoint(path), "float32")
    assert sum(p.numel() for p in model.parameters()) > 15e9
    # ru_maxrss is in KiB. One layer's smallest matrix would already be 256 MiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


# -- weights ----------------------------------------------------------------------------------------------------------


def edit_weights(path, edit):
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    config.update(changes)
    (path / "config.json").write_text(json.dumps(config))


def exprs(graph):
    return [n.attrs["expr"] for n in graph.find("weight")]


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def test_tied_weights_are_one_expression(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True)
    assert HEAD not in open_checkpoint(path).names
    found = exprs(trace(open_checkpoint(path), dtype="float32", max_seq_len=64))
    assert found[0] == found[-1] == Ref(EMBED)


def test_tied_but_only_the_head_is_stored(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True)
    edit_weights(path, lambda t: t.update({HEAD: t.pop(EMBED)}))
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert exprs(graph)[0] == exprs(graph)[-1] == Ref(HEAD)
    assert_same_logits(graph, path, "float32")


def test_tied_and_both_stored_equal(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True)
    edit_weights(path, lambda t: t.update({HEAD: t[EMBED].clone()}))
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert exprs(graph)[0] == exprs(graph)[-1] == Ref(EMBED)


def test_tied_by_config_but_stored_with_different_values(tmp_path):
    """transformers then keeps them apart, and so must we."""
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True)
    edit_weights(path, lambda t: t.update({HEAD: t[EMBED] * 0.5}))
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert (exprs(graph)[0], exprs(graph)[-1]) == (Ref(EMBED), Ref(HEAD))
    assert_same_logits(graph, path, "float32")


def test_tensors_the_model_does_not_take_are_ignored_as_in_transformers(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    edit_weights(path, lambda t: t.update({"model.rotary_emb.inv_freq": torch.full((4,), 9.0)}))
    assert_same_logits(trace(open_checkpoint(path), dtype="float32", max_seq_len=64), path, "float32")


def test_a_checkpoint_of_the_bare_decoder(tmp_path):
    """Names without the "model." prefix, as the base class saves them, find their parameters."""
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, tie_word_embeddings=True)

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    edit_weights(path, strip)
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert exprs(graph)[0] == exprs(graph)[-1] == Ref("embed_tokens.weight")
    assert_same_logits(graph, path, "float32")


def test_missing_and_misshapen_weights_are_all_named(tmp_path):
    path = make_tiny(tmp_path / "m", "llama")
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"]

    def edit(tensors):
        del tensors[names[0]], tensors[names[1]]
        tensors[names[2]] = torch.zeros(5)

    edit_weights(path, edit)
    with pytest.raises(CheckpointError) as caught:
        trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    for name in names:
        assert name in str(caught.value)
    assert "[5]" in str(caught.value)


def test_a_config_that_contradicts_the_weights(tmp_path):
    path = make_tiny(tmp_path / "m", "llama")
    edit_config(path, attention_bias=True)
    with pytest.raises(CheckpointError, match=r"model.layers.1.self_attn.o_proj.bias"):
        trace(open_checkpoint(path), dtype="float32", max_seq_len=64)


# -- refusals ---------------------------------------------------------------------------------------------------------


def rope(rope_type, **more):
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0, **more}}


REFUSED = [
    (rope("elastic"), UnsupportedModelError, "'elastic' is refused: its frequencies are not known to be"),
    (
        {"rope_parameters": None, "rope_scaling": {"type": "elastic", "factor": 2.0}},
        UnsupportedModelError,
        "'elastic' is refused",
    ),
    ({"quantization_config": {"quant_method": "hqq"}}, UnsupportedModelError, "quantized with hqq"),
    ({"model_type": "unheard_of"}, UnsupportedModelError, "model_type 'unheard_of' is unknown to transformers"),
    ({"model_type": "unheard_of", "auto_map": {"AutoModel": "x.Y"}}, UnsupportedModelError, "own Python code"),
    ({"model_type": None}, CheckpointError, 'model_type must name the model\'s family, such as "llama", not None'),
    ({"model_type": "vit"}, UnsupportedModelError, "vit is no causal language model"),
    ({"architectures": ["LlamaForSequenceClassification"]}, UnsupportedModelError, "must be a LlamaForCausalLM"),
    ({"architectures": ["MistralForCausalLM"]}, UnsupportedModelError, "must be a LlamaForCausalLM"),
    ({"architectures": ["Llama_X_ForCausalLM"]}, UnsupportedModelError, "must be a LlamaForCausalLM"),
    ({"hidden_size": 33}, CheckpointError, "is no valid llama config"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_refusals_by_name(tmp_path, changes, error, message):
    path = make_tiny(tmp_path / "m", "llama")
    edit_config(path, **changes)
    with pytest.raises(error) as caught:
        trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert message in str(caught.value)


def test_the_class_of_the_code_that_a_checkpoint_was_published_with(tmp_path):
    """transformers took the family over under another name."""
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    edit_config(path, architectures=["LLaMA_ForCausalLM"])
    assert_same_logits(trace(open_checkpoint(path), dtype="float32", max_seq_len=64), path, "float32")


def test_what_has_no_meaning_names_operation_and_module(tmp_path, monkeypatch):
    monkeypatch.delitem(TABLE, "aten.silu")
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    with pytest.raises(TraceError) as caught:
        trace(open_checkpoint(path), dtype="float32", max_seq_len=32)
    assert "aten.silu.default in module model.layers.0.mlp.act_fn" in str(caught.value)
    assert "has no meaning here" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"), [({"dtype": "float64"}, "dtype must be one of"), ({"max_seq_len": 1}, "at least 2")]
)
def test_impossible_options(tmp_path, options, message):
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "llama"))
    with pytest.raises(InvalidOptionError, match=message):
        trace(checkpoint, **{"dtype": "float32", "max_seq_len": 64, **options})


@pytest.mark.parametrize("max_seq_len", [2, 7, 131072])
def test_any_maximum_length(tmp_path, max_seq_len):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    assert_same_logits(trace(open_checkpoint(path), dtype="float32", max_seq_len=max_seq_len), path, "float32")
