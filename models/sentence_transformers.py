"""Reads what a checkpoint says of its use for embeddings, in the files of the sentence-transformers library.

modules.json lists the modules that a text goes through: Transformer, Pooling, Normalize. The folder of Pooling has a
config.json with the mode. config_sentence_transformers.json has texts that stand before a text, by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.engine_format.pooling import LAST, MEAN
from tensorwright.errors import CheckpointError, UnsupportedModelError, reason
from tensorwright.json_text import read_json

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
_MODES = {"pooling_mode_lasttoken": LAST, "pooling_mode_mean_tokens": MEAN}
_NAMES = {"lasttoken": LAST, "mean": MEAN}
"""The modes in the newer form of the Pooling module's config.json: {"pooling_mode": "lasttoken"}."""
_SUPPORTED = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class SentenceFiles:
    """What the files say. pooling: None if they list no Pooling module; normalize: whether they list Normalize."""

    pooling: str | None
    normalize: bool
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def says_embeddings(folder: Path) -> bool:
    """Returns whether the checkpoint has modules.json with a module that pools."""
    return any(kind == "Pooling" for kind, _ in _modules(folder))


def read_sentence_files(folder: Path, pooling: str | None = None) -> SentenceFiles | None:
    """Returns what the files of `folder` say, None if there is no modules.json.

    pooling: the mode that the user names, in place of that of the files. Raises CheckpointError for files that are not
    as the library writes them, and UnsupportedModelError for modules and modes that are not computed here.
    """
    modules = _modules(folder)
    if not modules:
        return None
    file = folder / MODULES
    for kind, _ in modules:
        if kind not in _SUPPORTED:
            raise UnsupportedModelError(
                f"{file}: the module {kind} is not computed; embeddings may go through {', '.join(_SUPPORTED)}"
            )
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer"], [*_SUPPORTED[:2]], [*_SUPPORTED]):
        raise UnsupportedModelError(f"{file}: the modules {', '.join(kinds)} must be {', '.join(_SUPPORTED)}, in order")
    prompts, default = _prompts(folder)
    if pooling is None and "Pooling" in kinds:
        pooling = _pooling(folder / modules[kinds.index("Pooling")][1] / "config.json", prompts)
    return SentenceFiles(pooling, "Normalize" in kinds, prompts, default)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the class name and the folder of each module, in order; [] without modules.json."""
    file = folder / MODULES
    if not file.exists():
        return []
    found = _read(file)
    good = isinstance(found, list) and all(
        isinstance(one, dict) and isinstance(one.get("type"), str) and isinstance(one.get("path"), str) for one in found
    )
    if not good or not found:
        raise CheckpointError(f"{file}: must be a list of modules, each with type and path; take the published file")
    modules = [(one["type"].rpartition(".")[2], one["path"]) for one in found]
    for _, path in modules:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise CheckpointError(f"{file}: a module's path must lie inside the checkpoint, not {path!r}")
    return modules


def _pooling(file: Path, prompts: dict[str, str]) -> str:
    config = _read(file)
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: must be an object; take the published file")
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    named = config.get("pooling_mode")
    found = [_MODES.get(mode) for mode in modes] + ([_NAMES.get(named)] if isinstance(named, str) else [])
    if len(found) != 1 or found[0] is None:
        came = ", ".join([*modes, *([repr(named)] if named else [])]) or "none"
        raise UnsupportedModelError(
            f"{file}: the mode of pooling must be one of {', '.join(_MODES)}, not {came}; name another one with "
            "--pooling if the model was trained for it"
        )
    if config.get("include_prompt") is False and found[0] == MEAN and any(prompts.values()):
        raise UnsupportedModelError(
            f"{file}: a mean that leaves out the tokens of the prompt (include_prompt: false) is not computed"
        )
    return found[0]


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    file = folder / PROMPTS
    if not file.exists():
        return {}, None
    config = _read(file)
    prompts = (config.get("prompts") or {}) if isinstance(config, dict) else None
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{file}: prompts must be texts by name; take the published file")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{file}: default_prompt_name {default!r} must be one of the prompts")
    return prompts, default


def _read(file: Path) -> Any:
    try:
        return read_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({reason(error)}); take the published file") from error
