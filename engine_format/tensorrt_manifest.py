"""Reads and writes tensorrt/io.json: the inputs and outputs of a TensorRT engine, which shows them only on a GPU.

The builder writes it beside rank0.engine, of a parallel engine into the folder of each rank, and the runtime's executor
reads it. A dimension is an int or a symbol:
tokens, seqs, "seqs + 1", rows, and for each cache group G max_blocks.G and pages.G.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tensorwright.engine_format.dtypes import DTYPES, ITEM_BYTES
from tensorwright.engine_format.file_names import TENSORRT_ENGINE, TENSORRT_IO
from tensorwright.engine_format.kv_cache import SCALED_BYTES, page_dtype
from tensorwright.engine_format.strict_json import OPTIONAL, read_value, write_value
from tensorwright.errors import EngineError
from tensorwright.json_text import read_json

MANIFEST_FILE, ENGINE_FILE = TENSORRT_IO, TENSORRT_ENGINE
FORMAT_VERSION = 1
MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""The Python module of each flavour. A flavour has the name of its target and of its extra."""
REMEDY = "build the engine again"

Dim = int | str


@dataclass(frozen=True)
class IoTensor:
    """An input or an output. alias: the name of the input whose memory the output shares."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    alias: str | None = None


@dataclass(frozen=True)
class KvLayer:
    """One layer with a KV cache, in the order of k_pages.L."""

    group: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Range:
    """The bounds of a symbol in a profile, and the value that its kernels are chosen for."""

    min: int
    opt: int
    max: int


DECODE = 1
"""The index of the profile for steps with one token per sequence. The profile for prefill comes first."""


@dataclass(frozen=True)
class Profile:
    """An optimization profile; its place in the list is its index. Every symbol but "seqs + 1" has a range."""

    name: str
    symbols: dict[str, Range]


@dataclass(frozen=True)
class Manifest:
    """The content of io.json. It is checked when it is made: EngineError names the wrong field."""

    flavour: str
    """One of MODULES."""
    library_version: str
    """The version of the package that built the engine, such as "1.7.1.116"."""
    sms: tuple[int, ...]
    """The SMs that the build named, such as (80, 89). Empty means that the library chose the GPUs."""
    kernel_sms: tuple[int, ...]
    """The SMs that the kernels of the plugins were compiled for. A newer SM runs the PTX of the lowest."""
    dtype: str
    """The type of the activations, and of the KV cache unless kv_dtype is of SCALED_BYTES."""
    kv_dtype: str
    block_size: int
    vocab_size: int
    max_seq_len: int
    layers: tuple[KvLayer, ...]
    group_windows: tuple[int, ...]
    """The sliding window of each cache group in tokens, 0 for none."""
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    profiles: tuple[Profile, ...]
    """The profile for prefill comes first, the profile for decode second: DECODE."""
    plugins: dict[str, str]
    """The version of each plugin that the engine has a layer of, by name."""
    sends: int | None = field(default=None, metadata=OPTIONAL)
    """How many values a rank sends to the next stage, in place of logits. Absent in an engine that gives logits."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_facts(self)
        _check_tensors(self)
        _check_profiles(self)

    @property
    def groups(self) -> int:
        return len(self.group_windows)

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """The bytes of one block of each cache group, over its layers."""
        item, scale = ITEM_BYTES[page_dtype(self.kv_dtype)], 4 if self.kv_dtype in SCALED_BYTES else 0
        heads = [0] * self.groups
        for layer in self.layers:
            heads[layer.group] += 2 * layer.kv_heads * (layer.head_dim * item + scale)
        return tuple(self.block_size * count for count in heads)

    def limit(self, symbol: str) -> int:
        """Returns the largest value that a symbol may have in any profile."""
        return max(profile.symbols[symbol].max for profile in self.profiles)

    def to_json(self) -> str:
        return json.dumps(write_value(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST_FILE) -> Manifest:
        """Reads io.json. Unknown and missing keys are refused at every level. Raises EngineError with `where` in it."""
        try:
            data = read_json(text)
        except ValueError as error:
            raise EngineError(f"{where}: truncated or altered, not readable as JSON ({error}); {REMEDY}") from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise EngineError(
                f"{where}: format version {version!r}, this tensorwright reads {FORMAT_VERSION}; {REMEDY}"
            )
        try:
            return read_value(cls, data, "manifest")
        except (EngineError, ValueError) as error:
            raise EngineError(f"{where}: {error}" + ("" if REMEDY in str(error) else f"; {REMEDY}")) from error


def resolve(shape: tuple[Dim, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """Returns a shape in numbers. sizes: the value of every symbol but "seqs + 1"."""
    return tuple(d if isinstance(d, int) else sizes["seqs"] + 1 if d == "seqs + 1" else sizes[d] for d in shape)


def symbols(groups: int) -> tuple[str, ...]:
    """Returns the symbols that every profile has a range of."""
    return ("tokens", "seqs", "rows", *(f"{name}.{g}" for name in ("max_blocks", "pages") for g in range(groups)))


def step_inputs(groups: int) -> tuple[IoTensor, ...]:
    """Returns the metadata of a step, all int32. An engine may lack an input that its model does not need."""
    one: list[tuple[str, tuple[Dim, ...]]] = [
        ("token_ids", ("tokens",)),
        ("positions", ("tokens",)),
        ("seq_starts", ("seqs + 1",)),
        ("context_lens", ("seqs",)),
        ("logit_rows", ("rows",)),
    ]
    for g in range(groups):
        one += [(f"block_tables.{g}", ("seqs", f"max_blocks.{g}")), (f"slots.{g}", ("tokens",))]
    return tuple(IoTensor(name, "int32", shape) for name, shape in one)


def page_inputs(layers: tuple[KvLayer, ...], kv_dtype: str, block_size: int) -> tuple[IoTensor, ...]:
    """Returns the KV cache, layer by layer: k_pages.L and v_pages.L, and for SCALED_BYTES k_scales.L and
    v_scales.L."""
    return tuple(
        page
        for index, layer in enumerate(layers)
        for page in layer_pages(index, layer.group, (layer.kv_heads, block_size, layer.head_dim), kv_dtype)
    )


def layer_pages(index: int, group: int, block: tuple[int, int, int], dtype: str) -> list[IoTensor]:
    """Returns the cache of layer `index`. block: [heads, positions, head_dim] of one block."""
    rows = (f"pages.{group}", *block[:2])
    pages = [IoTensor(f"{k}_pages.{index}", page_dtype(dtype), (*rows, block[2])) for k in "kv"]
    scales = [IoTensor(f"{k}_scales.{index}", "float32", rows) for k in "kv"] if dtype in SCALED_BYTES else []
    return pages + scales


def outputs_of(pages: tuple[IoTensor, ...], vocab_size: int, sent: tuple[IoTensor, ...] = ()) -> tuple[IoTensor, ...]:
    """Returns the logits, or what `sent` has in their place, and an output for every page input. The last two share
    their memory."""
    logits = IoTensor("logits", "float32", ("rows", vocab_size))
    aliased = (IoTensor(output_name(page.name), page.dtype, page.shape, page.name) for page in pages)
    return (*(sent or (logits,)), *aliased)


def sent_output(message: int) -> str:
    """Returns the name of the output that stands for a value which was sent to the next stage."""
    return f"sent.{message}"


def sent_outputs(count: int, dtype: str) -> tuple[IoTensor, ...]:
    """Returns these outputs, one element each; nobody writes or reads it."""
    return tuple(IoTensor(sent_output(message), dtype, (1, 1)) for message in range(count))


def output_name(page: str) -> str:
    """Returns the name of a page input's output: k_pages_out.3 for k_pages.3."""
    kind, _, layer = page.partition(".")
    return f"{kind}_out.{layer}"


def _require(holds: bool, name: str, must: str, value: Any) -> None:
    if not holds:
        raise EngineError(f"{name} must be {must}, got {value!r}; {REMEDY}")


def _check_facts(m: Manifest) -> None:
    _require(m.flavour in MODULES, "flavour", f"one of {', '.join(MODULES)}", m.flavour)
    _require(bool(m.library_version), "library_version", "a version", m.library_version)
    _require(m.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", m.dtype)
    kinds = (m.dtype, *SCALED_BYTES)
    _require(m.kv_dtype in kinds, "kv_dtype", f"one of {', '.join(kinds)}", m.kv_dtype)
    _require(bool(m.kernel_sms), "kernel_sms", "at least one SM", m.kernel_sms)
    for name in ("sms", "kernel_sms"):
        sms = getattr(m, name)
        _require(list(sms) == sorted(set(sms)) and all(sm > 0 for sm in sms), name, "rising SM numbers", sms)
    for name in ("block_size", "vocab_size", "max_seq_len"):
        _require(getattr(m, name) > 0, name, "a positive integer", getattr(m, name))
    _require(all(window >= 0 for window in m.group_windows), "group_windows", "0 or more", m.group_windows)
    for index, layer in enumerate(m.layers):
        _require(min(layer.kv_heads, layer.head_dim) > 0, f"layers[{index}]", "of positive sizes", layer)
    used = sorted({layer.group for layer in m.layers})
    _require(used == list(range(m.groups)), "the groups of layers", f"all of 0 to {m.groups - 1}", used)


def _check_tensors(m: Manifest) -> None:
    pages = page_inputs(m.layers, m.kv_dtype, m.block_size)
    known = {tensor.name: tensor for tensor in (*step_inputs(m.groups), *pages)}
    needed = {tensor.name for tensor in pages} | {"token_ids"}
    _compare("inputs", m.inputs, known, needed)
    _require(m.sends is None or m.sends > 0, "sends", "absent or positive", m.sends)
    sent = sent_outputs(m.sends or 0, m.dtype)
    outputs = {tensor.name: tensor for tensor in outputs_of(pages, m.vocab_size, sent)}
    _compare("outputs", m.outputs, outputs, set(outputs))


def _compare(what: str, tensors: tuple[IoTensor, ...], known: dict[str, IoTensor], needed: set[str]) -> None:
    names = [tensor.name for tensor in tensors]
    _require(len(names) == len(set(names)), what, "of distinct names", names)
    missing = sorted(needed - set(names))
    _require(not missing, what, f"complete; missing are {', '.join(missing)}", names)
    for tensor in tensors:
        _require(tensor.name in known, what, "those of these layers and groups", tensor.name)
        _require(tensor == known[tensor.name], f"{what}: {tensor.name}", str(known[tensor.name]), tensor)


def _check_profiles(m: Manifest) -> None:
    _require(bool(m.profiles), "profiles", "at least one", m.profiles)
    wanted = symbols(m.groups)
    for profile in m.profiles:
        where = f"profile {profile.name!r}"
        _require(set(profile.symbols) == set(wanted), where, f"of the symbols {', '.join(wanted)}", profile.symbols)
        for name, r in profile.symbols.items():
            _require(0 <= r.min <= r.opt <= r.max and r.max > 0, f"{where}: {name}", "min <= opt <= max", r)
