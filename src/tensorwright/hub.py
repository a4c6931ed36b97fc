"""Finds models on the Hugging Face hub and keeps one copy of the files that a build reads, in the library's own cache.

huggingface_hub downloads: it goes on where it was interrupted and shows its progress on a terminal.
"""

from __future__ import annotations

import glob
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.errors import CheckpointError, InvalidOptionError, MissingDependencyError
from tensorwright.gguf_names import SUFFIX, choose_gguf

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""The config, the weights as one file, and the list of their shards."""
TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".v1", ".v2", ".v3")
"""The ends of the names of configs, tokenizers and templates, which lie beside the weights. Further templates (.jinja)
lie in a folder."""
_log = logging.getLogger(__name__)
_HUB_NAME = re.compile(
    r"(?P<model>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<form>[\w.-]+)|/(?P<file>([\w.-]+/)*[\w.-]+\.gguf))?"
)


@dataclass(frozen=True)
class HubName:
    """What a hub name says: org/name, org/name:Q4_0 (a form of GGUF files), org/name/file.gguf."""

    model: str
    form: str | None
    file: str | None


def _parse(model: str) -> HubName | None:
    found = _HUB_NAME.fullmatch(model)
    return None if found is None else HubName(found["model"], found["form"], found["file"])


def is_hub_name(model: str) -> bool:
    """Returns whether the text has the form of a hub name: org/name, org/name:Q4_0 or org/name/file.gguf."""
    return _parse(model) is not None


def check_revision(model: str | Path, revision: str | None) -> None:
    """Raises InvalidOptionError for a revision that is no text, or is given for something else than a hub name."""
    if revision is None:
        return
    if not isinstance(revision, str) or not revision.strip():
        raise InvalidOptionError(f"revision must be a branch, a tag or a commit of the hub, got {revision!r}")
    if Path(model).exists() or not is_hub_name(str(model)):
        raise InvalidOptionError(f"revision={revision!r} is for a model of the hub, and {model} is none; leave it out")


def download_model(name: str, revision: str | None = None) -> Path:
    """Returns the local directory of a model of the hub, or its GGUF file, and downloads what is missing there.

    name: org/name, for the files in safetensors, or the one GGUF model where there are none; org/name:Q4_0, for the
    GGUF file whose name ends so; org/name/file.gguf. revision: a branch, a tag or a commit; None means the main branch.
    Without a network, the copy of an earlier download is returned, and a warning is logged. Raises CheckpointError if
    there is neither, no such model, or if a file cannot be downloaded, and MissingDependencyError without
    huggingface_hub.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingDependencyError(
            f"{name!r} is no local directory, and downloading it needs huggingface_hub: pip install huggingface_hub"
        ) from error
    shown = name if revision is None else f"{name} at {revision}"
    asked = _parse(name) or HubName(name, None, None)
    try:
        info = HfApi().model_info(asked.model, revision=revision)
    except Exception as error:  # huggingface_hub has no type for the errors of its HTTP library, which changes
        kept = None if _is_refusal(error) else _kept_copy(asked, revision)
        if kept is None:
            failed = f"was not downloaded as a whole before, and the hub could not be reached ({_first_line(error)})"
            raise _fault(shown, error, f"{failed}; check the network") from error
        _log.warning("%s: the hub could not be reached (%s); taking the copy in %s", shown, _first_line(error), kept)
        return kept
    try:
        return _download(asked, revision, [file.rfilename for file in info.siblings or ()])
    except CheckpointError:
        raise
    except Exception as error:
        failed = f"and could not be downloaded ({_first_line(error)})"
        raise _fault(shown, error, f"{failed}; check the network and the space on the disk, try again") from error


def download_config(name: str, revision: str | None = None) -> Path:
    """Returns the local copy of config.json of a model of the hub, and downloads that file alone. The arguments and the
    errors are those of `download_model`; a name of GGUF files has no config. Without a network, the copy of an earlier
    download is returned, and a warning is logged."""
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError as error:
        raise MissingDependencyError(
            f"{name!r} is no local directory, and downloading its config needs huggingface_hub: "
            "pip install huggingface_hub"
        ) from error
    asked = _parse(name)
    if asked is None or asked.form is not None or asked.file is not None:
        raise CheckpointError(f"{name}: names a GGUF file, whose config is inside; download it, and give its path")
    shown = name if revision is None else f"{name} at {revision}"
    try:
        # Without a network this fails at once, where a download tries again for half a minute.
        HfApi().model_info(name, revision=revision)
    except Exception as error:
        kept = None if _is_refusal(error) else _kept_config(name, revision)
        if kept is None:
            failed = f"its {CONFIG} was not downloaded before, and the hub could not be reached ({_first_line(error)})"
            raise _fault(shown, error, f"{failed}; check the network") from error
        _log.warning("%s: the hub could not be reached (%s); taking %s", shown, _first_line(error), kept)
        return kept
    try:
        return Path(hf_hub_download(name, CONFIG, revision=revision))
    except Exception as error:  # huggingface_hub has no type for the errors of its HTTP library, which changes
        failed = f"and its {CONFIG} could not be downloaded ({_first_line(error)})"
        raise _fault(shown, error, f"{failed}; check the network") from error


