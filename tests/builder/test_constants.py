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
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto import modeling_auto

from support import survey
from support.model_numbers import different
from support.places import ROOT
from support.published_configs import PUBLISHED, published_config, shrink
from support.tiny_families import VARIANTS, variant_config
from tensorwright.builder.trace import load_model as loading
from tensorwright.builder.trace.load_model import load_model
from tensorwright.errors import UnsupportedModelError

RECORD = json.loads((ROOT / "docs" / "families.json").read_text(encoding="utf-8"))
"""Its families are those of the survey (tests/test_families_page.py), which takes ten seconds to name them."""


def is_decoder(surveyed: str) -> bool:
    model_type = survey.VARIANTS[surveyed][0] if surveyed in survey.VARIANTS else surveyed
    return model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


NAMES = tuple(dict.fromkeys([*filter(is_decoder, RECORD["families"]), *VARIANTS, *PUBLISHED]))
"""Of every tiny model there is."""


def config_of(name: str) -> dict[str, Any]:
    """Its config.json."""
    if name in PUBLISHED:
        return shrink(published_config(name))
    config = variant_config(name) if name in VARIANTS else survey.survey_config(name)
    return json.loads(config.to_json_string())


def loaded(path: Path, config: dict[str, Any], marked: str, dtype: str) -> PreTrainedModel:
    """The model as a build loads it, from a config.json that names the type `marked`."""
    config = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, "torch_dtype": marked}), encoding="utf-8")
    return load_model(SimpleNamespace(path=path, config_file=path / "config.json", config=config, gguf=None), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_no_number_depends_on_the_type_that_a_config_names(tmp_path, name):
    config = config_of(name)
    try:
        model = loaded(tmp_path, config, "float32", "float32")
    except UnsupportedModelError as refused:
        with pytest.raises(UnsupportedModelError, match=re.escape(str(refused))):
            loaded(tmp_path, config, "bfloat16", "float32")
        return
    assert different(model, loaded(tmp_path, config, "bfloat16", "float32")) == []
    narrow = [key for key, x in model.state_dict().items() if x.dtype in (torch.bfloat16, torch.float16)]
    assert narrow == []


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_a_number_in_the_type_of_the_config_would_show(tmp_path, name):
    config = config_of(name)
    exact = loaded(tmp_path, config, "float32", "float32")
    rounded = loaded(tmp_path, config, "float32", "bfloat16")
    assert "model.embed_tokens._buffers.embed_scale" in different(exact, rounded)


def test_configs_inside_configs_are_marked_too():
    inner = CONFIG_MAPPING["llama"](dtype="bfloat16")
    outer = CONFIG_MAPPING["gemma3"](dtype="bfloat16")
    outer.text_config.more = inner
    loading._mark(outer, torch.float32)
    assert {part.dtype for part in (outer, outer.text_config, outer.vision_config, inner)} == {torch.float32}
