"""Opens a Hugging Face checkpoint directory: config, weights in safetensors, tokenizer, chat template; or a GGUF file.

The weights are one file or shards. Opening checks every header; weight bytes are mapped only when they are read. A
quantized checkpoint is decoded as it is read. Every fault is a CheckpointError; a quantization that is not read is an
UnsupportedModelError.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.engine_config import names_engine
from tensorwright.engine_format.file_names import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_SUFFIX,
    CHAT_TEMPLATES,
    CONFIG,
    GENERATION_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from tensorwright.engine_format.template_files import DEFAULT, listed_templates
from tensorwright.errors import CheckpointError, is_panic, reason
from tensorwright.gguf_names import gguf_of, is_gguf
from tensorwright.hub import INDEX, WEIGHTS, check_revision, download_model, is_hub_name
from tensorwright.ir.weights import CHANNEL_SCALES, COLUMN_ORDER
from tensorwright.json_text import read_json
from tensorwright.models.dtypes import FLOATS, Ranges, Tensor
from tensorwright.models.gguf.model import GgufModel, read_gguf
from tensorwright.models.quantized.interface import Decoded
from tensorwright.models.quantized.registry import CONFIG_KEYS, read_quantization
from tensorwright.models.safetensors_file import SafetensorsFile
from tensorwright.models.stored_tensors import StoredTensors

_TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)
OLDER_TOKENIZERS = (
    "tokenizer.model", "tokenizer.model.v1", "tokenizer.model.v2", "tokenizer.model.v3", "spiece.model",
    "sentencepiece.bpe.model", "tiktoken.model", "qwen.tiktoken", "tekken.json", "vocab.json", "merges.txt",
    "vocab.txt",
)  # fmt: skip
ADDED_TOKENS = "added_tokens.json"
PROCESSOR_TEMPLATES = ("processor_config.json", "chat_template.json")
"""Files in which the processor of a model of several parts has its chat template. The first that has one counts."""
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
TEXT_PART = "text_config"
"""The key of config.json that holds the config of the text part, if the model has other parts beside it."""
_PARTS = (TEXT_PART, "vision_config", "audio_config", "thinker_config")
HEADS = "draft_heads."
"""How the names of heads' tensors begin beside those of the model. No tensor of a checkpoint has such a name."""
_SHOWN = 10  # the most faults of one kind that a message lists


