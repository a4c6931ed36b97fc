"""A safetensors file is read as the library wrote it, and refused by name when anything in it is wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from support.made_checkpoints import safetensors_bytes
from tensorwright.errors import CheckpointError
from tensorwright.models import safetensors_file
from tensorwright.models.safetensors_file import SafetensorsFile

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float16)}


def write(tmp_path, data: bytes):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return path


def test_reads_what_the_library_writes(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {**TENSORS, "empty": np.zeros((0, 3), np.float32), "scalar": np.array(7, np.int64)}
    save_file(tensors, path)
    file = SafetensorsFile(path)
    assert set(file.tensors) == set(tensors)
    for name, array in tensors.items():
        read = file.read(name)
        assert read.dtype == array.dtype.name
        np.testing.assert_array_equal(read.data, array)


def test_reads_the_narrow_types_that_torch_writes(tmp_path):
    path, codes = tmp_path / "model.safetensors", torch.arange(24, dtype=torch.uint8).reshape(4, 6)
    kinds = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"]
    tensors = {kind: codes.clone().view(getattr(torch, kind)) for kind in kinds}
    save_torch_file({**tensors, "words": codes.clone().view(torch.uint16)}, path)
    file = SafetensorsFile(path)
    for kind in kinds:
        read = file.read(kind)
        assert read.dtype == kind
        np.testing.assert_array_equal(read.data, codes.numpy())
    assert file.read("words").data.dtype == np.uint16


def test_reading_maps_and_does_not_write(tmp_path):
    file = SafetensorsFile(write(tmp_path, safetensors_bytes(TENSORS)))
    view = file.read("a").data
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def test_unaligned_data(tmp_path):
    # An odd header length puts float32 data on an odd address.
    data = safetensors_bytes({"abc": TENSORS["a"]}, lambda h: h["__metadata__"].update(pad=""))
    (length,) = struct.unpack("<Q", data[:8])
    data = (
        struct.pack("<Q", length + 1 + length % 2) + data[8 : 8 + length] + b" " * (1 + length % 2) + data[8 + length :]
    )
    np.testing.assert_array_equal(SafetensorsFile(write(tmp_path, data)).read("abc").data, TENSORS["a"])


def set_entry(**entry):
    return lambda header: header["b"].update(entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_entry(dtype="F6_E2M3"), "tensor 'b' has dtype 'F6_E2M3'; readable are"),
        (set_entry(dtype="F4", shape=[15]), r"tensor 'b' of F4 has shape \[15\], whose last size must be even"),
        (set_entry(dtype="F4", shape=[]), "tensor 'b' of F4 has shape"),
        (set_entry(dtype="F4", shape=[14]), r"tensor 'b' of F4 \[7\] takes 7 bytes, not 8"),
        (set_entry(shape=[-4]), r"tensor 'b' has shape \[-4\]"),
        (set_entry(shape=[True, 4]), "tensor 'b' has shape"),
        (set_entry(shape="4"), "tensor 'b' has shape"),
        (set_entry(shape=[5]), r"tensor 'b' of F16 \[5\] takes 10 bytes, not 8"),
        (set_entry(data_offsets=[24]), "not two offsets"),
        (set_entry(data_offsets=[32, 24]), "takes 8 bytes, not -8"),
        (set_entry(data_offsets=[16, 24]), "overlaps the one before"),
        (set_entry(data_offsets=[32, 40]), "truncated"),
        (set_entry(dtype=[]), r"tensor 'b' has dtype \[\]; readable are"),
        (set_entry(dtype={"a": 1}), "tensor 'b' has dtype"),
        (set_entry(shape=[1] * 9), "tensor 'b' has 9 dimensions, readable are at most 8"),
        (set_entry(shape=[10**300] * 30_000), "tensor 'b' has 30000 dimensions, readable are at most 8"),
        (set_entry(shape=[0, 2**63], data_offsets=[24, 24]), "tensor 'b' has a size of 9223372036854775808"),
        (set_entry(shape=[2**48]), r"tensor 'b' has a size of 281474976710656, readable are sizes below 2\^48"),
        (set_entry(shape=[10**4000]), r"tensor 'b' has a size of 1000.*0, readable are sizes below"),
        (set_entry(shape=[2**40, 0, 2**40]), r"tensor 'b' has a shape of 2\^48 elements or more"),
        (set_entry(data_offsets=[0, 2**48]), "tensor 'b' has an offset of 281474976710656"),
        (set_entry(data_offsets=[10**4000] * 2), "tensor 'b' has an offset of 1000"),
        (lambda header: header.update(b="x" * 10_000), "tensor 'b' must have dtype, shape and data_offsets only"),
        (lambda header: header.update({"x" * 10_000: {}}), "tensor 'xxx"),
        (set_entry(more=1), "must have dtype, shape and data_offsets only"),
        (lambda header: header.pop("b"), "the tensors end at offset"),
        (lambda header: header.pop("a"), "leaves a gap"),
    ],
)
def test_wrong_header(tmp_path, change, message):
    path = write(tmp_path, safetensors_bytes(TENSORS, change))
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 600  # whatever a header says, not all of it is repeated


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must begin with 8 bytes"),
        (b"\x01\x02", "must begin with 8 bytes"),
        (struct.pack("<Q", 1 << 60) + b"{}", "announces a header of"),
        (struct.pack("<Q", 100) + b"{}", "truncated or no safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "must be a JSON object, not list"),
        (struct.pack("<Q", 3) + b"{a}", "is not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "is not JSON"),
        (struct.pack("<Q", 15) + b'{"a":{},"a":{}}', "names 'a' twice"),
        (struct.pack("<Q", 5000) + b'{"a":' + b"9" * 4994 + b"}", "is not JSON"),
    ],
)
def test_wrong_bytes(tmp_path, data, message):
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(write(tmp_path, data))


class Name(str):
    """Counts with how many others it is compared."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_name_that_comes_twice_is_found_in_linear_time(tmp_path):
    """A header may hold millions of names."""
    file = SafetensorsFile(write(tmp_path, safetensors_bytes(TENSORS)))
    names = [Name(f"tensor {number}") for number in range(1000)]
    Name.compared = 0
    with pytest.raises(CheckpointError, match="names 'tensor 999' twice"):
        file._without_duplicates([(name, {}) for name in (*names, Name("tensor 999"))])
    assert Name.compared < 10 * len(names)


def test_a_header_is_no_longer_than_the_format_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors_file, "_MAX_HEADER_BYTES", 100)
    with pytest.raises(CheckpointError, match=r"announces a header of .* of 100 bytes at most"):
        SafetensorsFile(write(tmp_path, safetensors_bytes(TENSORS)))


def test_empty_tensors_of_any_shape_are_read(tmp_path):
    path = write(tmp_path, safetensors_bytes({"none": np.zeros((0, 2**20, 2**20), np.float16)}))
    assert SafetensorsFile(path).read("none").data.shape == (0, 2**20, 2**20)


def test_every_truncation_is_refused(tmp_path):
    data = safetensors_bytes(TENSORS)
    for length in range(0, len(data), 3):
        with pytest.raises(CheckpointError):
            SafetensorsFile(write(tmp_path, data[:length]))


def test_unreadable_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        SafetensorsFile(tmp_path / "absent.safetensors")