def _download(asked: HubName, revision: str | None, files: list[str]) -> Path:
    """Downloads those of the model's files that a build reads. Returns their directory, or the GGUF file."""
    from huggingface_hub import hf_hub_download, snapshot_download

    name, is_gguf = asked.model, _is_gguf(asked, files)
    if is_gguf:
        wanted = choose_gguf(asked.model, files, asked.form, asked.file)
    else:
        shards = _shards(Path(hf_hub_download(name, INDEX, revision=revision))) if INDEX in files else ()
        wanted = choose_files(name, files, shards)
    # By the revision's name and not by its commit: only then is the copy found by that name without a network.
    patterns = [glob.escape(file) for file in wanted]
    folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    return folder / wanted[0] if is_gguf else folder


def _is_gguf(asked: HubName, files: list[str]) -> bool:
    """Returns whether a GGUF file is asked for, or is all that there is."""
    if asked.form is not None or asked.file is not None:
        return True
    return not {WEIGHTS, INDEX} & {*files} and any(file.endswith(SUFFIX) for file in files)


def _is_refusal(error: Exception) -> bool:
    """Returns whether the hub answered that it does not give the model, or that the name is none."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    return isinstance(error, (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError))


def _fault(shown: str, error: Exception, failed: str) -> CheckpointError:
    """Returns the error that a user sees. failed: what went wrong and what to do, if the hub did not refuse
    the model."""
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{shown}: its owners must grant access; ask for it on the model's page, and log in with `hf auth login`"
        )
    if _is_refusal(error):
        return CheckpointError(
            f"{shown}: is no local directory, and the hub has no such model or revision; check the name, or log in "
            "with `hf auth login` if the model is private"
        )
    return CheckpointError(f"{shown}: is no local directory, {failed}, or give the path of a downloaded checkpoint")


def _kept_config(name: str, revision: str | None) -> Path | None:
    """Returns the config.json that an earlier download left, or None."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, CONFIG, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _kept_copy(asked: HubName, revision: str | None) -> Path | None:
    """Returns the copy that an earlier download left if its weights are all there, else None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # Without patterns the library wants all files of the model, which no download here takes.
        folder = Path(snapshot_download(asked.model, revision=revision, allow_patterns=[], local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    if _is_gguf(asked, files):
        try:
            return folder / choose_gguf(asked.model, files, asked.form, asked.file)[0]
        except CheckpointError:
            return None
    if CONFIG not in files:
        return None
    weights: tuple[str, ...] = (WEIGHTS,)
    if not (folder / WEIGHTS).exists() and (folder / INDEX).exists():
        weights = _shards(folder / INDEX)
    return folder if all((folder / file).exists() for file in weights) else None


def choose_files(name: str, files: Iterable[str], shards: Iterable[str] = ()) -> list[str]:
    """Returns the files that a build reads, of all `files` of a model: texts and one form of the weights.

    shards: the files that the index names, () without an index. Weights in other formats, or a second copy of them in a
    folder such as original/, are left out. Raises CheckpointError if there are no weights in safetensors.
    """
    files = list(files)
    texts = [file for file in files if file.endswith(TEXT_SUFFIXES) and "/" not in file]
    texts += [file for file in files if file.endswith(".jinja") and file.count("/") == 1]
    weights = [file for file in (WEIGHTS,) if file in files] or sorted(set(shards))
    if not weights:
        others = [file for file in files if file.endswith((".safetensors", ".bin", ".gguf", ".pt", ".pth"))]
        raise CheckpointError(
            f"{name}: has no {WEIGHTS} and no {INDEX}"
            + (f", but {', '.join(others[:3])}" if others else "")
            + "; give a model with safetensors as transformers writes them"
        )
    return [*texts, *weights]


def _shards(index: Path) -> tuple[str, ...]:
    try:
        table: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return tuple(sorted({str(file) for file in table.values()}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: is no index of safetensors ({error!r}); take another model") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
