"""Models that cannot be built: a typed error that names what is in the way and where, not the exporter's own words."""

from __future__ import annotations

import json

import pytest

from support.survey import make_model
from tensorwright.builder.trace.export import trace
from tensorwright.errors import TensorwrightError, TraceError, UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint

REFUSED = {
    "jetmoe": (TraceError, "module model.layers.0.self_attention.experts.router (item) has a size u0"),
    "t5": (UnsupportedModelError, "t5 has an encoder beside its decoder (is_encoder_decoder)"),
    "deepseek_v4": (UnsupportedModelError, "(layer_types: heavily_compressed_attention)"),
    "rwkv": (TensorwrightError, "rwkv"),
}
RAW = ("torch.", "TORCH_LOGS", "meta", "FakeTensor", "L['", "Dim.", "guard")


@pytest.fixture(scope="module")
def refusal(tmp_path_factory):
    def of(model_type: str) -> TensorwrightError:
        path = tmp_path_factory.mktemp(model_type)
        make_model(model_type, path)
        with pytest.raises(TensorwrightError) as caught:
            trace(open_checkpoint(path), dtype="float32", max_seq_len=128)
        return caught.value

    return of


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_by_name(refusal, model_type):
    kind, sentence = REFUSED[model_type]
    error = refusal(model_type)
    assert type(error) is kind or kind is TensorwrightError
    assert sentence in str(error)
    assert not [word for word in RAW if word in str(error)]


class Switching(Exception):
    """Stands for what the exporter raises when a model's code depends on the length."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Constraints violated (seq)! For more information, run with TORCH_LOGS.\n  - Not all values of seq = "
            "L['input_ids'].size()[1] in the range satisfy the generated guard L['input_ids'].size()[1] != 128.",
            "its code is not the same for every length: it needs seq != 128",
        ),
        ("- You marked seq as dynamic but your code specialized it to be a constant (7).", "for one length only"),
        ("Could not guard on data-dependent expression u0 > 0", "branches on values"),
        ("", "its code raises Switching"),
    ],
)
def test_what_the_exporter_means(text, words):
    from torch import nn

    from tensorwright.builder.trace.explain_export import explain_export

    sentence = explain_export(nn.Identity(), Switching(text))
    assert words in sentence
    assert not [word for word in RAW if word in sentence]


def test_an_unknown_family_names_the_file_and_the_remedy(tmp_path):
    make_model("helium", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "heliun"}))
    with pytest.raises(UnsupportedModelError, match=r"config\.json: model_type 'heliun' is unknown.*correct the name"):
        trace(open_checkpoint(tmp_path), dtype="float32", max_seq_len=128)
