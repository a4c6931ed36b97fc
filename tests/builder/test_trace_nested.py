"""Text parts of models that read more than text: their graphs are transformers' own, and what is left out is said."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import SiglipVisionConfig
from transformers.models.cohere_compass.modeling_cohere_compass import CohereCompassRotaryEmbedding
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding

from support.nested_models import NESTED, make_nested, make_predicting
from support.published import publish
from support.survey import from_config, make_model
from support.survey_configs import tiny_config
from support.tiny_models import make_tiny
from support.traced import assert_same_logits
from tensorwright import build
from tensorwright.builder.trace.export import trace, trace_for_engine
from tensorwright.builder.trace.fix_mrope import LayeredTextRotary, fix_mrope
from tensorwright.builder.trace.load_model import find_model_class, load_config, text_config
from tensorwright.builder.trace.text_part import TextPart
from tensorwright.engine_format.engine_config import EngineConfig, LeftOut
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.runtime.commands.cli import cli

NOT_TEXT, NOT_PASSED = "no part of the text model", "text alone does not pass through it"
PREDICTS = "predicts further tokens"
BESIDE = {
    "nested gemma3": {"model.vision_tower": NOT_TEXT, "model.multi_modal_projector": NOT_TEXT},
    "nested mistral3": {"model.vision_tower": NOT_TEXT, "model.multi_modal_projector": NOT_TEXT},
    "nested llava": {"model.vision_tower": NOT_TEXT, "model.multi_modal_projector": NOT_TEXT},
    "nested internvl": {"model.vision_tower": NOT_TEXT, "model.multi_modal_projector": NOT_TEXT},
    "nested qwen2_vl": {"model.visual": NOT_TEXT},
    "nested qwen2_5_vl": {"model.visual": NOT_TEXT},
    "nested qwen3_vl": {"model.visual": NOT_TEXT},
    "nested gemma4": {"model.vision_tower": NOT_TEXT, "model.embed_vision": NOT_TEXT},
    "nested llama4": {"vision_model": NOT_TEXT, "multi_modal_projector": NOT_TEXT},
    "nested mllama": {
        "model.vision_model": NOT_TEXT,
        "model.multi_modal_projector": NOT_TEXT,
        "model.language_model.layers.1": NOT_PASSED,
    },
}


def edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("variant", NESTED)
def test_the_graph_is_transformers_bit_for_bit(tmp_path, variant):
    """From config.json as published, which marks the model with bfloat16: no constant may be of that type."""
    path = make_nested(tmp_path / "m", variant)
    checkpoint = open_checkpoint(publish(path, tmp_path / "published", dtype="bfloat16"))
    assert checkpoint.native_dtype == "bfloat16"
    graph = trace_for_engine(checkpoint, dtype="bfloat16", max_seq_len=128)
    verify(graph, "traced")
    assert_same_logits(graph, path, "float32")
    assert {name: part["reason"] for name, part in graph.facts.left_out.items()} == BESIDE[variant]
    assert parse_graph(print_graph(graph)).facts == graph.facts
    assert graph.facts.layers == 2
    assert (graph.facts.bos_token_id, graph.facts.eos_token_ids) == (1, [2])


@pytest.mark.parametrize("variant", ["nested gemma3", "nested qwen2_5_vl", "nested qwen3_vl"])
def test_the_graph_in_bfloat16(tmp_path, variant):
    path = make_nested(tmp_path / "m", variant)
    assert_same_logits(trace(open_checkpoint(path), dtype="bfloat16", max_seq_len=128), path, "bfloat16")


def test_what_is_left_out_is_counted(tmp_path):
    """Every tensor of the checkpoint is in the graph or in the record."""
    checkpoint = open_checkpoint(make_nested(tmp_path / "m", "nested gemma3"))
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    used = {name for node in graph.find("weight") for name in node.attrs["expr"].refs()}
    rest = [name for name in checkpoint.names if name not in used]
    parts = graph.facts.left_out.values()
    assert sum(part["tensors"] for part in parts) == len(rest) > 10
    assert sum(part["bytes"] for part in parts) == sum(checkpoint.read(name).nbytes for name in rest)


def test_layers_beside_a_text_that_has_no_config_of_its_own(tmp_path):
    """Phi-4-multimodal: what reads sound and images has lists of layers too, which are none of the text's."""
    path = tmp_path / "m"
    make_model("phi4_multimodal", path)
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert graph.facts.layers == 2
    left_out = graph.facts.left_out
    assert {part["reason"] for part in left_out.values()} == {NOT_TEXT}
    assert {
        "model.embed_tokens_extend.audio_embed.encoder.encoders",
        "model.embed_tokens_extend.image_embed.img_processor.encoder.layers",
    } <= left_out.keys()
    build(path, tmp_path / "engine", dtype="float32", accuracy="none")


