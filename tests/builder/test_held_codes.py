"""Codes of a quantized checkpoint that a format holds are packed as they are, and other rows are rounded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.gguf_files import GGUF
from support.quantized_checkpoints import MADE
from tensorwright.builder.build import build
from tensorwright.builder.emit.quantized_weights import PackedPanels, QuantizingWeights
from tensorwright.builder.rebuild import rebuild
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import CheckpointError, InvalidOptionError, TensorwrightWarning
from tensorwright.ir.weights import Concat, Every, Ref, Slice, Stack, Transpose
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.held_codes import read_codes
from tensorwright.models.quantized.bits import unpack_bits
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights, unpack

LAYER = "model.layers.0"
Q, K, V = (Ref(f"{LAYER}.self_attn.{name}_proj.weight") for name in "qkv")


def exact_values(folder: str, ref: Ref) -> np.ndarray:
    """Codes times scales in float32, of the tensors of compressed-tensors as they are stored."""
    stored = load_file(MADE / folder / "model.safetensors")
    own = {name.rpartition(".")[2]: t for name, t in stored.items() if name.startswith(ref.name.removesuffix("weight"))}
    section = json.loads((MADE / folder / "config.json").read_text())["quantization_config"]
    bits = section["config_groups"]["group_0"]["weights"]["num_bits"]
    n, k = own["weight_shape"].tolist() if "weight_shape" in own else own["weight"].shape
    middle = 1 << bits - 1
    if "weight_packed" in own:
        codes = unpack_bits(own["weight_packed"].numpy(), bits, 0, k).astype(np.float32) - middle
    else:
        codes = own["weight"].float().numpy()
    scales = own["weight_scale"].float().numpy()
    each = k // scales.shape[1]
    if "weight_zero_point" in own:
        zeros = unpack_bits(own["weight_zero_point"].numpy().T, bits, 0, n).T.astype(np.float32) - middle
        codes = codes - zeros.repeat(each, 1)
    return codes * scales.repeat(each, 1)


def packed_values(checkpoint: Checkpoint, expr, name: str) -> np.ndarray:
    fmt = parse_format(name)
    rows, k = expr.shape(checkpoint)
    return dequantized(unpack(PackedPanels(checkpoint).panels(expr, fmt, 0, rows), fmt, rows, k), k)


HELD = [
    ("ct-int4", "int4:g32"),
    ("ct-int4", "int8:g32"),
    ("ct-w8a8", "w8a8"),
    ("ct-w8a8", "int8:g32"),
    ("ct-w8a8", "int8:g128"),
    ("ct-int3-rows", "int4:g64"),
    ("ct-int3-rows", "int8:g32"),
    ("ct-int4", "uint4:g32"),
    ("ct-w8a8", "uint8:g64"),
    ("ct-int4-zeros", "uint4:g32:fp16"),
    ("ct-int4-zeros", "int8:g32:fp16"),
    ("ct-int3-rows", "uint3:g32"),
    ("ct-fp8", "fp8"),
    ("ct-fp8", "fp8:g64"),
]


@pytest.mark.parametrize(("folder", "name"), HELD)
def test_codes_are_kept(folder, name):
    np.testing.assert_array_equal(
        packed_values(open_checkpoint(MADE / folder), Q, name), exact_values(folder, Q), strict=True
    )


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("gptq-4", "uint4:g32:fp16"),
        ("gptq-4", "int4:g32:fp16"),
        ("gptq-8", "uint8:g32:fp16"),
        ("gptq-3", "uint4:g32:fp16"),
        ("gptq-3", "uint3:g32:fp16"),
        ("gptq-2-v2", "uint4:g32:fp16"),
        ("gptq-2-v2", "uint2:g32:fp16"),
        ("awq-4", "uint4:g32:fp16"),
        ("awq-4", "uint8:g32:fp16"),
    ],
)
def test_float16_scales_and_zero_points_are_kept(folder, name):
    """Decoded weights are the same products, rounded to float16."""
    checkpoint, fmt = open_checkpoint(MADE / folder), parse_format(name)
    rows, k = Q.shape(checkpoint)
    held = read_codes(Q, checkpoint, fmt, ((0, rows), (0, k)))
    assert held is not None
    assert held.fits.all()
    values, decoded = packed_values(checkpoint, Q, name), checkpoint_values(checkpoint)
    assert (np.abs(values - decoded) <= 2.0**-11 * np.abs(values) + 2.0**-25).all()
    np.testing.assert_array_equal(values.astype(np.float16), decoded)


@pytest.mark.parametrize("name", ["w8a8", "int8:g32"])
def test_codes_of_bitsandbytes_are_kept(name):
    """An engine's scale is the product of the two numbers that the library multiplies one after the other."""
    checkpoint = open_checkpoint(MADE / "bnb-int8")
    held = read_codes(Q, checkpoint, parse_format(name), ((0, 32), (0, 64)))
    assert held is not None
    assert held.fits.all() == (name == "w8a8")  # int8:g32 has bfloat16 scales
    if held.fits.all():
        np.testing.assert_allclose(packed_values(checkpoint, Q, name), checkpoint_values(checkpoint), rtol=2**-22)


