"""A Hugging Face checkpoint directory: config, weights in safetensors (one file or shards), tokenizer, chat template.

Opening checks every header; weight bytes are mapped only when read. Everything wrong is a CheckpointError.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import CheckpointError, MissingDependencyError, is_panic, reason
from tensorwright.json_text import read_json
from tensorwright.models.dtypes import FLOATS, Tensor
from tensorwright.models.safetensors_file import SafetensorsFile

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer_config.json", "special_tokens_map.json")
_OLDER_TOKENIZERS = (
    "tokenizer.model", "tokenizer.model.v1", "tokenizer.model.v2", "tokenizer.model.v3", "spiece.model",
    "sentencepiece.bpe.model", "tiktoken.model", "qwen.tiktoken", "tekken.json", "vocab.json", "merges.txt",
    "vocab.txt",
)  # fmt: skip
_ADDED_TOKENS = "added_tokens.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATES = "additional_chat_templates"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_SHOWN = 10  # faults of one kind that a message lists
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", *(name for name in _OLDER_TOKENIZERS if ".json" not in name))


class Checkpoint:
    """An opened checkpoint. Also the TensorSource that weight expressions are evaluated against.

    path: the directory; config: config.json; generation_config: its file or {}; names: every stored tensor, sorted.
    is_engine: it is a built engine read as a checkpoint, whose text side is finished.
    """

    is_engine = False

    def __init__(self, path: Path):
        self.path = path
        self.config: dict[str, Any] = _read_json(
            path / "config.json", "every checkpoint has one: give the directory that holds it"
        )
        if self.config.get("format") == "tensorwright-engine":
            raise CheckpointError(f"{path}: is a built engine; give the checkpoint that it was built from")
        family = self.config.get("model_type")
        if not isinstance(family, str) or not family:
            raise CheckpointError(
                f'{path}/config.json: model_type must name the model\'s family, such as "llama", not {family!r}; '
                "take the config.json that came with the weights"
            )
        generation = path / "generation_config.json"
        self.generation_config: dict[str, Any] = _read_json(generation, "") if generation.exists() else {}
        self.weight_files = _weight_files(path)
        self._home: dict[str, SafetensorsFile] = {}
        for file in self.weight_files:
            for name in file.tensors:
                if name in self._home:
                    raise CheckpointError(
                        f"{path}: tensor {name!r} is in both {self._home[name].path.name} and {file.path.name}; "
                        "remove the stale shard"
                    )
                self._home[name] = file
        _check_index(path, self._home)
        self._tokenizer = _read_tokenizer(path / _TOKENIZER)
        self.names: tuple[str, ...] = tuple(sorted(self._home))

    # -- tensors --------------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).tensors[name].shape

    def dtype(self, name: str) -> str:
        return self._file(name).tensors[name].dtype

    def read(self, name: str) -> Tensor:
        """The stored tensor as a read-only view of its file."""
        return self._file(name).read(name)

    def require(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Checks that all these tensors are stored with these shapes; one CheckpointError lists what does not fit."""
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
    def largest_tensor_bytes(self) -> int:
        infos = (info for file in self.weight_files for info in file.tensors.values())
        return max((info.end - info.begin for info in infos), default=0)

    @property
    def native_dtype(self) -> str:
        """The element type that the model runs in: config.json's, else the one most weight bytes are stored in."""
        named = self.config.get("dtype")
        named = self.config.get("torch_dtype") if named is None else named
        if named is not None:
            if named not in FLOATS:
                allowed = ", ".join(FLOATS)
                raise CheckpointError(f"{self.path}/config.json: dtype must be one of {allowed}, not {named!r}")
            return named
        sizes = dict.fromkeys(FLOATS, 0)
        for file in self.weight_files:
            for info in file.tensors.values():
                if info.dtype in sizes:
                    sizes[info.dtype] += info.end - info.begin
        return max(FLOATS, key=lambda dtype: (sizes[dtype], -ITEM_BYTES[dtype]))

    # -- text side ------------------------------------------------------------------------------------------------

    @property
    def tokenizer_files(self) -> dict[str, Path]:
        """The tokenizer's files that exist, by file name."""
        paths = {name: self.path / name for name in _TOKENIZER_FILES}
        return {name: path for name, path in paths.items() if path.is_file()}

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        path = self.path / "tokenizer_config.json"
        return _read_json(path, "") if path.exists() else {}

    def take_tokenizer(self) -> tokenizers.Tokenizer | None:
        """tokenizer.json as it was read when the checkpoint was opened. Once: a large one takes too much to be kept."""
        taken, self._tokenizer = self._tokenizer, None
        return taken

    @property
    def older_tokenizer_files(self) -> list[Path]:
        """Files of the forms before tokenizer.json: sentencepiece models, vocabularies with merges, tiktoken's."""
        return [path for name in _OLDER_TOKENIZERS if (path := self.path / name).is_file()]

    @cached_property
    def special_tokens_map(self) -> dict[str, Any]:
        path = self.path / "special_tokens_map.json"
        return _read_json(path, "") if path.exists() else {}

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Jinja texts by name, as transformers finds them: the files' if there are any, chat_template.jinja under
        "default", else those of tokenizer_config.json, where a single one is the default, too."""
        files = {"default": self.path / _TEMPLATE, **_by_stem(self.path / _TEMPLATES)}
        found = {name: _read_text(file, "") for name, file in files.items() if file.is_file()}
        templates = found or _listed_templates(self.tokenizer_config.get("chat_template"), self.path)
        for name in templates:
            if not _TEMPLATE_NAME.fullmatch(name):
                raise CheckpointError(f"{self.path}: a chat template is called {name!r:.80}, which no file could be")
        return templates

    @property
    def bos_token_id(self) -> int | None:
        bos = _token_ids(self._generation_value("bos_token_id"), "bos_token_id", self.path)
        return bos[0] if bos else None

    @property
    def eos_token_ids(self) -> list[int]:
        """Token ids that end a text: generation_config.json's, else config.json's; sorted, maybe none."""
        return sorted(set(_token_ids(self._generation_value("eos_token_id"), "eos_token_id", self.path)))

    def _generation_value(self, key: str) -> Any:
        value = self.generation_config.get(key)
        return self.config.get(key) if value is None else value

    # -- identity -------------------------------------------------------------------------------------------------

    @property
    def source_files(self) -> list[Path]:
        """Every file that an engine is made from, by name: config, weights, tokenizer, template."""
        names = ["config.json", "generation_config.json", _TEMPLATE, _INDEX, *_TOKENIZER_FILES]
        paths = [self.path / name for name in names] + list(_by_stem(self.path / _TEMPLATES).values())
        if not (self.path / _TOKENIZER).is_file():
            paths += [*self.older_tokenizer_files, self.path / _ADDED_TOKENS]
        return sorted({p for p in paths if p.is_file()} | {f.path for f in self.weight_files})

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._home:
            raise CheckpointError(f"{self.path}: no tensor {name!r} among the {len(self._home)} stored")
        return self._home[name]


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Opens a checkpoint directory, or a hub name "org/name" by downloading it.

    Raises CheckpointError that names the file at fault and the remedy; MissingDependencyError if a download is
    needed and huggingface_hub is not installed.
    """
    path = Path(os.path.expanduser(model))
    if path.is_file():
        raise CheckpointError(f"{path}: must be a checkpoint directory (with config.json), not a file")
    if not path.exists():
        if not _HUB_NAME.fullmatch(str(model)):
            raise CheckpointError(f"{path}: no such directory; give a checkpoint directory or a hub name like org/name")
        path = _download(str(model))
    return Checkpoint(path)


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingDependencyError(
            f"{name!r} is no local directory, and downloading it needs huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{name!r} is no local directory and could not be downloaded ({reason}); check the name and the network "
            "(for gated models log in with `hf auth login`), or give the path of a downloaded checkpoint"
        ) from error


