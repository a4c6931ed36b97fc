"""Estimates: known models on known devices, what is refused, and what the command prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.toy_engine import write_toy_engine
from tensorwright.engine_format.kv_cache import quantized_bits
from tensorwright.errors import CheckpointError, EngineError, InvalidOptionError
from tensorwright.insight.devices.device import Device, find_device, platforms
from tensorwright.insight.estimate import place as module
from tensorwright.insight.estimate.costs import PlannedCosts, Work
from tensorwright.insight.estimate.estimate import CHUNK, Estimate, estimate
from tensorwright.insight.estimate.formula import read_vision
from tensorwright.insight.estimate.parallel import SharedCosts, sum_seconds
from tensorwright.insight.estimate.roofline import time_of
from tensorwright.insight.estimate.show import as_dict
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine.engine_dir import open_engine

LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
INTERNVL_8B = {
    "architectures": ["InternVLChatModel"],
    "model_type": "internvl_chat",
    "downsample_ratio": 0.5,
    "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
    "torch_dtype": "bfloat16",
    "llm_config": {
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 92553,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "architectures": ["InternVisionModel"],
        "model_type": "intern_vit_6b",
        "hidden_size": 1024,
        "image_size": 448,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}
SLOW = Device("a made one", platforms()["x86"], 64 << 30, 10e9, {"float32": 1e11, "int8": 1e12}, "made up for tests")


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(config: dict[str, Any]) -> Path:
        file = tmp_path / "model.json"
        file.write_text(json.dumps(config))
        return file

    return write


@pytest.fixture(scope="session")
def four_layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Estimate]:
    """Four layers of Llama 2 7B in half precision and in float32, planned once each."""
    file = tmp_path_factory.mktemp("llama") / "llama-2-7b.json"
    file.write_text(json.dumps(LLAMA_2_7B | {"num_hidden_layers": 4}))
    return {
        "float16": estimate(file, device="a100", context=4096),
        "float32": estimate(file, measured=SLOW, context=2048),
    }


@pytest.mark.slow
def test_layers_of_llama_2_7b(four_layers: dict[str, Estimate]) -> None:
    half, full = four_layers["float16"], four_layers["float32"]
    parameters = 6_738_415_616 - 28 * 202_383_360  # of the model, less those of the other layers
    assert half.subject.parameters == parameters
    assert half.memory.weights == pytest.approx(parameters * 2, rel=1e-3)  # norms in float32
    assert half.memory.token == 64 << 10
    assert half.memory.caches == 256 << 20
    assert (full.memory.token, full.memory.caches) == (128 << 10, 256 << 20)
    assert full.memory.weights == pytest.approx(parameters * 4, rel=1e-3)
    assert half.largest_batch == (80_000_000_000 - half.memory.total + half.memory.caches) // (256 << 20)
    assert half.longest_context == 4096
    assert half.subject.dtype == "float16"
    assert any("float16 is counted as bfloat16" in note for note in half.notes)
    assert half.latency.decode.bound == "bytes"
    assert half.latency.prefill.bound == "operations"


def test_an_engine(pico_engine: Path) -> None:
    found = estimate(pico_engine, measured=SLOW, batch=4, prompt=100, tokens=28)
    costs = PlannedCosts(open_engine(pico_engine).plan.read_bytes())
    assert found.memory.weights == costs.weights_bytes
    assert found.lengths.context == 128
    assert found.memory.caches == 4 * 4 * costs.groups[0].block_bytes
    assert found.memory.waste == 0
    assert found.latency.total == pytest.approx(found.latency.first + 27 * found.latency.token)
    assert [batch.sequences for batch in found.batches][:4] == [1, 2, 4, 8]
    assert found.batches[0].tokens_per_second < found.batches[3].tokens_per_second
    again = estimate(pico_engine, measured=SLOW, memory="1GiB", context=2048)
    assert again.memory.available == 1 << 30

    def fits(batch: int) -> bool:
        return estimate(pico_engine, measured=SLOW, memory="1GiB", context=2048, batch=batch).memory.fits

    assert fits(again.largest_batch)
    assert not fits(again.largest_batch + 1)
    assert again.batches[-1].bytes <= 1 << 30


def test_what_does_not_fit(pico_engine: Path) -> None:
    found = estimate(pico_engine, measured=SLOW, memory="160MB")
    assert not found.memory.fits
    assert (found.largest_batch, found.longest_context) == (0, 0)
    assert CliRunner().invoke(cli, ["estimate", str(pico_engine), "--memory", "160MB"]).output.count("does not fit")


def test_a_checkpoint_and_the_engine_of_it_agree(pico_model: Path, pico_engine: Path) -> None:
    one, other = estimate(pico_model, measured=SLOW), estimate(pico_engine, measured=SLOW)
    assert (one.memory, one.latency) == (other.memory, other.latency)
    assert one.subject.parameters == 15_735_168
    assert not one.cannot


def test_a_config_alone_says_what_the_checkpoint_does(pico_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((pico_model / "config.json").read_bytes())
    whole, alone = (estimate(model, measured=SLOW) for model in (pico_model, tmp_path))
    assert (whole.memory, whole.latency, whole.subject.parameters) == (
        alone.memory,
        alone.latency,
        alone.subject.parameters,
    )


def test_formats_change_weights_and_caches(pico_model: Path) -> None:
    plain = estimate(pico_model, measured=SLOW)
    small = estimate(pico_model, measured=SLOW, build_options={"quantize": "int4", "kv_cache_dtype": "int8"})
    assert small.memory.weights < 0.35 * plain.memory.weights
    assert small.memory.token < 0.6 * plain.memory.token
    assert small.latency.token < plain.latency.token


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_bits_of_a_cache_are_those_of_the_plan(pico_model: Path, dtype: str) -> None:
    plain, small = (
        estimate(pico_model, measured=SLOW, build_options=options) for options in ({}, {"kv_cache_dtype": dtype})
    )
    assert quantized_bits(dtype, 64) == 16 * small.memory.token / plain.memory.token


def test_an_fp8_cache_takes_the_bytes_of_int8_and_is_for_gpus(pico_model: Path) -> None:
    fp8, int8 = (
        estimate(pico_model, device="a100", build_options={"kv_cache_dtype": dtype}) for dtype in ("fp8", "int8")
    )
    assert (fp8.subject.cache_dtype, fp8.memory.token) == ("fp8", int8.memory.token)
    assert any(note.startswith("fp8 is counted as int8") for note in fp8.subject.notes)
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype must not be fp8 on target cpu"):
        estimate(pico_model, measured=SLOW, build_options={"kv_cache_dtype": "fp8"})


def test_the_time_of_a_step() -> None:
    work = [Work("matmul", "", "float32", 1e9, 1e9, size=512), Work("matmul", "", "float32", 1e6, 1e11, size=512)]
    time = time_of(work, SLOW)
    assert time.byte_seconds == pytest.approx(1e9 / (10e9 * 0.9), rel=0.15)
    assert time.operation_seconds == pytest.approx(1e11 / (1e11 * 0.8), rel=0.2)
    assert time.seconds == pytest.approx(time.byte_seconds + time.operation_seconds, rel=1e-3)
    assert (time.bound, time.intensity) == ("operations", pytest.approx(1.01e11 / 1.001e9))


def test_a_prompt_is_the_sum_of_its_chunks(pico_engine: Path) -> None:
    one, three = (estimate(pico_engine, measured=SLOW, prompt=n, tokens=1).latency.first for n in (CHUNK, 3 * CHUNK))
    assert three > 3 * one  # later chunks attend to earlier ones


def test_where_decoding_turns(pico_engine: Path) -> None:
    found = estimate(pico_engine, measured=SLOW, context=64)
    assert found.turns_at is not None
    rows = {row.sequences: row for row in found.batches}
    assert all((row.bound == "bytes") == (size < found.turns_at) for size, row in rows.items())
    fast = Device("fast", SLOW.platform, 1 << 40, 1e9, {"float32": 1e15}, "made up for tests")
    assert estimate(pico_engine, measured=fast, context=64).turns_at is None


def test_shared_by_devices(pico_engine: Path) -> None:
    costs = PlannedCosts(open_engine(pico_engine).plan.read_bytes())
    shared = SharedCosts(costs, 4, kv_heads=2)
    assert shared.weights_bytes == costs.weights_bytes / 4
    assert shared.groups[0].block_bytes == costs.groups[0].block_bytes / 2  # two heads of K and V
    alone, part = (sum(work.operations for work in each.step([(64, 64)], 1)) for each in (costs, shared))
    assert alone / 4 < part < alone / 3
    one, two = (estimate(pico_engine, device="h200", tensor_parallel=n) for n in (1, 2))
    assert two.memory.weights < one.memory.weights
    assert not any("shares a model" in line for line in two.cannot)  # the TensorRT targets do
    other = estimate(pico_engine, device="mi300x", tensor_parallel=2)
    assert any("no target of this project shares" in line for line in other.cannot)
    here = replace(SLOW, link=1e9, link_seconds=1e-5)
    found = [estimate(pico_engine, measured=replace(here, link_seconds=s), tensor_parallel=2) for s in (0.0, 1e-3)]
    assert not any("shares a model" in line for line in found[0].cannot)  # target cpu does
    layers = found[0].subject.layers
    each = [time.batches[0].token_seconds for time in found]
    assert each[1] - each[0] == pytest.approx(2 * layers * 1e-3)  # of rows so short they go whole, in one exchange
    assert sum_seconds(here, 4, 1, 1024, 8, 4) == pytest.approx(2 * (2e-5 + 2 * 3 / 4 * 8 * 1024 * 4 / 1e9))
    assert sum_seconds(here, 2, 1, 1, 1, 4) == pytest.approx(2 * (1e-5 + 4 / 1e9))
    with pytest.raises(InvalidOptionError, match="tensor_parallel: Apple M4 has no link_gb_per_s"):
        estimate(pico_engine, device="m4", tensor_parallel=2)


def test_internvl_on_an_atlas(config_of: Callable[[dict[str, Any]], Path]) -> None:
    """A family whose own code is never run: counted by the formula, its vision tower too, and not run here."""
    found = estimate(config_of(INTERNVL_8B), device="atlas-300v-pro", images=7, prompt=64, tokens=64)
    tower = found.subject.vision
    assert tower is not None
    assert tower.parameters - tower.projector == pytest.approx(304.0e6, rel=0.01)  # InternViT-300M-448px
    assert (tower.tokens, tower.passed_on) == (1025, 256)
    assert found.subject.parameters == pytest.approx(7.74e9, rel=0.01)  # InternLM2.5-7B
    assert found.lengths.prompt == 64 + 7 * 256
    assert found.memory.fits
    assert found.memory.available == 24_000_000_000
    assert found.latency.images > 0
    assert not found.subject.planned
    text = " ".join(found.cannot)
    assert "needs the checkpoint's own Python code, which is never run" in text
    assert "no target of this project runs on Ascend processors" in text
    assert "the vision tower is estimated, and not built" in text
    assert not estimate(config_of(INTERNVL_8B), device="atlas-300v-pro", build_options={"dtype": "float32"}).memory.fits


def test_vision_configs_in_other_words() -> None:
    qwen = {
        "text_config": {"hidden_size": 2048},
        "vision_config": {
            "depth": 32,
            "embed_dim": 1280,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
            "image_size": 224,
        },
    }
    tower = read_vision(qwen, "config.json")
    assert tower is not None
    assert (tower.layers, tower.width, tower.mlp) == (32, 1280, 5120)
    assert read_vision({"hidden_size": 8}, "config.json") is None
    with pytest.raises(CheckpointError, match="vision_config: has no hidden_size"):
        read_vision({"vision_config": {}, "hidden_size": 8}, "config.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be a whole number"),
        ({"context": 1}, "context must be at least 2"),
        ({"context": 100, "prompt": 80, "tokens": 30}, "context must hold prompt and answer"),
        ({"context": 4096}, "has 2048 positions, and 4096 are asked for"),
        ({"memory": "much"}, "memory must be a positive number of bytes"),
        ({"device": "abacus"}, "there is no 'abacus'"),
        ({"device": "h100", "threads": 2}, "threads is for this machine"),
        ({"images": 1}, "names no vision_config"),
        ({"build_options": {"quantize": "int4"}}, "is an engine, which has its formats: leave out quantize"),
    ],
)
def test_what_is_refused(pico_engine: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        estimate(pico_engine, **{"measured": SLOW, **options})


def test_models_that_are_none(
    tmp_path: Path, config_of: Callable[[dict[str, Any]], Path], pico_engine_onnx: Path
) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        estimate(tmp_path / "nothing", measured=SLOW)
    with pytest.raises(CheckpointError, match="model_type must name"):
        estimate(config_of({"hidden_size": 8}), measured=SLOW)
    with pytest.raises(CheckpointError, match="has no hidden_size above 0"):
        estimate(config_of({"model_type": "nobody_knows"}), measured=SLOW)
    with pytest.raises(CheckpointError, match="num_hidden_layers must be a whole number"):
        estimate(
            config_of({"model_type": "nobody_knows", "hidden_size": 8, "num_hidden_layers": "many"}), measured=SLOW
        )
    with pytest.raises(EngineError, match="is an engine of target onnx"):
        estimate(pico_engine_onnx, measured=SLOW)
    with pytest.raises(InvalidOptionError, match="float16"):
        estimate(config_of(LLAMA_2_7B), measured=SLOW, build_options={"dtype": "float16"})
    with pytest.raises(InvalidOptionError, match="chooses formats by the weights' values"):
        estimate(config_of(LLAMA_2_7B), measured=SLOW, build_options={"quantize": "mixed:4.5"})


UNKNOWN = {
    "model_type": "nobody_knows", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA_2_7B | {"num_key_value_heads": 0}, "correct the config"),
        (UNKNOWN | {"num_key_value_heads": 0}, "8 heads cannot share 0 heads"),
        (UNKNOWN | {"num_key_value_heads": 5}, "8 heads cannot share 5 heads"),
        (UNKNOWN | {"num_experts": 4, "num_experts_per_tok": 80}, "cannot take 80 of 4 experts"),
        (UNKNOWN | {"num_hidden_layers": 2_000_000_000}, "2000000000 layers are more than"),
        (UNKNOWN | {"num_hidden_layers": -3}, "num_hidden_layers must be a whole number below"),
        (INTERNVL_8B | {"downsample_ratio": "x"}, "downsample_ratio must be a number above 0"),
    ],
)
def test_configs_that_cannot_be(
    config_of: Callable[[dict[str, Any]], Path], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        estimate(config_of(config), measured=SLOW)


def test_a_tower_for_images_of_any_size_is_left_out(config_of: Callable[[dict[str, Any]], Path]) -> None:
    file = config_of(UNKNOWN | {"vision_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}})
    assert estimate(file, measured=SLOW).subject.vision is None
    with pytest.raises(InvalidOptionError, match="names no vision_config with an image_size"):
        estimate(file, measured=SLOW, images=1)


def test_a_config_of_a_quantized_checkpoint(config_of: Callable[[dict[str, Any]], Path], pico_model: Path) -> None:
    config = json.loads((pico_model / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "awq", "bits": 4}
    }
    found = estimate(config_of(config), measured=SLOW)
    assert any("names a quantization (awq), which is not counted" in note for note in found.notes)


def test_only_the_config_of_a_hub_model_is_downloaded(hub: Any, pico_model: Path) -> None:
    hub.add("org/pico", pico_model)
    found = estimate("org/pico", measured=SLOW)
    assert found.subject.parameters == 15_735_168
    assert hub.asked == ["config.json"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_here", lambda threads, linked=False: (SLOW, threads or 2))
    engine = str(write_toy_engine(tmp_path / "toy"))
    run = CliRunner().invoke(cli, ["estimate", engine, "--prompt", "60", "--tokens", "8", "--json"])
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    assert data == json.loads(json.dumps(as_dict(estimate(engine, measured=SLOW, threads=2, prompt=60, tokens=8))))
    assert data["memory"]["total"] == sum(
        data["memory"][name] for name in ("weights", "caches", "activations", "process")
    )
    shown = CliRunner().invoke(cli, ["estimate", engine, "--prompt", "60", "--tokens", "8"]).output
    assert "Memory on a made one" in shown
    assert "held up by memory" in shown
    refused = CliRunner().invoke(cli, ["estimate", engine, "--context", "9999"])
    assert isinstance(refused.exception, InvalidOptionError)


def test_the_list_of_devices() -> None:
    listed = json.loads(CliRunner().invoke(cli, ["estimate", "--list-devices", "--json"]).output)
    assert find_device("h200").name in [device["name"] for device in listed]
    assert "atlas-300i-duo" in CliRunner().invoke(cli, ["estimate", "--list-devices"]).output