class Checkpoint:
    """An opened checkpoint. It is also the TensorSource from which weight expressions are evaluated.

    path: the directory, or the GGUF file. config: the content of config.json. generation_config: the content of its
    file, or {}. gguf: what a GGUF file says of the model, which has no other files; else None.
    stored: the tensors as the files have them. quantization: what becomes of them if config.json names one, else None.
    names: the names of all tensors, sorted. Where several stand for a matrix of the model, it is the matrix's name, and
    its values are the decoded ones.
    is_engine: whether this is a built engine read as a checkpoint, whose tokenizer and templates are final.
    heads: the checkpoint of heads that are built beside the model; its tensors are read by their names there.
    channel_scales: the vectors that a calibration has chosen so far, float32, by name. They are no tensors of the
    checkpoint; one that is not chosen is all ones, which changes no weight.
    """

    is_engine = False
    channel_scales: dict[str, np.ndarray]
    gguf: GgufModel | None = None
    heads: StoredTensors | None = None

    def __init__(self, path: Path):
        self.path = path
        self.channel_scales = {}
        if path.is_file():
            self._take(read_gguf(path))
            return
        self.config: dict[str, Any] = read_json_file(
            path / CONFIG, "every checkpoint has one: give the directory that holds it"
        )
        if names_engine(self.config):
            raise CheckpointError(f"{path}: is a built engine; give the checkpoint that it was built from")
        require_family(self.config, path / CONFIG)
        generation = path / GENERATION_CONFIG
        self.generation_config: dict[str, Any] = read_json_file(generation, "") if generation.exists() else {}
        self.stored = StoredTensors(path, weight_files(path))
        _check_index(path, self.stored)
        self._tokenizer = _read_tokenizer(path / TOKENIZER)
        quantization = self._config_value(*CONFIG_KEYS)
        self.quantization = None if quantization is None else read_quantization(quantization, self.stored, str(path))
        self.names: tuple[str, ...] = self._names()

    def _take(self, gguf: GgufModel) -> None:
        self.gguf, self.config, self.generation_config = gguf, gguf.config, gguf.generation_config
        self.stored, self.quantization, self._tokenizer = gguf.stored, gguf.quantization, None
        self.names = self._names()

    def _names(self) -> tuple[str, ...]:
        if self.quantization is None:
            return self.stored.names
        matrices = self.quantization.matrices
        hidden = self.quantization.unread.union(*(matrix.parts for matrix in matrices.values()))
        return tuple(sorted({*self.stored.names} - hidden | matrices.keys()))

    def decoded(self, name: str) -> Decoded | None:
        """Returns what decodes a matrix; None for a tensor that is stored as it is."""
        return None if self.quantization is None else self.quantization.matrices.get(name)

    def column_order(self, name: str) -> np.ndarray | None:
        """Returns the numbers of the columns of a matrix in the order of their groups, [K]; None if groups are
        neighbours already, or the matrix has none."""
        decoded = self.decoded(name)
        return None if decoded is None else decoded.column_order()

    # -- tensors --------------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def _home(self, name: str) -> tuple[StoredTensors, str]:
        """Returns the files that hold a tensor, and its name there."""
        if self.heads is not None and name.startswith(HEADS):
            return self.heads, name.removeprefix(HEADS)
        return self.stored, name

    def shape(self, name: str) -> tuple[int, ...]:
        decoded = self.decoded(name)
        home, own = self._home(name)
        return home.shape(own) if decoded is None else decoded.shape

    def dtype(self, name: str) -> str:
        decoded = self.decoded(name)
        home, own = self._home(name)
        return home.dtype(own) if decoded is None else decoded.dtype

    def read(self, name: str) -> Tensor:
        """Returns a tensor: a stored one as a read-only view of its file. Raises CheckpointError if there is none."""
        return self.read_part(name, tuple((0, size) for size in self.shape(name)))

    def read_part(self, name: str, ranges: Ranges) -> Tensor:
        """Returns the part of a tensor inside `ranges`, which has one interval per dimension."""
        if name.startswith(CHANNEL_SCALES):
            (start, end) = ranges[0]
            chosen = self.channel_scales.get(name)
            return Tensor("float32", np.ones(end - start, np.float32) if chosen is None else chosen[start:end])
        if name.startswith(COLUMN_ORDER):
            order = self.column_order(name.removeprefix(COLUMN_ORDER))
            if order is None:
                raise CheckpointError(f"{self.path}: {name.removeprefix(COLUMN_ORDER)} has no order of columns")
            return Tensor("float32", order[slice(*ranges[0])].astype(np.float32))
        decoded = self.decoded(name)
        home, own = self._home(name)
        return home.read(own).part(ranges) if decoded is None else decoded.read_part(ranges)

    def stored_bytes(self, name: str) -> int:
        """Returns the size of a tensor in the files, in bytes."""
        decoded = self.decoded(name)
        if decoded is not None:
            return sum(map(self.stored.bytes, decoded.parts))
        home, own = self._home(name)
        return home.bytes(own)

    def require(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Checks that all these tensors are stored with these shapes. Raises one CheckpointError that lists all
        faults."""
        wrong = [f"  {name}: missing" for name in shapes if name not in self]
        wrong += [
            f"  {name}: stored as {list(self.shape(name))}, config.json implies {list(shape)}"
            for name, shape in shapes.items()
            if name in self and self.shape(name) != tuple(shape)
        ]
        if wrong:
            raise CheckpointError(
                f"{self.path}: {len(wrong)} of {len(shapes)} weights do not fit the model:\n" + _some(wrong)
            )

    @property
    def native_dtype(self) -> str:
        """The element type that the model runs in: that of config.json, else the one with most bytes of weights."""
        named = self._config_value("dtype")
        named = self._config_value("torch_dtype") if named is None else named
        if named is not None:
            if named not in FLOATS:
                allowed = ", ".join(FLOATS)
                raise CheckpointError(f"{self.path}/config.json: dtype must be one of {allowed}, not {named!r}")
            return named
        sizes = dict.fromkeys(FLOATS, 0)
        for file in self.stored.files:
            for info in file.tensors.values():
                if info.dtype in sizes:
                    sizes[info.dtype] += info.end - info.begin
        return max(FLOATS, key=lambda dtype: (sizes[dtype], -ITEM_BYTES[dtype]))

    # -- text side ------------------------------------------------------------------------------------------------

    @property
    def tokenizer_files(self) -> dict[str, Path]:
        """The existing files of the tokenizer, by file name."""
        paths = {name: self.path / name for name in _TOKENIZER_FILES}
        return {name: path for name, path in paths.items() if path.is_file()}

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        if self.gguf is not None:
            return self.gguf.tokenizer_config
        path = self.path / TOKENIZER_CONFIG
        return read_json_file(path, "") if path.exists() else {}

    def take_tokenizer(self) -> tokenizers.Tokenizer | None:
        """Returns tokenizer.json as it was read when the checkpoint was opened. The second call returns None, for a
        large tokenizer takes too much memory to be kept."""
        taken, self._tokenizer = self._tokenizer, None
        return taken

    @property
    def older_tokenizer_files(self) -> list[Path]:
        """The files of other forms than tokenizer.json: sentencepiece models, vocabularies with merges, tiktoken's
        files, a GGUF file with a vocabulary."""
        if self.gguf is not None:
            return [self.path] if self.gguf.tokenizer_config else []
        return [path for name in OLDER_TOKENIZERS if (path := self.path / name).is_file()]

    @cached_property
    def special_tokens_map(self) -> dict[str, Any]:
        path = self.path / SPECIAL_TOKENS_MAP
        return read_json_file(path, "") if path.exists() else {}

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """The Jinja texts by name, as transformers finds them. If there are template files, the texts are theirs, and
        chat_template.jinja is "default". Otherwise they are those of tokenizer_config.json, where a single one is
        "default". Where the tokenizer has none, they are those of the processor, which models of several parts have:
        of processor_config.json, or else of chat_template.json."""
        files = {DEFAULT: self.path / CHAT_TEMPLATE, **_by_stem(self.path / CHAT_TEMPLATES)}
        found = {name: _read_text(file, "") for name, file in files.items() if file.is_file()}
        templates = found or self._templates_of(self.path / TOKENIZER_CONFIG, self.tokenizer_config)
        for file in (self.path / name for name in PROCESSOR_TEMPLATES):
            if not templates and file.is_file():
                templates = self._templates_of(file, read_json_file(file, ""))
        for name in templates:
            if not _TEMPLATE_NAME.fullmatch(name):
                raise CheckpointError(f"{self.path}: a chat template is called {name!r:.80}, which no file could be")
        return templates

    @staticmethod
    def _templates_of(file: Path, content: dict[str, Any]) -> dict[str, str]:
        templates = listed_templates(content.get("chat_template"))
        if templates is None:
            raise CheckpointError(f"{file}: chat_template is neither text nor a named list")
        return templates

    @property
    def bos_token_id(self) -> int | None:
        bos = _token_ids(self._generation_value("bos_token_id"), "bos_token_id", self.path)
        return bos[0] if bos else None

    @property
    def eos_token_ids(self) -> list[int]:
        """The token ids that end a text, sorted: those of generation_config.json, else of config.json. There may be
        none."""
        return sorted(set(_token_ids(self._generation_value("eos_token_id"), "eos_token_id", self.path)))

    def _generation_value(self, key: str) -> Any:
        value = self.generation_config.get(key)
        return self._config_value(key) if value is None else value

    @property
    def has_parts(self) -> bool:
        """Whether config.json holds further configs, as that of a model that reads images beside text does."""
        return any(isinstance(self.config.get(key), dict) for key in _PARTS)

    def _config_value(self, *keys: str) -> Any:
        """Returns the first value that config.json has of these keys, or else its text part; None without one."""
        parts = [part for part in (self.config, self.config.get(TEXT_PART)) if isinstance(part, dict)]
        values = (part.get(key) for part in parts for key in keys)
        return next((value for value in values if value is not None), None)

    # -- identity -------------------------------------------------------------------------------------------------

    @property
    def config_file(self) -> Path:
        """The file that the config comes from."""
        return self.path / CONFIG if self.gguf is None else self.path

    @property
    def folder(self) -> Path:
        """The directory of all files."""
        return self.path if self.gguf is None else self.path.parent

    @property
    def source_files(self) -> list[Path]:
        """Every file that an engine is made from, sorted: config, weights, tokenizer, templates."""
        if self.gguf is not None:
            return sorted(file.path for file in self.stored.files)
        names = [CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE, INDEX, *_TOKENIZER_FILES, *PROCESSOR_TEMPLATES]
        paths = [self.path / name for name in names] + list(_by_stem(self.path / CHAT_TEMPLATES).values())
        if not (self.path / TOKENIZER).is_file():
            paths += [*self.older_tokenizer_files, self.path / ADDED_TOKENS]
        return sorted({p for p in paths if p.is_file()} | {f.path for f in self.stored.files})


def require_family(config: dict[str, Any], file: Path) -> None:
    """Raises CheckpointError if the content of `file` names no family of models."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise CheckpointError(
            f'{file}: model_type must name the model\'s family, such as "llama", not {family!r}; '
            "take the config.json that came with the weights"
        )