def test_a_decoder_that_is_listed_with_models_of_several_parts(tmp_path):
    """transformers has the class of Mistral 4's plain decoder in its mapping for models of several parts alone."""
    make_model("mistral4", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config = load_config(checkpoint)
    assert config.get_text_config() is config
    assert find_model_class(checkpoint, config).__name__ == checkpoint.config["architectures"][0]
    graph = trace(checkpoint, dtype="float32", max_seq_len=64)
    assert not graph.facts.left_out
    assert len(list(graph.find("experts"))) == 2


def test_the_record_of_an_engine(tmp_path):
    result = build(
        make_nested(tmp_path / "m", "nested gemma3"), tmp_path / "engine", accuracy="full", accuracy_tokens=128
    )
    config = json.loads((result.path / "config.json").read_text())
    assert config["model"]["model_type"] == "gemma3_text"
    projector = LeftOut(**config["model"]["left_out"]["model.multi_modal_projector"])
    assert projector == LeftOut(NOT_TEXT, 2, 4 * (16 * 32 + 16))
    read = EngineConfig.from_dict(config, result.path / "config.json")
    assert read.model.left_out["model.multi_modal_projector"] == projector
    assert read.to_dict() == config
    shown = CliRunner().invoke(cli, ["inspect", str(result.path)]).output
    assert "Left out of the checkpoint" in shown
    assert f"model.multi_modal_projector  {NOT_TEXT}: 2 tensors, 2.1 KiB" in shown
    as_json = json.loads(CliRunner().invoke(cli, ["inspect", str(result.path), "--json"]).output)
    assert as_json["model"]["left_out"] == config["model"]["left_out"]
    assert result.config["accuracy"]["largest_logit_error"] < 0.1 * result.config["accuracy"]["largest_reference_logit"]


def test_defaults_of_the_class_are_those_of_the_text_part(tmp_path):
    """The published config of Gemma 3 4B says neither how many heads there are nor how many positions."""
    path = make_nested(tmp_path / "m", "nested gemma3")
    text = json.loads((path / "config.json").read_text())["text_config"]
    del text["max_position_embeddings"]
    edit_config(path, text_config=text)
    assert text_config(open_checkpoint(path))["max_position_embeddings"] == 131072
    limits = build(path, tmp_path / "engine", accuracy="none", max_seq_len=1000).config["limits"]
    assert limits["max_seq_len"] == 1000


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_lists_of_layers_that_text_does_not_reach_are_no_part_of_it(tmp_path):
    """GIT names no text part. The layers that read images are counted as left out, and not taken off those of text."""
    make_model("git", tmp_path / "m")
    graph = trace_for_engine(open_checkpoint(tmp_path / "m"), dtype="float32", max_seq_len=64)
    assert graph.facts.layers == 2
    reasons = {name: part["reason"] for name, part in graph.facts.left_out.items()}
    assert reasons["git.image_encoder.vision_model.encoder.layers"] == NOT_TEXT
    assert NOT_PASSED not in reasons.values()


def test_an_mrope_of_another_kind_is_refused(tmp_path, monkeypatch):
    """One that leaves out a section, say: what is fixed must equal what the module gives by itself."""
    original = Qwen2_5_VLRotaryEmbedding.recomposition_frequencies
    monkeypatch.setattr(
        Qwen2_5_VLRotaryEmbedding, "recomposition_frequencies", lambda self, freq: original(self, freq).flip(-1)
    )
    checkpoint = open_checkpoint(make_nested(tmp_path / "m", "nested qwen2_5_vl"))
    with pytest.raises(UnsupportedModelError, match=r"Qwen2_5_VLRotaryEmbedding.* has an mrope of its own kind"):
        trace(checkpoint, dtype="float32", max_seq_len=64)


def compass_rotary():
    """A model whose layers have an mrope for each of two types."""
    return from_config(tiny_config("cohere_compass_text")).eval()


def test_an_mrope_for_each_type_of_layers():
    model = compass_rotary()
    x, positions = torch.zeros(1), torch.arange(9)[None]
    kinds = ("sliding_attention", "full_attention")
    wanted = [model.model.rotary_emb(x, positions.expand(3, 1, -1), kind) for kind in kinds]
    fix_mrope(model, TextPart(None))
    assert isinstance(model.model.rotary_emb, LayeredTextRotary)
    for kind, tables in zip(kinds, wanted, strict=True):
        given = model.model.rotary_emb(x, positions, kind)
        assert all(torch.equal(a, b) for a, b in zip(given, tables, strict=True))
    assert not torch.equal(wanted[0][0], wanted[1][0])


def test_an_mrope_for_each_type_of_another_kind_is_refused(monkeypatch):
    original = CohereCompassRotaryEmbedding.recomposition_frequencies
    monkeypatch.setattr(
        CohereCompassRotaryEmbedding,
        "recomposition_frequencies",
        lambda self, freq, kind: original(self, freq, kind).flip(-1),
    )
    with pytest.raises(UnsupportedModelError, match=r"CohereCompassRotaryEmbedding.* has an mrope of its own kind"):
        fix_mrope(compass_rotary(), TextPart(None))


def test_a_config_without_text_part(tmp_path):
    path = make_nested(tmp_path / "m", "nested gemma3")
    edit_config(path, text_config=None)
    with pytest.raises(CheckpointError, match=r"gemma3 must have a text part \(text_config\), and there is none"):
        build(path, tmp_path / "engine")


def test_weights_of_the_images_alone(tmp_path):
    path = make_nested(tmp_path / "m", "nested gemma3")
    tensors = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "vision_tower" in name}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="holds no weight of a Gemma3ForConditionalGeneration's text part"):
        build(path, tmp_path / "engine")


