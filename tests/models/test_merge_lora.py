"""Merged checkpoints: exact in float32, rounded once, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from support.made_adapters import make_adapter
from tensorwright.errors import AdapterError, OutputExistsError, UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.dtypes import Tensor, convert, to_float32
from tensorwright.models.merge_lora import merge_lora
from tensorwright.models.peft_adapter import read_adapter
from tensorwright.runtime.commands.cli import cli

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.7.mlp.down_proj")


@pytest.fixture
def adapter(pico_model: Path, tmp_path: Path) -> Path:
    checkpoint = open_checkpoint(pico_model)
    return make_adapter(tmp_path / "adapter", {name: checkpoint.shape(name + ".weight") for name in MODULES}, rank=5)


def test_each_matrix_is_the_rounded_sum(pico_model: Path, adapter: Path, tmp_path: Path) -> None:
    """The command, from a checkpoint in bfloat16."""
    out = tmp_path / "out" / "merged"
    done = CliRunner().invoke(cli, ["merge-lora", str(pico_model), str(adapter), str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"path": str(out), "modules": 2, "rank": 5}
    before, after, read = open_checkpoint(pico_model), open_checkpoint(out), read_adapter(adapter)
    assert set(before.names) == set(after.names)
    for name in before.names:
        old, new = before.read(name), after.read(name)
        assert new.dtype == old.dtype == "bfloat16"
        module = name.removesuffix(".weight")
        if module not in MODULES:
            np.testing.assert_array_equal(old.data, new.data)
            continue
        a, b = (side.astype(np.float64) for side in read.read(module))
        exact = to_float32(old) + read.modules[module].scale * (b @ a)
        wanted = convert(Tensor("float64", exact), "bfloat16").data
        # Products of parts of a matrix may round otherwise, which matters where a sum lies between two numbers.
        assert (wanted == new.data).mean() > 0.9999
        assert (old.data != new.data).mean() > 0.9
    assert (out / "config.json").read_bytes() == (pico_model / "config.json").read_bytes()
    assert (out / "tokenizer.json").exists()
    with pytest.raises(OutputExistsError):
        merge_lora(before, adapter, out)


def test_nothing_is_written_where_the_adapter_does_not_fit(pico_model: Path, tmp_path: Path) -> None:
    wrong = make_adapter(tmp_path / "wrong", {MODULES[0]: (384, 380)})
    with pytest.raises(AdapterError, match="384 inputs in the model"):
        merge_lora(open_checkpoint(pico_model), wrong, tmp_path / "out")
    huge = make_adapter(tmp_path / "huge", {MODULES[0]: (384, 384)}, spread=1e25)
    with pytest.raises(AdapterError, match="not finite"), np.errstate(over="ignore"):
        merge_lora(open_checkpoint(pico_model), huge, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["huge", "wrong"]


def test_a_matrix_that_is_stored_the_other_way_round(tmp_path: Path) -> None:
    """A square one, whose shape does not say so."""
    wrong = make_adapter(tmp_path / "wrong", {"h.0.attn.c_proj": (4, 4)})

    class Transposed:
        path, gguf, quantization, names = tmp_path, None, None, ("h.0.attn.c_proj.weight",)
        config: ClassVar = {"model_type": "gpt2"}

        def shape(self, name: str) -> tuple[int, ...]:
            return 4, 4

        def dtype(self, name: str) -> str:
            return "float32"

    with pytest.raises(AdapterError, match="fan_in_fan_out must be True"):
        merge_lora(Transposed(), wrong, tmp_path / "out")  # type: ignore[arg-type]


def test_quantized_weights_are_refused(pico_model: Path, adapter: Path, tmp_path: Path) -> None:
    class Quantized:
        path, gguf, quantization = pico_model, None, object()

    with pytest.raises(UnsupportedModelError, match="its weights are quantized; merge the adapter into the checkpoint"):
        merge_lora(Quantized(), adapter, tmp_path / "out")  # type: ignore[arg-type]