def open_checkpoint(model: str | Path, revision: str | None = None) -> Checkpoint:
    """Opens a checkpoint directory, or a GGUF file. A hub name "org/name" is downloaded first, at `revision`.

    A directory without safetensors may hold one GGUF file, or the parts of one.

    Raises InvalidOptionError for a revision of something else than a hub name, CheckpointError, which names the faulty
    file and the remedy, and MissingDependencyError if a download is needed and huggingface_hub is not installed.
    """
    path = find_checkpoint(model, revision)
    return Checkpoint(gguf_of(path) or path)


def find_checkpoint(model: str | Path, revision: str | None = None) -> Path:
    """Returns the directory of a checkpoint, or a GGUF file. Downloads and raises as `open_checkpoint` does."""
    check_revision(model, revision)
    path = Path(os.path.expanduser(model))
    if path.is_file() and not is_gguf(path):
        raise CheckpointError(f"{path}: must be a checkpoint directory (with config.json) or a GGUF file (.gguf)")
    if path.exists():
        return path
    if not is_hub_name(str(model)):
        raise CheckpointError(f"{path}: no such directory; give a checkpoint directory or a hub name like org/name")
    return download_model(str(model), revision)


def weight_files(path: Path) -> list[SafetensorsFile]:
    """Opens the safetensors files of a directory. Raises CheckpointError if there are none, or one is missing."""
    if (path / WEIGHTS).is_file():
        return [SafetensorsFile(path / WEIGHTS)]
    if (path / INDEX).is_file():
        shards = sorted(set(_weight_map(path).values()))
        # Unlike Path.is_file, os.path.isfile is False for names that no file can have.
        absent = [shard for shard in shards if not os.path.isfile(path / shard)]
        if absent:
            named = ", ".join(absent[:_SHOWN]) + (f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else "")
            raise CheckpointError(
                f"{path}: {INDEX} names {len(shards)} shards, of which these are missing: {named}; download them again"
            )
        return [SafetensorsFile(path / shard) for shard in shards]
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
    hint = f"; safetensors and GGUF are read, not {', '.join(others)}: convert with save_pretrained" if others else ""
    raise CheckpointError(f"{path}: must hold {WEIGHTS} or {INDEX}{hint}")


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer | None:
    """Reads tokenizer.json, or returns None if there is none. An engine gets the file as it is, so it must be one that
    the runtime can read. Raises CheckpointError if it is not."""
    if not path.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # The library raises a plain Exception for a malformed file, or panics.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(
            f"{path}: not a tokenizer that tokenizers {tokenizers.__version__} reads ({error}); download it again"
        ) from error


