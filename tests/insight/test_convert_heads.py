"""Conversion of heads: the means, what is kept, what is refused, and what it costs pico."""

from __future__ import annotations

import bisect
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from support.tiny_models import make_variant
from tensorwright.errors import CheckpointError, InvalidOptionError, OutputExistsError, UnsupportedModelError
from tensorwright.insight.convert_heads.convert import convert
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.convert_heads import convert_heads, read_heads
from tensorwright.models.dtypes import convert as to_type
from tensorwright.runtime.commands.cli import cli


def floats(checkpoint: Checkpoint, name: str) -> np.ndarray:
    return to_type(checkpoint.read(name), "float32").data


def test_each_head_is_the_mean_of_its_group(pico_model: Path, tmp_path: Path) -> None:
    before = open_checkpoint(pico_model)
    heads = convert_heads(before, tmp_path / "out", 1)
    assert (heads.queries, heads.before, heads.after, heads.pooled, heads.head_dim) == (6, 2, 1, 2, 64)
    after = open_checkpoint(tmp_path / "out")
    assert after.config["num_key_value_heads"] == 1
    assert after.names == before.names
    for name in before.names:
        old, new = floats(before, name), floats(after, name)
        if "k_proj" in name or "v_proj" in name:
            mean = (old[:64].astype(np.float64) + old[64:]) / 2
            np.testing.assert_allclose(new, mean, rtol=2**-8, atol=1e-30)  # rounded to bfloat16
        else:
            np.testing.assert_array_equal(old, new)
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "phi3", "olmo2"])
def test_other_families_still_trace(variant: str, tmp_path: Path) -> None:
    """Biases, norms of one head and of all, and one matrix for q, k and v."""
    model = make_variant(tmp_path / "model", variant, seed=3)
    made = convert(model, tmp_path / "out", 1, text=None if variant == "qwen2" else TEXT)
    assert made.after is not None
    assert made.before is not None
    assert made.after.kv_bytes == made.before.kv_bytes / made.heads.pooled
    assert np.isfinite(made.after.perplexity)


TEXT = Path(bisect.__file__)
"""What is measured where the numbers do not matter: a short file."""


def test_equal_heads_change_nothing(pico_model: Path, tmp_path: Path) -> None:
    """A model whose heads of K and V are equal computes the same with one of them."""
    model = shutil.copytree(pico_model, tmp_path / "model")
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            tensors[name] = tensor[:64].repeat(2, 1).contiguous()
    save_file(tensors, model / "model.safetensors")
    made = convert(model, tmp_path / "out", 1, text=TEXT)
    assert made.after.perplexity == pytest.approx(made.before.perplexity, rel=1e-6)


def test_what_it_costs_pico(pico_model: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(
        cli, ["convert-heads", str(pico_model), str(tmp_path / "out"), "--kv-heads", "1", "--text", str(TEXT), "--json"]
    )
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    before, after = data["measured"]["perplexity"]
    assert after > 1.2 * before  # the mean of two heads that were trained apart
    assert data["measured"]["kv_bytes_per_token"] == [4096.0, 2048.0]
    assert data["kv_heads"] == [2, 1]


def test_what_is_refused(pico_model: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(pico_model)
    for count in (0, 2, 3, -1):
        with pytest.raises(
            InvalidOptionError, match="kv_heads must divide the model's 2 heads of K and V, and be fewer: 1;"
        ):
            read_heads(checkpoint, count)
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputExistsError, match="exists"):
        convert_heads(checkpoint, tmp_path / "there", 1)
    with pytest.raises(OutputExistsError, match="exists"):
        convert(pico_model, tmp_path / "there", 1, measure=False)
    assert not list((tmp_path / "there").iterdir())
    with pytest.raises(CheckpointError):
        convert(tmp_path / "nothing", tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gpt2", "deepseek_v2_experts"])
def test_other_ways_to_keep_heads_are_refused(variant: str, tmp_path: Path) -> None:
    model = make_variant(tmp_path / "model", variant, seed=3)
    with pytest.raises(
        (UnsupportedModelError, CheckpointError), match=r"otherwise than in k_proj|must give num_attention"
    ):
        convert(model, tmp_path / "out", 1)
    assert not list(tmp_path.glob("*out*"))


def test_a_failed_write_leaves_nothing(pico_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("tensorwright.models.convert_heads.write_tensors", fail)
    with pytest.raises(OSError, match="no space"):
        convert_heads(open_checkpoint(pico_model), tmp_path / "out", 1)
    assert not list(tmp_path.iterdir())
