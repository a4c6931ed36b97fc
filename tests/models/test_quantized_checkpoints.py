"""Quantized checkpoints are decoded to the bits that the library which wrote them gives."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz.answers import Answered
from fuzz.json_mutator import changed
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from support.quantized_checkpoints import KINDS, MADE
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.quantized.bits import unpack_bits
from tensorwright.models.quantized.registry import read_quantization

Q = "model.layers.0.self_attn.q_proj"


def test_every_made_checkpoint_is_read():
    assert set(KINDS) == {path.name for path in MADE.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_has_the_bits_that_its_library_gives(kind):
    checkpoint = open_checkpoint(MADE / kind)
    assert checkpoint.quantization is not None
    assert checkpoint.quantization.summary == KINDS[kind]
    decoded = json.loads((MADE / kind / "decoded.json").read_text())
    assert len(decoded) == 7
    for name, wanted in decoded.items():
        tensor = checkpoint.read(name)
        digest = hashlib.sha256(np.ascontiguousarray(tensor.data).tobytes()).hexdigest()
        assert {"dtype": tensor.dtype, "shape": list(tensor.shape), "sha256": digest} == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_that_part_of_the_whole(kind):
    checkpoint, draw = open_checkpoint(MADE / kind), np.random.default_rng(0)
    whole = checkpoint.read(f"{Q}.weight").data
    for _ in range(20):
        ranges = tuple(tuple(sorted(map(int, draw.integers(0, size + 1, 2)))) for size in whole.shape)
        part = checkpoint.read_part(f"{Q}.weight", ranges).data
        np.testing.assert_array_equal(part, whole[tuple(slice(*span) for span in ranges)])


def test_names_are_those_of_the_model_before_its_quantization():
    checkpoint = open_checkpoint(MADE / "gptq-4")
    assert [name for name in checkpoint.names if name.startswith(Q)] == [f"{Q}.weight"]
    assert f"{Q}.weight" in checkpoint
    assert f"{Q}.qweight" not in checkpoint
    stored = load_file(MADE / "gptq-4" / "model.safetensors")
    assert checkpoint.stored_bytes(f"{Q}.weight") == sum(t.nbytes for n, t in stored.items() if n.startswith(Q))


@pytest.mark.parametrize("bits", range(1, 9))
def test_numbers_of_any_width(bits):
    draw = np.random.default_rng(bits)
    for count in (1, 31, 32, 33, 100):
        numbers = draw.integers(0, 1 << bits, (3, count))
        as_bits = (numbers[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(3, -1)
        padded = np.pad(as_bits, ((0, 0), (0, -as_bits.shape[1] % 32)))
        words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
        for start, end in ((0, count), (count // 3, count), (count // 2, count // 2)):
            np.testing.assert_array_equal(unpack_bits(words, bits, start, end), numbers[:, start:end])


# -- kinds that transformers decodes itself ---------------------------------------------------------------------------


def made(path: Path, tensors: dict[str, torch.Tensor], quantization: object) -> Checkpoint:
    path.mkdir()
    config = {"model_type": "llama", "quantization_config": quantization}
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return open_checkpoint(path)


def floats(*shape: int) -> torch.Tensor:
    return (200 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(torch.float8_e4m3fn)


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


@pytest.mark.parametrize("shape", [(256, 384), (3, 128, 256)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_fp8_blocks_equal_transformers(tmp_path, shape, kind):
    weight = floats(*shape)
    grid = (*shape[:-2], shape[-2] // 128, shape[-1] // 128)
    scale = torch.rand(grid, generator=torch.Generator().manual_seed(2)).to(kind)
    checkpoint = made(tmp_path / "m", {"x.weight": weight, "x.weight_scale_inv": scale}, BLOCKS)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    np.testing.assert_array_equal(checkpoint.read("x.weight").data, theirs.numpy())
    part = ((0, 2), (100, 128), (30, 200))[3 - len(shape) :]
    ours = checkpoint.read_part("x.weight", part).data
    np.testing.assert_array_equal(ours, theirs.numpy()[tuple(slice(*span) for span in part)])


def test_fp8_blocks_that_do_not_divide_the_matrix(tmp_path):
    """transformers refuses them. The blocks at the edges are cut, as DeepSeek V3's matrices of 576 rows have them."""
    weight, scale = floats(200, 130), torch.rand(2, 2)
    checkpoint = made(tmp_path / "m", {"x.weight": weight, "x.weight_scale_inv": scale}, BLOCKS)
    spread = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :130]
    np.testing.assert_array_equal(checkpoint.read("x.weight").data, (weight.float() * spread).numpy())