@pytest.mark.parametrize(
    ("file", "weight", "block", "name"),
    [
        ("llama-q4_0", Q.name, "Q4_0", "int4:g32:fp16"),
        ("llama-q4_0", "model.embed_tokens.weight", "Q4_0", "uint4:g32:fp16"),
        ("llama-q8_0", K.name, "Q8_0", "int8:g32:fp16"),
        ("llama-mixed", None, "Q5_0", "int8:g32:fp16"),
        ("llama-mixed", None, "IQ4_NL", "int8:g32:fp16"),
        ("llama-mixed", None, "MXFP4", "mxfp4"),
    ],
)
def test_blocks_of_gguf_files_are_kept(file, weight, block, name):
    checkpoint = open_checkpoint(GGUF / f"{file}.gguf")
    kinds = {part: each.name for stored in checkpoint.stored.files for part, each in stored.blocks.items()}
    of_block = [each for each in checkpoint.names if kinds.get(checkpoint.decoded(each).parts[0]) == block]
    expr = Ref(weight or of_block[0])
    assert expr.name in of_block
    np.testing.assert_array_equal(
        packed_values(checkpoint, expr, name), to_float32(checkpoint.read(expr.name)), strict=True
    )


@pytest.mark.parametrize(("folder", "name"), [("ct-int4", "int4:g64"), ("ct-w8a8", "int4:g32"), ("ct-fp8", "int8:g32"),
                                              ("ct-int4-zeros", "int8:g32"), ("gptq-4-order", "int8:g32")])  # fmt: skip
def test_what_no_format_holds_is_rounded(folder, name):
    """Groups that are wider than the checkpoint's, fewer bits, floats, scales that bfloat16 lacks, and act-order."""
    checkpoint = open_checkpoint(MADE / folder)
    lost = packed_values(checkpoint, Q, name) - checkpoint_values(checkpoint)
    assert 0 < np.abs(lost).max() < 0.2 * np.abs(checkpoint_values(checkpoint)).max()


def test_no_codes_are_kept_in_a_sparse_format():
    """Two of each 4 weights are left out, and the others are rounded as those of any checkpoint."""
    checkpoint, fmt = open_checkpoint(MADE / "ct-int4"), parse_format("int8:g32:2:4")
    want = dequantized(quantize_weights(checkpoint_values(checkpoint), fmt), Q.shape(checkpoint)[1])
    assert np.count_nonzero(want.reshape(len(want), -1, 4), axis=-1).max() == 2
    np.testing.assert_array_equal(packed_values(checkpoint, Q, str(fmt)), want, strict=True)


def checkpoint_values(checkpoint: Checkpoint) -> np.ndarray:
    return to_float32(checkpoint.read(Q.name))


@pytest.mark.parametrize(("folder", "name"), [("ct-int4", "int4:g32"), ("ct-int4-zeros", "uint4:g32:fp16")])
def test_rows_are_cut_taken_in_turns_and_joined(folder, name):
    checkpoint = open_checkpoint(MADE / folder)
    q, k, v = (exact_values(folder, ref) for ref in (Q, K, V))
    joined = Concat((Slice(Q, 0, 5, 32), Every(K, 0, 1, 3), V), 0)
    np.testing.assert_array_equal(packed_values(checkpoint, joined, name), np.concatenate([q[5:], k[1::3], v]))
    experts = Concat((Stack((Q, K)), Stack((V, Q))), 1)
    fmt = parse_format(name)
    second = PackedPanels(checkpoint).panels(experts, fmt, 16, 48, matrix=1)
    values = dequantized(unpack(second, fmt, 32, 64), 64)
    np.testing.assert_array_equal(values, np.concatenate([k, q])[16:48])