def test_a_model_of_images_alone(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1)
    (path / "config.json").write_text(json.dumps(SiglipVisionConfig().to_dict()))
    with pytest.raises(UnsupportedModelError, match="siglip_vision_model is no causal language model"):
        build(path, tmp_path / "engine", max_seq_len=64)


# -- layers that predict further tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [1, 2])
def test_layers_that_predict_further_tokens_are_left_out(tmp_path, declared):
    path = make_predicting(tmp_path / "m", declared=declared)
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert graph.facts.left_out == {
        "model.layers.2": {"reason": PREDICTS, "tensors": 10, "bytes": 4 * (graph_parameters() + 64)},
        "mtp": {"reason": PREDICTS, "tensors": 1, "bytes": 4 * 32},
    }
    assert_same_logits(graph, path, "float32")


def graph_parameters() -> int:
    """The parameters of one layer of the tiny llama: q, k, v, o, gate, up, down and two norms."""
    return 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 32 * 48 + 2 * 32


def test_further_layers_that_nothing_declares_are_refused(tmp_path):
    path = make_predicting(tmp_path / "m", declared=0)
    with pytest.raises(CheckpointError) as caught:
        trace(open_checkpoint(path), dtype="float32", max_seq_len=64)
    assert "no num_nextn_predict_layers says that they predict further tokens" in str(caught.value)
    assert "correct its number of layers" in str(caught.value)
    assert "model.layers.2.mlp.up_proj.weight" in str(caught.value)


def test_more_further_layers_than_declared_are_refused(tmp_path):
    path = make_predicting(tmp_path / "m", declared=1)
    edit_config(path, num_hidden_layers=1)
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers says 1; correct its number of layers"):
        trace(open_checkpoint(path), dtype="float32", max_seq_len=64)


def test_no_record_without_parts(tmp_path):
    checkpoint = open_checkpoint(make_tiny(tmp_path / "m", "llama", num_hidden_layers=1))
    graph = trace(checkpoint, dtype="float32", max_seq_len=64)
    assert "left_out" not in graph.facts
