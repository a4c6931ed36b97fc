"""Models as Triton's Python backend loads them, and inputs as clients send them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.runtime.serving.triton.model import TritonPythonModel


def as_inputs(values: dict[str, Any], batched: bool) -> dict[str, np.ndarray]:
    """Python values as a client sends them: one prompt, with a batch dimension of 1 if batched."""
    arrays = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            array = value
        else:
            listed = value if isinstance(value, list) else [value]
            kinds = {bool: np.bool_, int: np.int32, float: np.float32}
            if isinstance(listed[0], str):
                array = np.array([text.encode() for text in listed], np.object_)
            else:
                array = np.array(listed, kinds[type(listed[0])])
            if name.endswith("seed"):
                array = array.astype(np.uint64)
        arrays[name] = array[np.newaxis] if batched else array
    return arrays


def load(engine: Path, batched: bool = True, decoupled: bool = True, **parameters: str) -> TritonPythonModel:
    config = {
        "max_batch_size": 8 if batched else 0,
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {
            key: {"string_value": value}
            for key, value in {"engine": str(engine), "kv_cache_memory": "16MiB", "threads": "1", **parameters}.items()
        },
    }
    model = TritonPythonModel()
    arguments = {"model_config": json.dumps(config), "model_repository": str(engine.parent)}
    model.initialize({**arguments, "model_name": "tensorwright", "model_version": "1"})
    return model
