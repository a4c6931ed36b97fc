"""Engines that TensorRT for RTX builds here, shared: no GPU is needed, and none is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.tiny_models import make_tiny
from tensorwright.builder.build import BuildResult, build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A Llama of two layers; the GPU kernels take heads of 16 and more."""
    return make_tiny(tmp_path_factory.mktemp("tensorrt") / "model", "llama", head_dim=16, tie_word_embeddings=True)


class Engines:
    """Builds each combination of options once."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self._built: dict[str, BuildResult] = {}

    def get(self, again: int = 0, **options: Any) -> BuildResult:
        """again: another build of the same."""
        key = repr((again, sorted(options.items())))
        if key not in self._built:
            out = self.folder / ("x" * (again + 1)) / str(len(self._built))
            options = {"target": "tensorrt-rtx", "accuracy": "none", "dtype": "bfloat16", "sm": [89], **options}
            self._built[key] = build(self.model, out, **options)
        return self._built[key]


@pytest.fixture(scope="session")
def engines(tiny, tmp_path_factory) -> Engines:
    return Engines(tiny, tmp_path_factory.mktemp("engines"))