def _weight_files(path: Path) -> list[SafetensorsFile]:
    if (path / _SINGLE).is_file():
        return [SafetensorsFile(path / _SINGLE)]
    if (path / _INDEX).is_file():
        shards = sorted(set(_weight_map(path).values()))
        absent = [shard for shard in shards if not os.path.isfile(path / shard)]  # False for names that no file has
        if absent:
            named = ", ".join(absent[:_SHOWN]) + (f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else "")
            raise CheckpointError(
                f"{path}: {_INDEX} names {len(shards)} shards, of which these are missing: {named}; download them again"
            )
        return [SafetensorsFile(path / shard) for shard in shards]
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for p in path.glob(pattern))
    hint = f"; only safetensors is read, not {', '.join(others)}: convert with save_pretrained" if others else ""
    raise CheckpointError(f"{path}: must hold {_SINGLE} or {_INDEX}{hint}")


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer | None:
    """An engine gets tokenizer.json as it is, so it must be one that the runtime will read."""
    if not path.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # the library raises plain Exception for every malformed file, or panics
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(
            f"{path}: not a tokenizer that tokenizers {tokenizers.__version__} reads ({error}); download it again"
        ) from error


def _by_stem(folder: Path) -> dict[str, Path]:
    """Templates in the folder by name; none where there is no folder."""
    return {path.name.removesuffix(".jinja"): path for path in sorted(folder.glob("*.jinja"))}


def _listed_templates(value: Any, path: Path) -> dict[str, str]:
    """value: chat_template of tokenizer_config.json, a text, or a list of texts with names."""
    if value is None or value == []:
        return {}
    if isinstance(value, str):
        return {"default": value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    named = {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    texts = [entry.get(key) for entry in entries for key in ("name", "template")]
    if not named or len(named) != len(value) or not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"{path}/tokenizer_config.json: chat_template is neither text nor a named list")
    return named


def _weight_map(path: Path) -> dict[str, str]:
    table = _read_json(path / _INDEX, "").get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{path / _INDEX}: weight_map must map tensor names to file names")
    # A shard is a plain file beside the index: anything else would read outside the checkpoint.
    outside = [v for v in table.values() if Path(v).name != v]
    if outside:
        raise CheckpointError(f"{path / _INDEX}: shard {outside[0]!r} must be a file name without a folder")
    return table


def _check_index(path: Path, home: dict[str, SafetensorsFile]) -> None:
    if (path / _SINGLE).is_file():
        return
    lost = [
        f"  {name} (in {shard})"
        for name, shard in sorted(_weight_map(path).items())
        if name not in home or home[name].path.name != shard
    ]
    if lost:
        raise CheckpointError(
            f"{path}: {_INDEX} lists {len(lost)} tensors that their shards do not hold:\n" + _some(lost)
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


def _read_json(path: Path, why: str) -> dict[str, Any]:
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
