"""Numbers that a model makes itself: those of the type that it is traced in, whatever type its config.json names.

Gemma's root of the hidden size, say, is a number that bfloat16 rounds. A model is its class, its config, and what its
modules hold; if these are the same, so is every number of its trace.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from support.model_numbers import different
from support.published_configs import PUBLISHED, published_config, shrink
from support.survey import SURVEY, survey_config
from support.tiny_models import VARIANTS, variant_config
from tensorwright.builder.trace import load_model as loading
from tensorwright.builder.trace.load_model import load_model
from tensorwright.errors import UnsupportedModelError


def configs() -> dict[str, dict[str, Any]]:
    """config.json of every tiny model there is, by name."""
    surveyed = {name: survey_config(name) for name in SURVEY if name.partition(" ")[0] in CONFIG_MAPPING}
    decoders = {name: c for name, c in surveyed.items() if type(c) in AutoModelForCausalLM._model_mapping}
    made = {**decoders, **{name: variant_config(name) for name in VARIANTS}}
    written = {name: json.loads(config.to_json_string()) for name, config in made.items()}
    return {**written, **{name: shrink(published_config(name)) for name in PUBLISHED}}


CONFIGS = configs()


def loaded(path: Path, config: dict[str, Any], marked: str, dtype: str) -> PreTrainedModel:
    """The model as a build loads it, from a config.json that names the type `marked`."""
    config = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, "torch_dtype": marked}), encoding="utf-8")
    return load_model(SimpleNamespace(path=path, config=config), dtype)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_number_depends_on_the_type_that_a_config_names(tmp_path, name):
    try:
        model = loaded(tmp_path, CONFIGS[name], "float32", "float32")
    except UnsupportedModelError as refused:
        with pytest.raises(UnsupportedModelError, match=re.escape(str(refused))):
            loaded(tmp_path, CONFIGS[name], "bfloat16", "float32")
        return
    assert different(model, loaded(tmp_path, CONFIGS[name], "bfloat16", "float32")) == []
    narrow = [key for key, x in model.state_dict().items() if x.dtype in (torch.bfloat16, torch.float16)]
    assert narrow == []


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_a_number_in_the_type_of_the_config_would_show(tmp_path, name):
    exact = loaded(tmp_path, CONFIGS[name], "float32", "float32")
    rounded = loaded(tmp_path, CONFIGS[name], "float32", "bfloat16")
    assert "model.embed_tokens._buffers.embed_scale" in different(exact, rounded)


def test_configs_inside_configs_are_marked_too():
    inner = CONFIG_MAPPING["llama"](dtype="bfloat16")
    outer = CONFIG_MAPPING["gemma3"](dtype="bfloat16")
    outer.text_config.more = inner
    loading._mark(outer, torch.float32)
    assert {part.dtype for part in (outer, outer.text_config, outer.vision_config, inner)} == {torch.float32}
