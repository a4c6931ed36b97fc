"""GGUF files are read as transformers reads them: each weight's bits, the config; what is no sound file is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from fuzz.answers import Answered

from support.gguf_files import GGUF, KINDS, entry, header, padded, tensor, text
from tensorwright.builder.trace.load_model import load_config, load_model
from tensorwright.builder.trace.weight_names import find_weights
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.gguf.gguf_file import GgufFile
from tensorwright.models.read_weights import evaluate

OURS = {"attention_bias", "dtype", "head_dim", "pad_token_id", "query_pre_attn_scalar"}
"""What transformers does not read of a file, and takes from its class."""
IGNORED = {"_model_name_or_path", "quantization_config", "architectures", "unk_token_id"}


def oracle(name: str) -> dict:
    return json.loads((GGUF / f"{name}.json").read_text())


def test_every_made_file_is_read():
    assert {path.stem for path in GGUF.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_every_weight_has_the_bits_that_transformers_gives(name):
    checkpoint = open_checkpoint(GGUF / f"{name}.gguf")
    assert checkpoint.quantization is not None
    assert checkpoint.quantization.summary == KINDS[name]
    found = find_weights(load_model(checkpoint, "float32"), checkpoint).expressions
    wanted = oracle(name)["weights"]
    assert set(wanted) <= set(found)
    for each, facts in wanted.items():
        values = np.ascontiguousarray(to_float32(evaluate(found[each], checkpoint)))
        assert {"shape": list(values.shape), "sha256": hashlib.sha256(values.tobytes()).hexdigest()} == facts, each


@pytest.mark.parametrize("name", KINDS)
def test_the_config_is_that_of_transformers(name):
    ours, theirs = load_config(open_checkpoint(GGUF / f"{name}.gguf")).to_diff_dict(), oracle(name)["config"]
    for key in {*ours, *theirs} - OURS - IGNORED:
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, float) and isinstance(other, float):
            mine, other = np.float32(mine), np.float32(other)  # ours is the shortest decimal of the file's float32
        assert mine == other, key


def test_biases_that_transformers_leaves_out_are_read():
    """Its config of Llama has no biases, whatever the file holds."""
    checkpoint = open_checkpoint(GGUF / "llama-f16.gguf")
    biases = [name for name in checkpoint.names if name.endswith("bias")]
    assert len(biases) == 4
    assert checkpoint.config["attention_bias"]
    stored = GgufFile(GGUF / "llama-f16.gguf")
    halves = stored.read("blk.0.attn_k.bias").data.reshape(2, -1, 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(checkpoint.read("model.layers.0.self_attn.k_proj.bias").data, halves)


@pytest.mark.parametrize("name", ["llama-mixed", "llama-q8_0"])
def test_a_part_is_that_part_of_the_whole(name):
    checkpoint, draw = open_checkpoint(GGUF / f"{name}.gguf"), np.random.default_rng(0)
    for each in checkpoint.names:
        whole = checkpoint.read(each).data
        for _ in range(4):
            ranges = tuple(tuple(sorted(map(int, draw.integers(0, size + 1, 2)))) for size in whole.shape)
            part = checkpoint.read_part(each, ranges).data
            np.testing.assert_array_equal(part, whole[tuple(slice(*span) for span in ranges)])


def test_queries_of_gemma_are_scaled_by_the_width_of_heads():
    """transformers takes 256, whatever the model; llama.cpp takes the width of heads, but in the models of 27 B."""
    for name in ("gemma2", "gemma3"):
        assert open_checkpoint(GGUF / f"{name}.gguf").config["query_pre_attn_scalar"] == 16


def test_the_type_that_a_file_runs_in():
    types = {name: open_checkpoint(GGUF / f"{name}.gguf").native_dtype for name in KINDS}
    assert types == dict.fromkeys(KINDS, "bfloat16") | {"llama-f16": "float16", "qwen2": "float32"}


def test_the_text_side_of_the_metadata():
    checkpoint = open_checkpoint(GGUF / "llama-q4_0.gguf")
    assert (checkpoint.bos_token_id, checkpoint.eos_token_ids) == (0, [1])
    assert "<|end|>" in checkpoint.chat_templates["default"]
    assert checkpoint.tokenizer_config["bos_token"] == "<|begin|>"
    assert open_checkpoint(GGUF / "qwen2.gguf").older_tokenizer_files == []


# -- where files are ---------------------------------------------------------------------------------------------------


def test_a_directory_with_one_file(tmp_path):
    shutil.copy(GGUF / "qwen2.gguf", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).path == tmp_path / "qwen2.gguf"
    shutil.copy(GGUF / "qwen2.gguf", tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files, other.gguf, qwen2.gguf; give one of them"):
        open_checkpoint(tmp_path)


def in_parts(folder: Path, count: int = 2) -> list[Path]:
    """Writes qwen2.gguf in two parts, as llama-gguf-split does: the first has the metadata, the second a half."""
    whole = GgufFile(GGUF / "qwen2.gguf")
    data = (GGUF / "qwen2.gguf").read_bytes()
    start = data.index(text("token_embd.weight") + struct.pack("<I", 2))
    names, splits = list(whole.tensors), [text("split.count") + struct.pack("<IH", 2, count)]
    splits.append(text("split.tensors.count") + struct.pack("<Ii", 5, len(names)))
    old = data[24:start]
    paths = []
    for number, some in enumerate((names[:5], names[5:]), 1):
        entries, blobs, offset = [], [], 0
        for name in some:
            info = whole.tensors[name]
            entries.append(tensor(name, info.shape[::-1], 0, offset))
            blobs.append(padded(data[info.begin : info.end]))
            offset += len(blobs[-1])
        known = struct.unpack("<Q", data[16:24])[0] if number == 1 else 0
        made = header([old if number == 1 else b"", *splits], entries, counts=(len(some), known + 2))
        paths.append(folder / f"m-{number:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(padded(made) + b"".join(blobs))
    return paths


def test_a_model_in_parts(tmp_path):
    first, second = in_parts(tmp_path)
    whole = open_checkpoint(GGUF / "qwen2.gguf")
    for path in (first, tmp_path):
        checkpoint = open_checkpoint(path)
        assert checkpoint.names == whole.names
        assert checkpoint.source_files == [first, second]
        for name in whole.names:
            np.testing.assert_array_equal(checkpoint.read(name).data, whole.read(name).data)
    with pytest.raises(CheckpointError, match=r"is a later part of its model; give m-00001-of-00002.gguf"):
        open_checkpoint(second)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"first of 2 parts, of which are missing: m-00002-of-00002.gguf"):
        open_checkpoint(first)
    first.rename(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"must be called NAME-00001-of-00002\.gguf"):
        open_checkpoint(tmp_path / "m.gguf")


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
        open_checkpoint(path)
    return str(caught.value)


MANY = struct.pack("<I", 9)  # the type of a list
SOUND = [entry("general.architecture", "llama")]
EMBEDDING = tensor("token_embd.weight", (4, 2))
OVERLAP = [tensor("a", (4,)), tensor("b", (4,), offset=0)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the magic at offset 0 takes 4 bytes, and 0 are left"),
        (b"PK\3\4" + bytes(30), 'must begin with "GGUF"'),
        (header([], [], version=1), "is GGUF version 1; little-endian files of version 2 and 3 are read"),
        (header([], [], version=3 << 24), "is big-endian"),
        (header([], [], counts=(2**60, 0)), "announces 1152921504606846976 tensors"),
        (header([], [], counts=(0, 2**21)), "announces 0 tensors and 2097152 metadata"),
        (header([], [], counts=(1 << 20, 0)), "takes 8 bytes, and 0 are left; it is truncated"),
        (header([struct.pack("<Q", 2**62)], []), "a metadata key at offset 32 announces 4611686018427387904 bytes"),
        (header([text("k") + struct.pack("<IQ", 8, 2**40)], []), "announces 1099511627776 bytes"),
        (header([text("k") + MANY + struct.pack("<IQ", 4, 2**61)], []), "the list 'k' at offset"),
        (header([text("k") + MANY + struct.pack("<IQ", 8, 2**61)], []), "the list 'k' at offset"),
        (header([text("k") + MANY + struct.pack("<IQ", 9, 1)], []), "the list 'k' holds values of type 9"),
        (header([text("k") + struct.pack("<I", 13)], []), "the value of 'k' is of type 13"),
        (header([entry("k", 1), entry("k", 2)], []), "has the metadata 'k' twice"),
        (header([struct.pack("<Q", 2) + b"\xff\xfe"], []), "is no UTF-8"),
        (header([entry("general.alignment", 33)], []), "general.alignment must be a power of two, not 33"),
        (header([entry("general.alignment", "8")], []), "general.alignment must be a power of two, not '8'"),
        (header([], [text("a") + struct.pack("<I", 5)]), "tensor 'a' has 5 dimensions"),
        (header([], [tensor("a", (2**40, 2**40))]), "tensor 'a' has the shape"),
        (header([], [tensor("a", (0, 4))]), "tensor 'a' has the shape [4, 0]"),
        (header([], [tensor("a", (4,), offset=2**60)]), "tensor 'a' has the shape [4] at offset"),
        (header([], [tensor("a", (4,), offset=1)]), "tensor 'a' has the shape [4] at offset 1"),
        (header([], [tensor("a", (4,)), tensor("a", (4,))]), "tensor 'a' ends at offset"),
        (padded(header([], [tensor("a", (4,)), tensor("a", (4,))]), 99), "names the tensor 'a' twice"),
        (padded(header([], [tensor("a", (33, 2), kind=2)]), 99), "rows that blocks of 32 do not divide: [2, 33]"),
        (padded(header([], [tensor("a", (4,), kind=16)]), 99), "tensor 'a' is of type IQ2_XXS, which is not read"),
        (padded(header([], [tensor("a", (4,), kind=77)]), 99), "tensor 'a' is of type 77, which is not read"),
        (padded(header([], OVERLAP), 99), "tensor 'b' at offset 96 overlaps the one before it"),
        (padded(header([], [EMBEDDING]), 99), "lacks the metadata general.architecture"),
        (header([entry("general.architecture", 7)], []), "general.architecture must be a text, not 7"),
        (header([entry("general.architecture", "rwkv6")], []), "of the architecture rwkv6 are not read"),
        (padded(header(SOUND, [EMBEDDING]), 99), "lacks the metadata llama.context_length, llama.block_count"),
    ],
)
def test_files_that_are_not_sound(tmp_path, data, message):
    assert message in refused(tmp_path, data)


def test_a_file_of_which_the_end_is_missing(tmp_path):
    data = (GGUF / "llama-q8_0.gguf").read_bytes()
    for kept in (len(data) - 1000, len(data) // 2, 2000, 100, 20, 3):
        assert "truncated" in refused(tmp_path, data[:kept])


def changed(tmp_path: Path, old: bytes, new: bytes, name: str = "llama-q8_0") -> str:
    data = (GGUF / f"{name}.gguf").read_bytes()
    assert data.count(old) >= 1
    return refused(tmp_path, data.replace(old, new, 1))


def test_metadata_that_no_config_has(tmp_path):
    more = text("llama.rope.freq_base")
    assert len(more) == len(text("llama.logits_factors"))
    assert "says of llama what is not read from GGUF files: llama.logits_factors" in changed(
        tmp_path, more, text("llama.logits_factors")
    )
    heads = text("llama.attention.head_count") + struct.pack("<I", 4)
    assert "llama.attention.head_count must be a whole number below 2^31, not -4" in changed(
        tmp_path, heads + struct.pack("<I", 4), text("llama.attention.head_count") + struct.pack("<Ii", 5, -4)
    )
    layers = text("llama.block_count") + struct.pack("<I", 4)
    assert "says that it has 553648129 layers, and holds" in changed(
        tmp_path, layers + struct.pack("<I", 2), layers + struct.pack("<I", 0x21000001)
    )
    turning = text("llama.rope.dimension_count") + struct.pack("<I", 4)
    assert "where 8 of 16 columns of a head turn" in changed(
        tmp_path, turning + struct.pack("<I", 16), turning + struct.pack("<I", 8)
    )


def test_metadata_that_change_nothing(tmp_path):
    """A scale of one is read past, and any other is refused."""
    data = (GGUF / "llama-q8_0.gguf").read_bytes()
    at = data.index(text("llama.rope.freq_base"))
    head, tail = data[:at] + text("llama.residual_scale"), data[at + len(text("llama.rope.freq_base")) + 8 :]
    kind = struct.pack("<I", 6)
    (tmp_path / "one.gguf").write_bytes(head + kind + struct.pack("<f", 1.0) + tail)
    assert open_checkpoint(tmp_path / "one.gguf").config["model_type"] == "llama"
    assert "not read from GGUF files: llama.residual_scale" in refused(
        tmp_path, head + kind + struct.pack("<f", 2.0) + tail
    )


def test_tensors_that_the_family_does_not_have(tmp_path):
    assert "holds tensors that llama does not have: blk.0.ffn_nope.weight" in changed(
        tmp_path, b"blk.0.ffn_down.weight", b"blk.0.ffn_nope.weight"
    )


FUZZED = ["llama-q4_0", "qwen2"]
LARGE = [0, 1, 2**31, 2**32, 2**47, 2**63, 2**64 - 1]


@pytest.mark.parametrize("name", FUZZED)
def test_any_header_is_read_or_refused(tmp_path, name):
    """Changes of single bytes of the header, and of eight at a time, end with a typed error or with none."""
    data = bytearray((GGUF / f"{name}.gguf").read_bytes())
    start = min(info.begin for info in GgufFile(GGUF / f"{name}.gguf").tensors.values())
    draw, path = np.random.default_rng(0), tmp_path / "m.gguf"
    refusals, count = 0, int(os.environ.get("TENSORWRIGHT_FUZZ_COUNT", "60"))
    for _ in range(count):
        made = bytearray(data)
        at = int(draw.integers(0, start))
        if draw.integers(2):
            made[at] = int(draw.integers(256))
        else:
            made[at : at + 8] = struct.pack("<Q", LARGE[draw.integers(len(LARGE))])
        path.write_bytes(made)
        opened = None
        with Answered(CheckpointError, UnsupportedModelError):
            opened = open_checkpoint(path)
        refusals += opened is None
    assert 0 < refusals < count