def _by_stem(folder: Path) -> dict[str, Path]:
    """Returns the template files of a folder by name, or {} if there is no folder."""
    return {
        path.name.removesuffix(CHAT_TEMPLATE_SUFFIX): path for path in sorted(folder.glob(f"*{CHAT_TEMPLATE_SUFFIX}"))
    }


def _weight_map(path: Path) -> dict[str, str]:
    table = read_json_file(path / INDEX, "").get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{path / INDEX}: weight_map must map tensor names to file names")
    # A shard must be a plain file beside the index, for another path could lead out of the checkpoint.
    outside = [v for v in table.values() if Path(v).name != v]
    if outside:
        raise CheckpointError(f"{path / INDEX}: shard {outside[0]!r} must be a file name without a folder")
    return table


def _check_index(path: Path, stored: StoredTensors) -> None:
    if (path / WEIGHTS).is_file():
        return
    lost = [
        f"  {name} (in {shard})"
        for name, shard in sorted(_weight_map(path).items())
        if name not in stored or stored.file(name).path.name != shard
    ]
    if lost:
        raise CheckpointError(
            f"{path}: {INDEX} lists {len(lost)} tensors that their shards do not hold:\n" + _some(lost)
        )


def _some(lines: list[str]) -> str:
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(lines[:_SHOWN] + more)


def _read_text(path: Path, why: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; {why}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from error


def read_json_file(path: Path, why: str) -> dict[str, Any]:
    """Returns the object that a file of JSON holds. why: what a missing file means. Raises CheckpointError."""
    text = _read_text(path, why)
    try:
        value = read_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must be a JSON object, not {type(value).__name__}")
    return value


def _token_ids(value: Any, key: str, path: Path) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise CheckpointError(f"{path}: {key} must be a token id or a list of them, not {value!r}")
    return ids