def test_a_panel_that_does_not_fit_is_rounded_alone(tmp_path):
    """The scale of row 20 has more digits than bfloat16. Every cut into panels gives the same bytes."""
    shutil.copytree(MADE / "ct-int4", tmp_path / "m")
    stored = load_file(tmp_path / "m/model.safetensors")
    name = f"{LAYER}.self_attn.q_proj.weight_scale"
    scales = stored[name].float()
    scales[20] *= 1.3 + 2**-12
    save_file({**stored, name: scales}, tmp_path / "m/model.safetensors")
    checkpoint, exact = open_checkpoint(tmp_path / "m"), exact_values("ct-int4", Q)
    held = read_codes(Q, checkpoint, parse_format("int4:g32"), ((0, 32), (0, 64)))
    assert held is not None
    assert held.panels().tolist() == [True, False]
    values = packed_values(checkpoint, Q, "int4:g32")
    np.testing.assert_array_equal(values[:16], exact[:16])
    assert not np.array_equal(values[20], checkpoint_values(checkpoint)[20])
    fmt, packed = parse_format("int4:g32"), PackedPanels(checkpoint)
    parts = [packed.panels(Q, fmt, start, start + 16) for start in (0, 16)]
    np.testing.assert_array_equal(np.concatenate(parts), packed.panels(Q, fmt, 0, 32))
    verified = QuantizingWeights(checkpoint).quantized(Q, fmt)
    np.testing.assert_array_equal(dequantized(verified, 64), values)


@pytest.mark.parametrize("scale", [torch.inf, torch.nan])
def test_scales_that_are_no_numbers_are_refused(tmp_path, scale):
    shutil.copytree(MADE / "ct-int4", tmp_path / "m")
    stored = load_file(tmp_path / "m/model.safetensors")
    stored[f"{LAYER}.self_attn.q_proj.weight_scale"][3, 1] = scale
    save_file(stored, tmp_path / "m/model.safetensors")
    with pytest.raises(CheckpointError, match="holds an infinity or a NaN"):
        packed_values(open_checkpoint(tmp_path / "m"), Q, "int4:g32")


