"""Adapters as PEFT saves them: what is read, and everything that is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.made_adapters import make_adapter
from tensorwright.errors import AdapterError
from tensorwright.models.peft_adapter import MAX_RANK, PREFIX, read_adapter
from tensorwright.options import engine as options

Q, OUT = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"
SHAPES: dict[str, tuple[int, ...]] = {Q: (6, 8), OUT: (8, 6)}
TENSORS = "adapter_model.safetensors"


def test_the_greatest_rank_of_an_option_is_that_of_the_reader() -> None:
    assert MAX_RANK == options.MAX_RANK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", SHAPES)


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("config", "factors"),
    [
        ({}, (2.0, 2.0)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"alpha_pattern": {"o_proj": 2}}, (2.0, 0.5)),
        ({"alpha_pattern": {"^" + Q: 1, "proj": 3}}, (0.25, 2.0)),
        ({"rank_pattern": {"self_attn.q_proj": 4}, "r": 4}, (2.0, 2.0)),
        (
            {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "lora_dropout": 0.1, "use_dora": False},
            (2.0, 2.0),
        ),
        ({"init_lora_weights": "gaussian", "loftq_config": {}, "unknown_field": None}, (2.0, 2.0)),
    ],
)
def test_what_is_read(folder: Path, config: dict[str, Any], factors: tuple[float, float]) -> None:
    edit(folder, **config)
    adapter = read_adapter(folder)
    assert tuple(adapter.modules[name].scale for name in (Q, OUT)) == factors
    tensors = load_file(folder / TENSORS)
    for name, module in adapter.modules.items():
        assert (module.outputs, module.inputs, module.rank) == (*SHAPES[name], 4)
        for got, side in zip(adapter.read(name), "AB", strict=True):
            np.testing.assert_array_equal(got, tensors[f"{PREFIX}{name}.lora_{side}.weight"])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA, is 'IA3'"),
        ({"bias": "all"}, "bias must be none, is 'all'"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = "),
        ({"lora_bias": True}, "lora_bias = True"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters = "),
        ({"trainable_token_indices": [1]}, "trainable_token_indices = "),
        ({"layer_replication": [[0, 4]]}, "layer_replication = "),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens = "),
        ({"new_kind_of_lora": {"x": 1}}, "new_kind_of_lora = "),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the model's own weights"),
        ({"init_lora_weights": 1}, "init_lora_weights 1 changes"),
        ({"r": 0}, "r must be a positive integer"),
        ({"r": 3}, "must have lora_A of .3, inputs."),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number above 0"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number"),
        ({"use_rslora": 1}, "use_rslora must be true or false"),
        ({"rank_pattern": {"q_proj": "4"}}, "rank_pattern: 'q_proj' must have a positive integer"),
        ({"rank_pattern": {"(a+)+b": 4}}, "must be the name of modules; other patterns are not read"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
    ],
)
def test_configs_that_are_refused(folder: Path, config: dict[str, Any], words: str) -> None:
    edit(folder, **config)
    with pytest.raises(AdapterError, match=words):
        read_adapter(folder)


def test_patterns_have_a_bound(folder: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {f"m{i}": (1, 1) for i in range(100)}
    many = make_adapter(folder / "many", shapes)
    edit(many, rank_pattern={f"n{i}": 4 for i in range(50000)})
    with pytest.raises(AdapterError, match="50000 patterns of rank_pattern and alpha_pattern for 100 modules"):
        read_adapter(many)


def without(folder: Path) -> None:
    (folder / TENSORS).rename(folder / "adapter_model.bin")


def truncated(folder: Path) -> None:
    file = folder / TENSORS
    file.write_bytes(file.read_bytes()[:-3])


def pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def tensors(**changed: np.ndarray) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        kept = load_file(folder / TENSORS)
        save_file({**kept, **{name.replace("__", "."): array for name, array in changed.items()}}, folder / TENSORS)

    return change


def replaced(array: np.ndarray) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        save_file({**load_file(folder / TENSORS), f"{PREFIX}{Q}.lora_A.weight": array}, folder / TENSORS)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without, "does not exist; adapter_model.bin is not read"),
        (truncated, "truncated"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "must hold a JSON object"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text(" " * (1 << 21)), "at most 1048576 bytes"),
        (lambda folder: pipe(folder / "adapter_config.json"), "adapter_config.json: must be a file"),
        (lambda folder: pipe(folder / TENSORS), "adapter_model.safetensors: must be a file"),
        (tensors(x__lora_magnitude_vector=np.ones(6, np.float32)), "'x.lora_magnitude_vector' is not supported"),
        (tensors(x__lora_embedding_A=np.ones((4, 6), np.float32)), "'x.lora_embedding_A' is not supported"),
        (tensors(x__lora_A__weight=np.ones((4, 6), np.float32)), "x must have lora_A.weight and lora_B.weight"),
        (
            lambda folder: tensors(**{f"{Q}.lora_A.weight": np.ones((4, 8), np.float32)})(folder),
            "are one matrix of one module",
        ),
        (replaced(np.ones((4, 8), np.int8)), "must be of one of float64, "),
        (replaced(np.ones((5, 8), np.float32)), "must have lora_A of .4, inputs."),
        (replaced(np.ones(8, np.float32)), "must have lora_A of .4, inputs."),
    ],
)
def test_files_that_are_refused(folder: Path, change: Callable[[Path], Any], words: str) -> None:
    change(folder)
    with pytest.raises(AdapterError, match=words):
        read_adapter(folder)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite(folder: Path, number: float) -> None:
    replaced(np.full((4, 8), number, np.float32))(folder)
    with pytest.raises(AdapterError, match="not finite"):
        read_adapter(folder).read(Q)


def test_a_file_that_changes_is_refused(folder: Path) -> None:
    """A mapped file that is cut short would end the process."""
    adapter = read_adapter(folder)
    os.truncate(folder / TENSORS, 100)
    with pytest.raises(AdapterError, match="was changed while it was read"):
        adapter.read(Q)


def test_ranks_have_a_bound(tmp_path: Path) -> None:
    large = make_adapter(tmp_path / "large", SHAPES, rank=130)
    with pytest.raises(AdapterError, match="rank 130, at most 128 is taken; merge the adapter with"):
        read_adapter(large)
    with pytest.raises(AdapterError, match="at most 16 is taken; raise max_lora_rank"):
        read_adapter(large, 16)


@pytest.mark.parametrize(
    ("shapes", "refused", "transposed", "words"),
    [
        ({Q: (6, 8)}, {}, False, "the model has no module 'model.layers.0.self_attn.o_proj'"),
        ({Q: (6, 8), OUT: (8, 5)}, {}, False, "8 outputs and 5 inputs in the model, and 8 and 6 in the adapter"),
        ({Q: (6, 8)}, {OUT: "is read by experts"}, False, "no adapter may change .*o_proj: it is read by experts"),
        (SHAPES, {}, True, "fan_in_fan_out must be True"),
    ],
)
def test_another_model(
    folder: Path, shapes: dict[str, tuple[int, ...]], refused: dict[str, str], transposed: bool, words: str
) -> None:
    adapter = read_adapter(folder)
    adapter.check_base(SHAPES, dict.fromkeys(SHAPES, False), {})
    with pytest.raises(AdapterError, match=words):
        adapter.check_base(shapes, dict.fromkeys(shapes, transposed), refused)