@pytest.mark.parametrize("shape", [(), (1,), (64, 1)])
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale"])
def test_fp8_scales_of_tensors_and_of_rows(tmp_path, shape, name):
    weight, scale = floats(64, 48), torch.rand(shape)
    tensors = {"x.weight": weight, f"x.{name}": scale, "x.input_scale": torch.ones(1)}
    checkpoint = made(tmp_path / "m", tensors, {"quant_method": "fp8"})
    assert checkpoint.names == ("x.weight",)
    np.testing.assert_array_equal(checkpoint.read("x.weight").data, (weight.float() * scale).numpy())


@pytest.mark.parametrize("blocks", [[128], [0, 128], [-128, 128], [128, 10**30], [True, 128], 128])
def test_fp8_blocks_that_are_no_sizes(tmp_path, blocks):
    tensors = {f"{Q}.weight": floats(4, 4), f"{Q}.weight_scale_inv": torch.ones(1, 1)}
    with pytest.raises(CheckpointError, match="weight_block_size of its quantization_config must be two sizes"):
        made(tmp_path / "m", tensors, {**BLOCKS, "weight_block_size": blocks})


def test_fp8_matrices_without_numbers(tmp_path):
    tensors = {f"{Q}.weight": torch.zeros(0, 4).to(torch.float8_e4m3fn), f"{Q}.weight_scale_inv": torch.ones(1)}
    with pytest.raises(CheckpointError, match="must hold numbers"):
        made(tmp_path / "m", tensors, BLOCKS)


def test_mxfp4_equals_transformers(tmp_path):
    draw = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (3, 10, 4, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(100, 140, (3, 10, 4), dtype=torch.uint8, generator=draw)
    tensors = {"experts.down_proj_blocks": blocks, "experts.down_proj_scales": scales}
    checkpoint = made(tmp_path / "m", tensors, {"quant_method": "mxfp4"})
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).float().numpy()
    assert checkpoint.shape("experts.down_proj") == theirs.shape == (3, 128, 10)
    np.testing.assert_array_equal(to_float32(checkpoint.read("experts.down_proj")), theirs)
    part = checkpoint.read_part("experts.down_proj", ((1, 3), (33, 70), (2, 9)))
    np.testing.assert_array_equal(to_float32(part), theirs[1:3, 33:70, 2:9])