def mxfp4_checkpoint(path: Path, exponents: np.ndarray) -> Checkpoint:
    """Experts [2, 64, 48] of random E2M1 numbers. exponents: uint8 [2, 48, 2]."""
    shutil.copytree(MADE / "ct-int4", path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    blocks = torch.randint(0, 256, (2, 48, 2, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    blocks[1, 5] &= 0x99  # Half and nothing alone: the packer that rounds takes other codes for the same numbers.
    save_file({"x_blocks": blocks, "x_scales": torch.from_numpy(exponents)}, path / "model.safetensors")
    return open_checkpoint(path)


EXPERTS = Transpose(Ref("x"), 1, 2)
ALTERNATING = Concat((Every(EXPERTS, 1, 0, 2), Every(EXPERTS, 1, 1, 2)), 1)
"""Rows of gate and up take turns in the checkpoint of gpt-oss."""


@pytest.mark.parametrize("name", ["mxfp4", "int8:g32", "uint8:g32", "int8:g32:fp16"])
def test_experts_of_mxfp4_are_kept(tmp_path, name):
    exponents = np.random.default_rng(6).integers(115, 130, (2, 48, 2)).astype(np.uint8)
    checkpoint, fmt = mxfp4_checkpoint(tmp_path / "m", exponents), parse_format(name)
    held = read_codes(ALTERNATING, checkpoint, fmt, ((0, 2), (0, 48), (0, 64)))
    assert held is not None
    assert held.fits.all()
    decoded = to_float32(checkpoint.read("x")).transpose(0, 2, 1)
    for i in range(2):
        panels = PackedPanels(checkpoint).panels(ALTERNATING, fmt, 0, 48, matrix=i)
        exact = np.concatenate([decoded[i, ::2], decoded[i, 1::2]])
        np.testing.assert_array_equal(dequantized(unpack(panels, fmt, 48, 64), 64), exact, strict=True)


@pytest.mark.parametrize("name", ["mxfp4", "int8:g32"])
def test_the_least_and_the_largest_exponents_of_mxfp4(tmp_path, name):
    """Half of the powers of bytes 0 and 1 is denormal, so only groups of zeros have them. 255 is no number."""
    exponents = np.full((2, 48, 2), 120, np.uint8)
    exponents[0, :5, 1] = [0, 1, 2, 252, 255]
    checkpoint, fmt = mxfp4_checkpoint(tmp_path / "m", exponents), parse_format(name)
    held = read_codes(EXPERTS, checkpoint, fmt, ((0, 1), (0, 48), (0, 64)))
    assert held is not None
    assert held.fits[0].tolist() == [False, False, True, True, False] + [True] * 43
    assert held.scales[0, 2:4, 1].tolist() == [2.0**-126, 2.0**124]
    np.testing.assert_array_equal(
        (held.values[0] * held.scales[0, ..., None]).reshape(48, 64)[2:4],
        to_float32(checkpoint.read("x"))[0].T[2:4],
    )
    with pytest.raises(CheckpointError, match="holds an infinity or a NaN"):
        PackedPanels(checkpoint).panels(EXPERTS, fmt, 0, 48)


def test_products_beyond_float32_are_refused(tmp_path):
    exponents = np.full((2, 48, 2), 254, np.uint8)
    with pytest.raises(CheckpointError, match="holds an infinity or a NaN"):
        PackedPanels(mxfp4_checkpoint(tmp_path / "m", exponents)).panels(EXPERTS, parse_format("mxfp4"), 0, 48)


@pytest.mark.parametrize(("folder", "asked", "formats"), [
    ("ct-int4", None, "int4:g32"), ("ct-w8a8", "w8a8,embedding=none,lm_head=none", "w8a8"),
    ("ct-int4-zeros", "kept", "uint4:g32:fp16"), ("awq-4", None, "uint4:g32:fp16"), ("gptq-8", None, "int8:g32:fp16"),
    ("ct-fp8-tensor", None, "fp8"), ("ct-fp8-blocks", None, "fp8:g32"),
])  # fmt: skip
def test_an_engine_loses_nothing(tmp_path, folder, asked, formats):
    """Without --quantize a matrix gets the smallest format that holds it, and what has no codes stays."""
    made = build(MADE / folder, tmp_path / "engine", quantize=asked, accuracy="none").config
    record = made["quantization"]
    named = record["spec"].split(",")
    assert named[:3] == [formats, "embedding=none", "lm_head=none"]
    assert set(named[3:]) <= {
        f"{LAYER}.{name}.weight=fp8" for name in ("self_attn.o_proj", "mlp.down_proj")
    }  # One block.
    assert made["build_options"]["quantize"] == (asked or "kept")
    assert record.get("choice") == (None if asked and "w8a8" in asked else {"method": "kept", "decoded": []})
    errors = record["weight_errors"]
    assert set(errors) >= {"self_attn.q_proj+k_proj+v_proj", "mlp.gate_proj+up_proj", "mlp.down_proj"}
    assert all(error == 0 for row in errors.values() for error in row)


@pytest.mark.parametrize(("scale", "name"), [("float32", "fp8:g128"), ("bfloat16", "fp8:g64")])
def test_e4m3_in_blocks_is_kept(tmp_path, scale, name):
    """Blocks of 128 x 128 as DeepSeek and Qwen store them, of rows that a block does not divide, for two experts. One
    scale for a row cannot hold them."""
    shutil.copytree(MADE / "ct-int4", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(3)
    numbers = torch.randn((2, 150, 256), generator=draw).to(torch.float8_e4m3fn)
    numbers[0, 3, :4] = torch.tensor([448.0, -448.0, 2.0**-9, -0.0]).to(torch.float8_e4m3fn)
    scales = torch.rand((2, 2, 2), generator=draw).to(getattr(torch, scale))
    save_file({"x": numbers, "x_scale_inv": scales}, tmp_path / "m/model.safetensors")
    checkpoint, fmt = open_checkpoint(tmp_path / "m"), parse_format(name)
    assert read_codes(Ref("x"), checkpoint, parse_format("fp8"), ((0, 2), (16, 150), (0, 256))) is None
    spread = scales.float().repeat_interleave(128, 1)[:, :150].repeat_interleave(128, 2)
    exact = (numbers.float() * spread).numpy()
    for expert in range(2):
        panels = PackedPanels(checkpoint).panels(Ref("x"), fmt, 16, 150, matrix=expert)
        np.testing.assert_array_equal(dequantized(unpack(panels, fmt, 134, 256), 256), exact[expert, 16:])


def test_what_no_format_holds_is_decoded_and_named(tmp_path):
    """The columns of groups of act-order are no neighbours; two matrices of this checkpoint have them in order."""
    checkpoint = open_checkpoint(MADE / "gptq-4-order")
    with pytest.warns(TensorwrightWarning, match="5 quantized matrices are decoded, for no format of target cpu holds"):
        made = build(checkpoint.path, tmp_path / "engine", accuracy="none", keep_weights=True).config
    formats = made["quantization"]["formats"]
    held = {name: row[0] for name, row in formats.items() if row[0] != "none"}
    assert held == {"self_attn.o_proj": "uint4:g32:fp16", "mlp.down_proj": held["mlp.down_proj"]}
    assert made["quantization"]["choice"]["decoded"] == [
        *(f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv"),
        *(f"{LAYER}.mlp.{name}_proj.weight" for name in ("gate", "up")),
    ]
    for name, row in made["quantization"]["weight_errors"].items():
        assert (name, row) in ((name, [0.0]) for name in held)
    config = EngineConfig.from_dict(made, tmp_path)
    with pytest.raises(InvalidOptionError, match="quantize kept needs the codes of the checkpoint"):
        rebuild(tmp_path / "engine", config, tmp_path / "again")
    plain = rebuild(tmp_path / "engine", config, tmp_path / "plain", model=checkpoint.path, quantize=None)
    assert plain.config["build_options"]["quantize"] == "none"
    assert not plain.config["quantization"]["weight_errors"]


def in_one_order(folder: Path) -> Path:
    """A checkpoint with act-order whose products of one value have one order, as GPTQ makes them from their inputs."""
    shutil.copytree(MADE / "gptq-4-order", folder)
    tensors = load_file(folder / "model.safetensors")
    for first, *others in (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.gate", "mlp.up")):
        for other in others:
            tensors[f"{LAYER}.{other}_proj.g_idx"] = tensors[f"{LAYER}.{first}_proj.g_idx"].clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("quantize", [None, "uint4:g32:fp16,embedding=none,lm_head=none"])
def test_codes_with_act_order_are_kept_in_the_order_of_their_groups(tmp_path, quantize):
    """Every matrix has the checkpoint's weights, and products read their inputs in the same order."""
    path = in_one_order(tmp_path / "model")
    options = {"dtype": "float32", "accuracy_tokens": 32, "verify": True}
    made = build(path, tmp_path / "engine", quantize=quantize, **options).config
    record = made["quantization"]
    formats = record.get("formats", {}).values()
    assert {row[0] for row in formats} <= {"none", "uint4:g32:fp16"}
    assert {row[0] for row in record["weight_errors"].values()} == {0.0}
    assert len(record["weight_errors"]) == 4
    assert made["passes"]["order_columns"] == 2
    graph = (tmp_path / "engine/graph.txt").read_text()
    assert graph.count("= take_columns(") == 2
    # Only the inputs are rounded, to 8 bits in groups: as much as without act-order.
    assert max(row[0] for row in made["accuracy"]["output_errors"].values()) < 0.01
    config = EngineConfig.from_dict(made, tmp_path)
    again = rebuild(tmp_path / "engine", config, tmp_path / "again", model=path)
    for name in ("graph.txt", "cpu/weights.bin", "cpu/plan.bin"):
        assert (again.path / name).read_bytes() == (tmp_path / "engine" / name).read_bytes()


def test_a_coarser_format_says_what_it_loses(tmp_path):
    spec = "int4:g64,embedding=none,lm_head=none"
    made = build(MADE / "ct-int4", tmp_path / "engine", quantize=spec, accuracy="none")
    assert made.config["quantization"]["weight_errors"]["self_attn.q_proj+k_proj+v_proj"][0] > 0.01
