"""Reads the table of devices: memory, bandwidth and peaks of each, with the source of the figures (devices.json).

A user's own device is a file of JSON with one such entry.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tensorwright.engine_format.dtypes import full_name
from tensorwright.errors import InvalidOptionError, reason
from tensorwright.json_text import read_json
from tensorwright.sizes import parse_size

TABLE = Path(__file__).with_name("devices.json")
TYPES = ("float32", "bfloat16", "float16", "float8", "int8")
"""The types whose peaks an entry may have."""
FIELDS = (
    "name",
    "aliases",
    "platform",
    "memory",
    "bandwidth_gb_per_s",
    "peaks_tops",
    "link_gb_per_s",
    "link_us",
    "source",
)
LEAST, MOST = 1e-6, 1e9
"""The bounds of the figures of an entry, in its units."""
OPTIONAL = ("aliases", "link_gb_per_s", "link_us")


@dataclass(frozen=True)
class Platform:
    """A kind of devices. targets: this project's targets that are made for it. runs: what of this project runs there,
    in words."""

    name: str
    targets: tuple[str, ...]
    runs: str


@dataclass(frozen=True)
class Device:
    """What a device can do at most. memory: bytes. bandwidth: bytes per second read from memory. peaks: operations per
    second by type, a multiply-add counts as two. link: bytes per second to another device of its kind, one way; None if
    it has none. link_seconds: what an exchange takes beside its bytes. source: where the figures are from."""

    name: str
    platform: Platform
    memory: int
    bandwidth: float
    peaks: Mapping[str, float]
    source: str
    link: float | None = None
    link_seconds: float = 0.0
    aliases: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """Returns the peak of a type: its own, or that of the wider type in which the device has to compute."""
        for wider in _WIDER[dtype]:
            if wider in self.peaks:
                return self.peaks[wider]
        raise AssertionError(f"{self.name} has no peak for {dtype}")

    def turning_point(self, dtype: str) -> float:
        """Returns how many operations per byte take as long as the byte: work with fewer waits for memory."""
        return self.peak(dtype) / self.bandwidth


_WIDER: dict[str, tuple[str, ...]] = {
    "int8": ("int8", "float8", "float16", "bfloat16", "float32"),
    "float8": ("float8", "int8", "float16", "bfloat16", "float32"),
    "float16": ("float16", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float16", "float32"),
    "float32": ("float32", "bfloat16", "float16"),
}


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_json(TABLE.read_bytes())
    return table


@cache
def platforms() -> dict[str, Platform]:
    """Returns the platforms by name."""
    return {name: Platform(name, tuple(p["targets"]), p["runs"]) for name, p in _table()["platforms"].items()}


@cache
def devices() -> tuple[Device, ...]:
    """Returns all devices of the table."""
    return tuple(parse_device(entry, str(TABLE)) for entry in _table()["devices"])


def find_device(name: str) -> Device:
    """Returns the device with this name or alias, or that of a file of JSON. Case, blanks and hyphens do not count.

    Raises InvalidOptionError, which names the closest.
    """
    if name.endswith(".json"):
        return _read_device(Path(name).expanduser())
    known = {_plain(word): device for device in devices() for word in (device.name, *device.aliases)}
    if (found := known.get(_plain(name))) is not None:
        return found
    close = difflib.get_close_matches(_plain(name), known, n=3, cutoff=0.4)
    names = [known[word].aliases[0] if known[word].aliases else known[word].name for word in close]
    hint = f"closest: {', '.join(dict.fromkeys(names))}; " if names else ""
    raise InvalidOptionError(
        f"device: there is no {name!r}; {hint}tensorwright estimate --list-devices shows all; a device of your own is "
        "a file NAME.json (docs/estimate.md)"
    )


def parse_device(entry: Any, file: str) -> Device:
    """Returns the device of an entry of the table. Raises InvalidOptionError that names the file and the field."""

    def refuse(fault: str) -> InvalidOptionError:
        return InvalidOptionError(f"{file}: {fault} (docs/estimate.md)")

    if not isinstance(entry, dict):
        raise refuse("a device must be a JSON object")
    unknown = sorted(set(entry) - set(FIELDS))
    missing = [field for field in FIELDS if field not in entry and field not in OPTIONAL]
    if unknown or missing:
        raise refuse(f"a device has the fields {', '.join(FIELDS)}; unknown: {unknown}, missing: {missing}")
    if not isinstance(entry.get("aliases", []), list):
        raise refuse("aliases must be a list of texts")
    texts = [entry["name"], entry["platform"], entry["source"], *entry.get("aliases", [])]
    if not all(isinstance(text, str) and text for text in texts):
        raise refuse("name, platform, source and aliases must be texts")
    if entry["platform"] not in platforms():
        raise refuse(f"platform must be one of {', '.join(platforms())}, not {entry['platform']!r}")
    peaks = entry["peaks_tops"]
    if not isinstance(peaks, dict):
        raise refuse("peaks_tops must be an object, of peaks by type")
    for dtype in peaks:
        if full_name(dtype) not in TYPES:
            raise refuse(f"peaks_tops: {dtype!r} is none of {', '.join(TYPES)}")
    if not {full_name(dtype) for dtype in peaks} & set(_WIDER["float32"]):
        raise refuse(f"peaks_tops must give the peak of one of {', '.join(_WIDER['float32'])} at least")
    numbers = {"bandwidth_gb_per_s": entry["bandwidth_gb_per_s"]}
    numbers |= {f"peaks_tops.{dtype}": value for dtype, value in peaks.items()}
    numbers |= {field: entry[field] for field in ("link_gb_per_s", "link_us") if field in entry}
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST <= value <= MOST:
            raise refuse(f"{field} must be a positive number, not {value!r:.40} (from {LEAST:g} to {MOST:g})")
    link = entry.get("link_gb_per_s")
    return Device(
        entry["name"],
        platforms()[entry["platform"]],
        parse_size(entry["memory"], f"{file}: memory"),
        entry["bandwidth_gb_per_s"] * 1e9,
        {full_name(dtype): value * 1e12 for dtype, value in peaks.items()},
        entry["source"],
        None if link is None else link * 1e9,
        entry.get("link_us", 0.0) * 1e-6,
        tuple(entry.get("aliases", ())),
    )


def _read_device(path: Path) -> Device:
    try:
        entry = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path}: cannot be read as a device ({reason(error)})") from error
    return parse_device(entry, str(path))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()
