"""Writes models into a Triton model repository, and the backend's own folder, for `tensorwright triton-repo`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensorwright import durable
from tensorwright.errors import BuildError, InvalidOptionError, OutputExistsError, reason
from tensorwright.options.declare import check_values, find
from tensorwright.options.triton import TRTLLM_NAMES, ModelFields, RepositoryFields
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.executors import default_limits
from tensorwright.runtime.serving.triton.model_config import config_text
from tensorwright.runtime.serving.triton.model_options import ModelOptions, parse_options

MODEL_FILE = '''"""Written by `tensorwright triton-repo`: the model itself is in the tensorwright package."""

from tensorwright.triton_model import TritonPythonModel as TritonPythonModel
'''
_MADE = ".tensorwright-"
"""The names of temporary folders, in which models are written, begin with this text."""


@dataclass(frozen=True)
class RepositoryOptions(RepositoryFields):
    """The options of `tensorwright triton-repo`: those of RepositoryFields, and these.

    interface: a name of interfaces.py. max_batch_size: the most completions that run at once, and the most prompts of
    one request; None means LLM's value. overwrite: whether models that are there are replaced. parameters: further
    parameters of config.pbtxt, as text.
    """

    interface: str = find(ModelFields, "interface").default
    max_batch_size: int | None = None
    overwrite: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)

    def models(self) -> dict[str, str]:
        """Returns the interface of each model to write, by the model's name."""
        return {self.name: self.interface, **{name: TRTLLM_NAMES[name] for name in self.trtllm_names}}


def write_repository(engine: str | Path, repository: str | Path, options: RepositoryOptions) -> list[Path]:
    """Writes every model or none, and returns their folders. It opens the engine once, which checks the engine.

    Raises OutputExistsError if a model exists already, and BuildError if the repository cannot be written to.
    """
    _check(options)
    found = open_engine(engine)
    found.config.require_generation(found.path, "a repository for Triton")
    opened = found.path.resolve()
    if options.max_batch_size is None:
        options = replace(options, max_batch_size=_usual_batch(found, options.parameters))
    root = Path(repository)
    targets = {root / name: interface for name, interface in options.models().items()}
    taken = [str(target) for target in targets if target.exists()]
    if taken and not options.overwrite:
        raise OutputExistsError(_taken(", ".join(taken)))
    with _os_errors(root):
        _put(root, targets, opened, options)
    return list(targets)


def _put(root: Path, targets: Mapping[Path, str], opened: Path, options: RepositoryOptions) -> None:
    root.mkdir(parents=True, exist_ok=True)
    # Whole folders are renamed into place, so that a server that polls the repository never sees half a model.
    for left in durable.abandoned(root, _MADE):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_MADE, dir=root) as folder:
        made, mark = Path(folder), durable.hold(Path(folder))
        try:
            for target, interface in targets.items():
                _write_model(made / target.name, target, opened, interface, options)
            durable.sync_tree(made)
            for target in targets:
                old = durable.put_in_place(made / target.name, target)
                if old is not None and old.parent != made:
                    shutil.rmtree(old)
        finally:
            if mark is not None:
                os.close(mark)


def write_backend(folder: str | Path, overwrite: bool = False) -> Path:
    """Writes the folder `tensorwright`, which tritonserver finds beside `python` in its --backend-directory.

    Returns the folder's path. Raises OutputExistsError and BuildError.
    """
    target = Path(folder) / "tensorwright"
    if target.exists() and not overwrite:
        raise OutputExistsError(_taken(str(target)))
    with _os_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        made = target / ".model.py"
        made.write_text(MODEL_FILE, encoding="utf-8")
        durable.sync(made)
        made.replace(target / "model.py")
        durable.sync(target)
    return target


def _taken(places: str) -> str:
    return f"{places}: already exists; choose another place, or say overwrite (--force) to replace it"


@contextmanager
def _os_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"{place}: cannot be written to ({reason(error)}); free the disk or choose another place"
        ) from error


def _write_model(folder: Path, target: Path, engine: Path, interface: str, options: RepositoryOptions) -> None:
    """Writes one model. folder: the folder to write into. target: the later place of that folder, from which a relative
    path to the engine starts."""
    version = folder / "1"
    version.mkdir(parents=True)
    path = os.path.relpath(engine, target.resolve()) if options.relative else str(engine)
    parameters = {
        "engine": path, "interface": interface, "max_batch_size": str(options.max_batch_size), **options.parameters,
    }  # fmt: skip
    if interface == "tokens":
        parameters.pop("chat_template", None)  # The token interface takes no text.
    batch = (options.max_batch_size or 0) if options.batch_dimension and interface != "llmapi" else 0
    _parse(parameters)
    text = config_text(target.name, options.backend, batch, parameters, options.decoupled)
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    if options.backend == "python":
        (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")


def _usual_batch(engine: EngineDir, parameters: Mapping[str, str]) -> int:
    """Returns the value that LLM chooses if max_batch_size is not given."""
    batch = default_limits(engine)["max_batch_size"]
    return min(batch, _parse({"engine": ".", **parameters}).llm.get("max_num_tokens", batch))


def _parse(parameters: Mapping[str, str]) -> ModelOptions:
    """Reads the parameters as the model will read them in config.pbtxt. Raises InvalidOptionError."""
    return parse_options({"parameters": {key: {"string_value": value} for key, value in parameters.items()}})


def _check(options: RepositoryOptions) -> None:
    check_values(options, RepositoryFields)
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", options.name) is None:
        raise InvalidOptionError(f"a model's name must be letters, digits and _ . - alone, got {options.name!r}")
    if options.name in options.trtllm_names:
        raise InvalidOptionError(f"--name {options.name} is among --trtllm-names too; name it once")
    if options.max_batch_size is not None and options.max_batch_size < 1:
        raise InvalidOptionError(f"max_batch_size must be a positive integer, got {options.max_batch_size}")
    if len(options.models()) > 1 and "kv_cache_memory" not in options.parameters:
        raise InvalidOptionError(
            f"{len(options.models())} models each run an engine with a KV cache of its own: say how much memory each "
            "gets with --kv-cache-memory (or write only the name that your clients call, with --name and --interface)"
        )
