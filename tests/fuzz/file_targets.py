"""Files that came from somebody else: of a checkpoint, of an engine, and what a load test's server says.

Several files are one input: parts with CUT between them, each a name, a line end and the content. Files that are not
named are sound ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from fuzz.answers import Answered

from support.fake_runtime import engine_config, write_checksums, write_engine
from support.made_checkpoints import write_checkpoint, write_sharded
from tensorwright.builder.rebuild import read_graph
from tensorwright.engine_format.adapter_places import AdapterPlaces, ModulePart, ProductPlaces
from tensorwright.engine_format.checksums import FileSum
from tensorwright.engine_format.engine_config import EngineConfig, is_engine
from tensorwright.engine_format.file_names import CPU_ADAPTERS, ONNX_IO, PEFT_CONFIG, PEFT_WEIGHTS
from tensorwright.engine_format.tensorrt_manifest import Manifest
from tensorwright.errors import (
    AdapterError,
    CheckpointError,
    EngineError,
    InvalidOptionError,
    InvalidRequestError,
    UnsupportedModelError,
    is_panic,
)
from tensorwright.ir.text import print_graph
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.gguf.vocabulary import read_vocabulary
from tensorwright.models.peft_adapter import read_adapter
from tensorwright.models.safetensors_file import SafetensorsFile
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.adapters import adapter_bytes, content_key, make_products, step_bytes
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.onnx.manifest import read_io
from tensorwright.runtime.guided.spelling import text_tokenizer, token_bytes
from tensorwright.runtime.requests.generation_defaults import sampling_defaults
from tensorwright.runtime.serving.load_test.events import BadAnswer, EventParser, read_chunk
from tensorwright.runtime.text.chat_template import check_template
from tensorwright.runtime.text.detokenizer import IncrementalDetokenizer
from tensorwright.runtime.text.special_tokens import special_tokens
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.tools import inspect

CUT = b"\n----\n"
MOST_TAIL = 4096  # bytes behind a header
INDEX, CHECKSUMS, REPORT = "model.safetensors.index.json", "checksums.txt", "build-report.json"
TEXT_SIDE = ("tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "chat_template.jinja")
ENGINE_FILES = ("config.json", "generation_config.json", *TEXT_SIDE, REPORT, CHECKSUMS)
CHECKPOINT_FILES = ("config.json", "generation_config.json", *TEXT_SIDE, INDEX)
PLACES_FILE = Path(CPU_ADAPTERS).name
ADAPTER_FILES = (PEFT_CONFIG, PEFT_WEIGHTS, PLACES_FILE)
PART = ModulePart("a", (6, 4), False, 0, ((0, 6, 1),), ((0, 4, 1),))
PLACES = AdapterPlaces((ProductPlaces(1, (PART,)),), {"b": "is a table of embeddings"})
TEXTS = ("a b", "n\u00e9<end>", " \n\u2581x\U0001f600")
SILENT: Any = SimpleNamespace(print=lambda *parts: None)  # rendering takes ten times as long as all else
ENGINE, CHECKPOINT = Answered(EngineError), Answered(CheckpointError, UnsupportedModelError)


def safetensors_header(data: bytes) -> None:
    """data: the header, and in its last line how many bytes follow it."""
    content, size = _safetensors(data)
    path = _folder() / "weights.safetensors"
    path.write_bytes(content)
    with CHECKPOINT:
        file = SafetensorsFile(path)
        assert sum(file.read(name).nbytes for name in file.tensors) == size


def adapter(data: bytes) -> None:
    """data: some of ADAPTER_FILES: those of PEFT, whose weights are as in safetensors_header, and what the engine says
    of where adapters go."""
    named = _named(data, ADAPTER_FILES)
    if PEFT_WEIGHTS in named:
        named[PEFT_WEIGHTS], _ = _safetensors(named[PEFT_WEIGHTS])
    root = _adapter()
    with _changed(root, named), Answered(AdapterError, EngineError):
        places = AdapterPlaces.from_bytes(root / PLACES_FILE, (root / PLACES_FILE).read_bytes())
        assert min(adapter_bytes(places, 8), step_bytes(places, 8, 64)) >= 0
        content_key(make_products(read_adapter(root), places))


def gguf(data: bytes) -> None:
    """data: the file, but for zeros at its end."""
    path = _folder() / "model.gguf"
    path.write_bytes(data + bytes(MOST_TAIL))
    with CHECKPOINT:
        opened = open_checkpoint(path)
        assert all(opened.read(name).nbytes >= 0 for name in opened.names)
        _ = opened.eos_token_ids, opened.bos_token_id, opened.native_dtype, opened.chat_templates, opened.source_files
        read_vocabulary(path)


def checkpoint(data: bytes) -> None:
    """data: some of CHECKPOINT_FILES."""
    named = _named(data, CHECKPOINT_FILES)
    root = _sharded_checkpoint() if INDEX in named else _checkpoint()
    with _changed(root, named), CHECKPOINT:
        opened = open_checkpoint(root)
        assert all(opened.read(name).nbytes >= 0 for name in opened.names)
        _ = opened.eos_token_ids, opened.bos_token_id, opened.native_dtype, opened.chat_templates, opened.source_files
        special_tokens(opened.tokenizer_config, opened.special_tokens_map)


def engine(data: bytes) -> None:
    """data: some of ENGINE_FILES. The checksums are true, unless they are named."""
    root, named = _engine(), _named(data, ENGINE_FILES)
    listed = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} | {*named}
    with _changed(root, {CHECKSUMS: b"", **named}), ENGINE:
        if CHECKSUMS not in named:
            write_checksums(root, sorted(listed - {CHECKSUMS, REPORT}))
        is_engine(root)
        opened = open_engine(root, read_tokenizer=True)
        sampling_defaults(opened, "model")
        for text in opened.chat_templates.values():
            with suppress(InvalidOptionError):
                check_template(text, "a template")
        with mock.patch.object(native, "weight_reads", return_value=None):  # the plan is none
            inspect.show(inspect.describe(opened), SILENT)


def tokenizer(data: bytes) -> None:
    """data: a tokenizer.json. A library that panics fails its request, as runtime/base/library_errors.py has it."""
    try:
        with Answered(EngineError, InvalidRequestError):
            _use_tokenizer(Tokenizer.from_bytes(data, Path("tokenizer.json")))
    except BaseException as error:
        if not is_panic(error):
            raise


def _use_tokenizer(known: Tokenizer) -> None:
    for text in TEXTS:
        ids = known.encode(text, add_special_tokens=False)
        assert known.least_tokens(text) <= len(ids), known.span
        shown = IncrementalDetokenizer(known)
        assert isinstance(shown.push(ids) + shown.flush() + known.decode(ids), str)
    with suppress(ValueError):  # it cannot be guided
        token_bytes(known.library, min(known.vocab_size, 1000))
        text_tokenizer(known.library)(TEXTS[0])


def graph(data: bytes) -> None:
    """data: a graph.txt. What is read is written, and read again."""
    path = _folder() / "graph.txt"
    path.write_bytes(data)
    with ENGINE:
        text = print_graph(read_graph(path.parent))
        path.write_text(text, encoding="utf-8")
        assert print_graph(read_graph(path.parent)) == text


def manifest(data: bytes) -> None:
    """data: an io.json, of target tensorrt and of target onnx."""
    with ENGINE:
        made = Manifest.from_json(data)
        assert Manifest.from_json(made.to_json()) == made
    path = Path("engine")
    limits = {"max_seq_len": 64, "block_size": 64, "kv_block_bytes": 16384}
    config = EngineConfig.from_dict(engine_config(target="onnx", limits=limits), path)
    known = EngineDir(path, config, {ONNX_IO: FileSum("", len(data))}, {ONNX_IO: data}, {})
    with ENGINE:
        read_io(known)


def events(data: bytes) -> None:
    """data: a stream, in pieces."""
    parser = EventParser()
    for piece in data.split(CUT):
        for event in parser.feed(piece):
            with Answered(BadAnswer):
                read_chunk(event)


def _safetensors(data: bytes) -> tuple[bytes, int]:
    """The file of a header and a last line that says how many bytes follow it, and how many do."""
    header, _, tail = data.rpartition(b"\n")
    size = min(MOST_TAIL, int(tail[:8])) if tail[:8].isdigit() else 0
    return len(header).to_bytes(8, "little") + header + bytes(size), size


def _named(data: bytes, known: tuple[str, ...]) -> dict[str, bytes]:
    """The files in an input."""
    parts = [part.partition(b"\n") for part in data.split(CUT)]
    return {name.decode(): text for name, _, text in parts if name.isascii() and name.decode() in known}


@contextmanager
def _changed(root: Path, files: dict[str, bytes]) -> Iterator[None]:
    before = {name: (root / name).read_bytes() if (root / name).exists() else None for name in files}
    for name, text in files.items():
        (root / name).write_bytes(text)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                (root / name).unlink()
            else:
                (root / name).write_bytes(old)


@lru_cache(maxsize=1)
def _made() -> tempfile.TemporaryDirectory[str]:
    """Removed with the process."""
    return tempfile.TemporaryDirectory(prefix="tensorwright-fuzz-")


def _folder() -> Path:
    return Path(_made().name)


@lru_cache(maxsize=1)
def _engine() -> Path:
    return write_engine(_folder() / "engine")


@lru_cache(maxsize=1)
def _adapter() -> Path:
    root = _folder() / "adapter"
    root.mkdir()
    (root / PEFT_CONFIG).write_text('{"peft_type": "LORA", "r": 2}')
    (root / PLACES_FILE).write_text(PLACES.to_text())
    header = {
        f"base_model.model.a.lora_{side}.weight": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        for side, shape, begin, end in (("A", [2, 4], 0, 32), ("B", [6, 2], 32, 80))
    }
    (root / PEFT_WEIGHTS).write_bytes(_safetensors(json.dumps(header).encode() + b"\n80")[0])
    return root


@lru_cache(maxsize=1)
def _checkpoint() -> Path:
    return write_checkpoint(_folder() / "checkpoint", {"a": np.ones((2, 3), np.float32)})


@lru_cache(maxsize=1)
def _sharded_checkpoint() -> Path:
    return write_sharded(_folder() / "sharded", {"x-1.safetensors": {"a": np.ones(2, np.float32)}})
