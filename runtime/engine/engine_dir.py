"""Opening an engine directory: everything is validated before anything runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from tensorwright.engine_format.checksums import (
    REMEDY,
    FileMark,
    FileSum,
    check_unchanged,
    read_checksums,
    read_whole,
    verify_files,
)
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.template_files import read_templates
from tensorwright.engine_format.weight_formats import QuantizeSpec, parse_spec
from tensorwright.errors import EngineError, InvalidOptionError
from tensorwright.json_text import read_json
from tensorwright.runtime.base.once import once
from tensorwright.runtime.text.special_tokens import special_tokens
from tensorwright.runtime.text.tokenizer import Tokenizer

FORMAT = "tensorwright-engine"
FORMAT_VERSION = 1
CONFIG, TOKENIZER = "config.json", "tokenizer.json"

_KEYS: dict[str, type | tuple[type, ...]] = {
    "format": str,
    "format_version": int,
    "tensorwright_version": str,
    "target": str,
    "model": dict,
    "dtype": str,
    "limits": dict,
    "build_options": dict,
    "passes": dict,
    "accuracy": (dict, type(None)),
    "quantization": (dict, type(None)),
    "source": dict,
    "sizes": dict,
}


@dataclass(frozen=True)
class EngineDir:
    """A validated engine. `config` is config.json; the rest is read from it or from the files beside it.

    It keeps what it read when it was opened, so that its folder may be replaced while it is served. texts: the bytes
    of its text files, by relative path. marks: of all other files, see `check_unchanged`. created: Unix time in seconds
    at which config.json was written or copied.
    """

    path: Path
    config: dict[str, Any]
    files: dict[str, FileSum] = field(repr=False)
    texts: dict[str, bytes] = field(repr=False)
    marks: dict[str, FileMark] = field(repr=False)
    created: int = 0

    def file(self, name: str) -> Path:
        """A file that the engine must have and that was checked."""
        if name not in self.files:
            raise EngineError(f"{self.path / name}: an engine of target {self.target!r} must have it; {REMEDY}")
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file as it was when the engine was opened, {} if the engine has none of that name."""
        return _parse_object(self.path / name, self.text(name)) if name in self.files else {}

    def text(self, name: str) -> bytes:
        """A text file as it was when the engine was opened; not that of the tokenizer, which is not kept."""
        self.file(name)  # raises where there is none
        return self.texts[name]

    def check_unchanged(self) -> None:
        """EngineError if what its target runs is no longer what was checked. To be called once it is mapped or read:
        what was mapped stays as it is, whatever becomes of the folder."""
        names = [name for name in TARGETS[self.target].files if name in self.marks]
        check_unchanged(self.path, names, self.marks)

    @property
    def target(self) -> str:
        return self.config["target"]

    @property
    def dtype(self) -> str:
        return self.config["dtype"]

    @property
    def kv_cache_dtype(self) -> str:
        """As the build was asked: one of KV_CACHE_DTYPES."""
        return self.config["build_options"].get("kv_cache_dtype", "auto")

    @property
    def quantize_names(self) -> tuple[str, ...]:
        """How its weights were quantized: as the build was asked, and spelled out; none if they were not."""
        record = self.config["quantization"]
        names = (self.config["build_options"].get("quantize"), record and record.get("spec"))
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))

    @once
    def quantize_specs(self) -> tuple[QuantizeSpec, ...]:
        """The formats that `quantize_names` name. Raises EngineError for a name that this version does not read."""
        try:
            return tuple(parse_spec(name) for name in self.quantize_names)
        except InvalidOptionError as error:
            raise EngineError(f"{self.path / CONFIG}: {error}; {REMEDY}") from error

    @property
    def model(self) -> dict[str, Any]:
        return self.config["model"]

    @property
    def vocab_size(self) -> int:
        return self.model["vocab_size"]

    @property
    def max_seq_len(self) -> int:
        return self.config["limits"]["max_seq_len"]

    @property
    def block_size(self) -> int:
        return self.config["limits"]["block_size"]

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block of the KV cache, all layers."""
        return self.config["limits"]["kv_block_bytes"]

    @property
    def plan(self) -> Path:
        """Of target cpu."""
        return self.file("cpu/plan.bin")

    @property
    def weights(self) -> Path:
        """The file that holds them, whatever the target."""
        return self.file(TARGETS[self.target].weights)

    @once
    def eos_token_ids(self) -> list[int]:
        """Of the generation config if it names any, for chat models end a turn with a token that config.json lacks.

        Without ids beyond the vocabulary, which cut-down models inherit: they are never sampled, so they end nothing.
        """
        listed, name = self.read_json("generation_config.json").get("eos_token_id"), "generation_config.json"
        if listed is None:
            listed, name = self.model.get("eos_token_ids") or [], "config.json"
        ids = listed if isinstance(listed, list) else [listed]
        if not all(_is_count(token) for token in ids):
            raise EngineError(f"{self.path / name}: end-of-sequence tokens must be token ids, got {listed!r}; {REMEDY}")
        return [token for token in ids if token < self.vocab_size]

    @once
    def tokenizer_settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """tokenizer_config.json and special_tokens_map.json, each {} if the engine has none."""
        return self.read_json("tokenizer_config.json"), self.read_json("special_tokens_map.json")

    @once
    def chat_templates(self) -> dict[str, str]:
        """Jinja texts by name, "default" first; none for a model that does not chat."""
        return read_templates(self.path, self.texts, self.tokenizer_settings[0])

    @once
    def special_tokens(self) -> list[AddedToken]:
        """What these two files call special, beside what tokenizer.json does."""
        return special_tokens(*self.tokenizer_settings)

    @once
    def tokenizer(self) -> Tokenizer | None:
        """None for an engine that was built from a checkpoint without one."""
        if TOKENIZER not in self.files:
            return None
        tokenizer = Tokenizer.from_bytes(self.texts[TOKENIZER], self.path / TOKENIZER, self.special_tokens)
        del self.texts[TOKENIZER]  # tens of MB for a large vocabulary
        return tokenizer

    def load_text_side(self) -> None:
        """Reads tokenizer and chat templates now rather than when they are first asked for."""
        _ = self.tokenizer, self.chat_templates


def is_engine(path: Path) -> bool:
    """Whether the directory claims to be an engine, whole or not; a Hugging Face model does not."""
    sums = os.path.exists(path / "checksums.txt")  # unlike Path.exists, False where permission is denied
    try:
        config = read_json((path / "config.json").read_bytes())
        return config.get("format") == FORMAT or (sums and "model_type" not in config)
    except (OSError, ValueError, AttributeError):
        return sums


def open_engine(path: str | Path, *, read_tokenizer: bool = False) -> EngineDir:
    """Validates format, version, target, sizes and checksums; EngineError names the file and the remedy.

    read_tokenizer: now, while the weights are being checked, rather than when it is first asked for.
    """
    if not str(path).strip():
        raise EngineError("an engine directory must be named, not an empty text")
    root = Path(path)
    if not os.path.exists(root):  # unlike Path.exists, False for a name that no file can have
        raise EngineError(f"{root}: no such engine directory; build one with: build-engine MODEL {root}")
    if not root.is_dir():
        raise EngineError(f"{root}: an engine is a directory, this is a file")
    if not os.path.exists(root / "config.json"):
        raise EngineError(f"{root}: not an engine, it has no config.json; build one with: build-engine MODEL OUT")
    path = root / CONFIG
    created, data = int(path.stat().st_mtime), read_whole(path)
    # The version comes before the checksums: another version may check itself in another way.
    config = _parse_object(path, data)
    _check_format(path, config)
    files = read_checksums(root)
    if CONFIG not in files:
        raise EngineError(f"{root / 'checksums.txt'}: does not list {CONFIG}; {REMEDY}")
    engine = EngineDir(root, config, files, {CONFIG: data}, {}, created)
    target = TARGETS[engine.target]
    meanwhile = engine.load_text_side if read_tokenizer else None
    verify_files(root, files, target.weights, engine.texts, engine.marks, meanwhile)
    _check_config(path, config)
    for name in target.files:
        engine.file(name)
    _ = engine.eos_token_ids  # raises where they are none
    return engine


def _parse_object(path: Path, data: bytes) -> dict[str, Any]:
    """path: what the message names."""
    try:
        value = read_json(data)
    except ValueError as error:
        raise EngineError(f"{path}: truncated or altered, not readable as JSON ({error}); {REMEDY}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: must hold a JSON object; {REMEDY}")
    return value


def _check_format(path: Path, config: dict[str, Any]) -> None:
    if config.get("format") != FORMAT:
        what = "a Hugging Face model" if "model_type" in config or "architectures" in config else "something else"
        raise EngineError(f"{path.parent}: not an engine but {what}; build one with: build-engine {path.parent} OUT")
    if config.get("format_version") != FORMAT_VERSION:
        raise EngineError(
            f"{path}: format version {config.get('format_version')!r}, this tensorwright reads {FORMAT_VERSION}; "
            f"build the engine again, or run it with tensorwright {config.get('tensorwright_version', 'of its time')}"
        )
    if config.get("target") not in list(TARGETS):  # a list, for the value may be anything
        raise EngineError(
            f"{path}: built for target {config.get('target')!r}, this runtime runs {', '.join(TARGETS)}; "
            "build the engine again with --target cpu"
        )


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for key, kind in _KEYS.items():
        if not isinstance(config.get(key, ...), kind):
            raise EngineError(f"{path}: {key!r} is missing or of the wrong type; {REMEDY}")
    unknown = sorted(config.keys() - _KEYS.keys())
    if unknown:
        raise EngineError(f"{path}: unknown keys {', '.join(unknown)} in format version {FORMAT_VERSION}; {REMEDY}")
    dtypes = TARGETS[config["target"]].dtypes
    if config["dtype"] not in dtypes:
        raise EngineError(
            f"{path}: dtype {config['dtype']!r} is none of {', '.join(dtypes)}, which target {config['target']!r} has; "
            f"{REMEDY}"
        )
    counts = [("model", "vocab_size"), *(("limits", key) for key in ("max_seq_len", "block_size", "kv_block_bytes"))]
    for section, key in counts:
        value = config[section].get(key)
        if not _is_count(value) or value == 0:
            raise EngineError(f"{path}: {section}.{key} must be a positive integer, got {value!r}; {REMEDY}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