def test_act_order_of_compressed_tensors(tmp_path):
    """Columns in another order, with the group of each, decode to the same columns in that order."""
    shutil.copytree(MADE / "ct-int4", tmp_path / "m")
    before = open_checkpoint(tmp_path / "m").read(f"{Q}.weight").data.copy()
    stored = load_file(tmp_path / "m/model.safetensors")
    order = torch.randperm(64, generator=torch.Generator().manual_seed(4))
    nibbles = stored[f"{Q}.weight_packed"].view(torch.uint8)
    codes = torch.stack([nibbles & 15, nibbles >> 4], -1).reshape(32, 64)[:, order]
    stored[f"{Q}.weight_packed"] = (codes[:, ::2] | codes[:, 1::2] << 4).contiguous().view(torch.int32)
    stored[f"{Q}.weight_g_idx"] = (order // 32).to(torch.int32)
    save_file(stored, tmp_path / "m/model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m")
    np.testing.assert_array_equal(checkpoint.read(f"{Q}.weight").data, before[:, order.numpy()])
    np.testing.assert_array_equal(
        checkpoint.read_part(f"{Q}.weight", ((3, 9), (5, 60))).data, before[3:9, order.numpy()[5:60]]
    )


# -- refusals ---------------------------------------------------------------------------------------------------------


METHODS = ["aqlm", "bitnet", "eetq", "fbgemm_fp8", "higgs", "hqq", "quanto", "quark", "torchao", "vptq"]


@pytest.mark.parametrize("method", METHODS)
def test_other_kinds_are_refused_by_name(tmp_path, method):
    with pytest.raises(
        UnsupportedModelError, match=f"quantized with {method} are not read; give the checkpoint before"
    ):
        made(tmp_path / "m", {"x.weight": torch.ones(2)}, {"quant_method": method})


@pytest.mark.parametrize("config", ["gptq", {}, {"quant_method": None}, {"quant_method": ["gptq"]}, 7])
def test_nameless_kinds_are_refused(tmp_path, config):
    with pytest.raises(UnsupportedModelError, match="are not read"):
        made(tmp_path / "m", {"x.weight": torch.ones(2)}, config)


def edited(tmp_path: Path, kind: str, tensors=None, **section: object) -> Checkpoint:
    """Opens a checkpoint of which tensors or entries of its quantization_config are changed; None removes one."""
    path = tmp_path / "m"
    shutil.copytree(MADE / kind, path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"].update(section)
    (path / "config.json").write_text(json.dumps(config))
    stored = {**load_file(path / "model.safetensors"), **(tensors or {})}
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, path / "model.safetensors")
    return open_checkpoint(path)


INTS = torch.zeros(64, 4, dtype=torch.int32)
BYTES = torch.full((9,), 1, dtype=torch.uint8)
NF4 = f"{Q}.weight.quant_state.bitsandbytes__nf4"


def made_state(**facts: object) -> torch.Tensor:
    sound = {"shape": [32, 64], "blocksize": 64, "dtype": "bfloat16", "nested_blocksize": 256, "nested_offset": 0.5}
    return torch.tensor(list(json.dumps({**sound, **facts}).encode()), dtype=torch.uint8)


EMPTY_GPTQ = {
    f"{Q}.qweight": torch.zeros(0, 32, dtype=torch.int32),
    f"{Q}.g_idx": torch.zeros(0, dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("kind", "section", "message"),
    [
        ("gptq-4", {"checkpoint_format": "marlin"}, "where the format is 'marlin'"),
        ("awq-4", {"version": "gemv"}, "where the format is 'gemv'"),
        ("awq-4", {"bits": 8}, "a weight has 8 bits"),
        ("gptq-4", {"bits": -4}, "a weight has -4 bits"),
        ("ct-int4", {"format": "marlin-24"}, "the format is 'marlin-24'"),
        ("ct-int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity format is 'sparse-24-bitmask'"),
        ("ct-int4", {"transform_config": {"config_groups": {}}}, "weights are rotated"),
    ],
)
def test_forms_that_are_not_read(tmp_path, kind, section, message):
    with pytest.raises(UnsupportedModelError, match=message):
        edited(tmp_path, kind, **section)


@pytest.mark.parametrize(
    ("kind", "tensors", "section", "message"),
    [
        ("gptq-4", {f"{Q}.qzeros": None}, {}, f"{Q}.qzeros is missing"),
        ("gptq-4", {f"{Q}.qweight": INTS}, {}, f"{Q}.qweight must be int32"),
        ("gptq-4", {f"{Q}.weight": torch.ones(32, 64)}, {}, f"{Q}.weight is stored beside {Q}.qweight"),
        ("gptq-4", {}, {"bits": "4"}, "bits of its quantization_config must be a whole number, not '4'"),
        ("awq-4", {f"{Q}.scales": None}, {}, f"{Q}.scales is missing"),
        ("awq-4", {f"{Q}.qzeros": INTS}, {}, f"{Q}.qzeros must be int32"),
        ("ct-int4", {f"{Q}.weight_packed": INTS}, {}, "must hold 32 rows of 64 numbers of 4 bits"),
        ("ct-int4", {f"{Q}.weight_scale": torch.ones(32, 3)}, {}, "does not fit a matrix"),
        ("ct-int4", {f"{Q}.weight_shape": None}, {}, "weight_shape is missing"),
        ("ct-int4", {}, {"config_groups": []}, "config_groups"),
        ("ct-int4-zeros", {f"{Q}.weight_zero_point": INTS}, {}, "weight_zero_point must be"),
        ("ct-w8a8", {f"{Q}.weight": None}, {}, f"{Q}.weight is missing"),
        ("ct-w8a8", {f"{Q}.weight": torch.ones(0, 64, dtype=torch.int8)}, {}, f"{Q}.weight must hold numbers"),
        ("bnb-nf4", {f"{Q}.weight.absmax": None}, {}, f"{Q}.weight.absmax is missing"),
        ("bnb-nf4", {f"{Q}.weight": BYTES}, {}, f"{Q}.weight must hold 2048 numbers of 4 bits"),
        ("bnb-nf4", {NF4: BYTES}, {}, f"{NF4} is not JSON"),
        ("bnb-nf4", {NF4: made_state(shape=[64])}, {}, "must be two sizes, not [64]"),
        ("bnb-nf4", {NF4: made_state(shape=[2**40, 64])}, {}, "must be two sizes"),
        ("bnb-nf4", {NF4: made_state(blocksize=0)}, {}, f"the blocksize of {NF4} must be from 16 to 65536, not 0"),
        ("bnb-nf4", {NF4: made_state(dtype="int8")}, {}, f"the dtype of {NF4} must be float32 or"),
        ("bnb-nf4-double", {f"{Q}.weight.nested_quant_map": None}, {}, f"{Q}.weight.nested_quant_map is missing"),
        ("bnb-nf4-double", {NF4: made_state(nested_offset="0")}, {}, "the nested_offset of"),
        ("bnb-int8", {f"{Q}.SCB": torch.ones(3)}, {}, f"{Q}.SCB must be float32 [32], is float32 [3]"),
        ("bnb-int8", {f"{Q}.weight": None}, {}, f"{Q}.weight must be an int8 matrix beside {Q}.SCB"),
        ("gptq-4", EMPTY_GPTQ, {}, f"{Q}.g_idx must hold numbers"),
        ("gptq-4", {}, {"bits": 10**30}, "bits of its quantization_config must be a whole number"),
    ],
)
def test_tensors_that_contradict_the_config(tmp_path, kind, tensors, section, message):
    with pytest.raises(CheckpointError) as caught:
        edited(tmp_path, kind, tensors, **section)
    assert message in str(caught.value)


def test_rows_of_bitsandbytes_in_another_order(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"q_proj.weight does not lie row by row \(weight_format\)"):
        edited(tmp_path, "bnb-int8", {f"{Q}.weight_format": torch.tensor(2, dtype=torch.uint8)})


def test_groups_that_do_not_exist_are_refused_when_they_are_read(tmp_path):
    checkpoint = edited(tmp_path, "gptq-4", {f"{Q}.g_idx": torch.full((64,), 2, dtype=torch.int32)})
    with pytest.raises(CheckpointError, match="g_idx must name groups from 0 to 1, has 2 to 2"):
        checkpoint.read(f"{Q}.weight")


@pytest.mark.parametrize("kind", ["awq-4", "ct-int4-zeros", "ct-fp8-blocks", "gptq-3"])
def test_any_section_of_the_config_is_read_or_refused(kind):
    """Changes of the values of quantization_config end with a typed error or with none."""
    section = json.loads((MADE / kind / "config.json").read_text())["quantization_config"]
    stored = open_checkpoint(MADE / kind).stored
    refused = 0
    for seed in range(int(os.environ.get("TENSORWRIGHT_FUZZ_COUNT", "300"))):
        text = changed(json.dumps(section).encode(), 1 << 20, seed)
        assert text is not None
        found = None
        with Answered(CheckpointError, UnsupportedModelError):
            found = read_quantization(json.loads(text), stored, "m")
        refused += found is None
        assert found is None or len(found.summary) < 1000
    assert refused
