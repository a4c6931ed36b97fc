"""Imports ONNX Runtime, and opens a session of an engine's model with the chosen provider."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.onnx_manifest import OnnxManifest
from tensorwright.errors import EngineError, InvalidOptionError, MissingDependencyError
from tensorwright.installing import install

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
OLDEST = (1, 23)
"""The first release whose GroupQueryAttention has sinks."""
ONLY_FATAL = 4  # the log level; ONNX Runtime raises errors too, so its log need not repeat them


def load_onnxruntime() -> Any:
    """Imports onnxruntime. Raises MissingDependencyError if it is absent or too old."""
    try:
        ort = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingDependencyError(
            f"engines of target onnx are run by the package onnxruntime, which is absent ({error}): {install('onnx')}"
        ) from error
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) < OLDEST:
        raise MissingDependencyError(
            f"engines of target onnx need onnxruntime {'.'.join(map(str, OLDEST))} or newer, this is "
            f"{ort.__version__}: pip install --upgrade onnxruntime"
        )
    return ort


def open_session(ort: Any, model: Path, threads: int, provider: str) -> Any:
    """Opens a session of the model. Raises InvalidOptionError, MissingDependencyError and EngineError.

    provider: "cpu" or "cuda". If the provider does not work, an error is raised; no other provider replaces it.
    """
    if provider not in PROVIDERS:
        raise InvalidOptionError(
            f"the provider of ONNX Runtime must be one of {', '.join(PROVIDERS)}, got {provider!r} (see "
            "TENSORWRIGHT_ONNX_PROVIDER)"
        )
    name = PROVIDERS[provider]
    if name not in ort.get_available_providers():
        raise MissingDependencyError(
            f"provider {provider!r} needs {name}, which this onnxruntime lacks: pip install onnxruntime-gpu instead of "
            "onnxruntime, or leave TENSORWRIGHT_ONNX_PROVIDER out"
        )
    if provider == "cuda":
        # It finds the CUDA libraries that pip installed; without it only those of the system's search path are found.
        ort.preload_dlls(directory="")
    try:
        session = ort.InferenceSession(str(model), _options(ort, threads), providers=[name])
    except Exception as error:  # onnxruntime's own classes of errors share no base
        raise EngineError(
            f"{model}: onnxruntime {ort.__version__} does not load it ({error}); build the engine again, or with "
            "another dtype if that is what it lacks"
        ) from error
    if session.get_providers()[0] != name:
        raise MissingDependencyError(
            f"provider {provider!r} did not start, ONNX Runtime fell back to {session.get_providers()[0]}: check the "
            "driver and the CUDA libraries"
        )
    return session


def check_model(session: Any, io: OnnxManifest, vocab_size: int, model: Path) -> None:
    """Compares the model's own inputs and outputs with io.json and config.json. Raises EngineError if they differ."""
    inputs = {value.name for value in session.get_inputs()}
    shapes = {value.name: value.shape for value in session.get_outputs()}
    wanted = [*io.inputs, *(name for layer in io.layers for name in (layer.key, layer.value))]
    made = [io.logits, *(name for layer in io.layers for name in (layer.present_key, layer.present_value))]
    absent = [*(name for name in wanted if name not in inputs), *(name for name in made if name not in shapes)]
    if absent:
        raise EngineError(f"{model}: has no {', '.join(absent)}, as io.json says: two builds are mixed; {REMEDY}")
    width = shapes[io.logits][-1]
    if isinstance(width, int) and width != vocab_size:
        raise EngineError(
            f"{model}: a row of {io.logits} has {width} values, but vocab_size is {vocab_size} in config.json: two "
            f"builds are mixed; {REMEDY}"
        )


def _options(ort: Any, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # steps differ in size, and ONNX Runtime would keep a memory plan for each size
    options.log_severity_level = ONLY_FATAL
    # ONNX Runtime's threads must sleep between steps, because requests may be far apart and other programs need the
    # processors.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
