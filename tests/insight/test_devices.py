"""The table of devices, and devices of a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorwright.engine_format.targets import TARGETS
from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import devices, find_device, platforms

OWN = {
    "name": "my board", "platform": "x86", "memory": "8GiB", "bandwidth_gb_per_s": 50, "peaks_tops": {"fp32": 1.5},
    "source": "its maker",
}  # fmt: skip


def test_every_device_has_figures_that_can_be() -> None:
    for device in devices():
        assert 4e9 < device.memory < 2e12, device.name
        assert 1e10 < device.bandwidth < 1e13, device.name
        assert all(1e11 < peak < 1e16 for peak in device.peaks.values()), device.name
        assert len(device.source) > 10, device.name
        narrower = [device.peaks[dtype] for dtype in ("float32", "bfloat16", "int8") if dtype in device.peaks]
        assert narrower == sorted(narrower), f"{device.name}: fewer bits are no slower"


def test_names_are_unique_and_found() -> None:
    words = [word for device in devices() for word in (device.name, *device.aliases)]
    assert len({word.lower() for word in words}) == len(words)
    assert find_device("nvidia h200 sxm") is find_device("H200") is find_device("NVIDIA-H200_SXM")


def test_targets_exist() -> None:
    assert {target for platform in platforms().values() for target in platform.targets} <= set(TARGETS)


def test_a_type_without_a_peak_computes_in_a_wider_one() -> None:
    atlas = find_device("atlas-300v-pro")
    assert atlas.peak("bfloat16") == atlas.peak("float16") == 70e12
    assert atlas.peak("float8") == atlas.peak("int8") == 140e12
    assert find_device("m4").peak("int8") == 4.3e12


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    with pytest.raises(InvalidOptionError, match=r"there is no 'atlas 300 v'; closest: atlas-300v-pro"):
        find_device("atlas 300 v")


def test_a_device_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps(OWN))
    device = find_device(str(file))
    assert (device.memory, device.bandwidth, device.peak("float32")) == (8 << 30, 50e9, 1.5e12)
    assert device.turning_point("float32") == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": "much"}, "memory must be a positive number of bytes"),
        ({"platform": "abacus"}, "platform must be one of x86"),
        ({"bandwidth_gb_per_s": 0}, "bandwidth_gb_per_s must be a positive number, not 0"),
        ({"bandwidth_gb_per_s": True}, "must be a positive number, not True"),
        ({"peaks_tops": {}}, "must give the peak of one of"),
        ({"peaks_tops": {"int7": 1}}, "'int7' is none of"),
        ({"speed": 3}, r"unknown: \['speed'\]"),
        ({"peaks_tops": {"int8": 1}}, "must give the peak of one of float32, bfloat16, float16"),
        ({"peaks_tops": {"float32": 10**400}}, r"peaks_tops\.float32 must be a positive number"),
        ({"bandwidth_gb_per_s": 1e-320}, "must be a positive number"),
        ({"aliases": 5}, "aliases must be a list"),
        ({"aliases": "abc"}, "aliases must be a list"),
        ({"source": ""}, "must be texts"),
    ],
)
def test_a_wrong_device_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps(OWN | change))
    with pytest.raises(InvalidOptionError, match=message):
        find_device(str(file))


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"name": 1e999}'])
def test_a_file_that_is_no_device_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "board.json"
    file.write_text(text)
    with pytest.raises(InvalidOptionError, match=r"board\.json"):
        find_device(str(file))
    with pytest.raises(InvalidOptionError, match=r"none\.json: cannot be read"):
        find_device(str(tmp_path / "none.json"))
