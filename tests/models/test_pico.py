"""The bundled models are whole, agree with each other, and are what their card says."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.heads_checkpoint import open_heads_checkpoint
from tensorwright.models.registry import expectations

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.mark.parametrize(("name", "parameters"), [("pico", 15_735_168), ("pico-draft", 2_360_256)])
def test_checkpoint(name, parameters):
    checkpoint = open_checkpoint(MODELS / name)
    assert sum(prod(checkpoint.shape(n)) for n in checkpoint.names) == parameters
    assert checkpoint.native_dtype == "bfloat16"
    assert checkpoint.eos_token_ids == [0]
    assert checkpoint.bos_token_id == 0
    assert "lm_head.weight" not in checkpoint
    assert checkpoint.config["tie_word_embeddings"] is True


def test_one_tokenizer():
    target, draft = ((MODELS / name / "tokenizer.json").read_bytes() for name in ("pico", "pico-draft"))
    assert target == draft
    tokenizer = Tokenizer.from_file(str(MODELS / "pico" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 8192
    text = "def naïve(x):\n\treturn '🙂'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_heads_are_of_pico():
    heads = open_heads_checkpoint(MODELS / "pico-eagle3")
    config, options = heads.config, open_checkpoint(MODELS / "pico").config
    assert [config[key] for key in ("hidden_size", "vocab_size")] == [
        options[key] for key in ("hidden_size", "vocab_size")
    ]
    assert sum(prod(heads.stored.shape(n)) for n in heads.names if n not in ("d2t", "t2d")) == 3_048_960
    assert "embed_tokens.weight" not in heads


def test_expectations_of_families():
    llama = expectations(open_checkpoint(MODELS / "pico").config)
    assert llama["recognise_rms_norm"].count(8) == 17
    assert llama["rewrite_gqa"].count(8) == 8
    ungrouped = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4}
    assert expectations(ungrouped)["rewrite_gqa"].count(8) == 0
    assert expectations({"model_type": "never-seen"})["recognise_attention"].count(3) == 3
