"""What several end-to-end tests share: real prompts, and small engines of other kinds than pico.

The prompts are lines of the standard library's files that pico did not train on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

VOCABULARY = 8192
"""As many tokens as pico has, so that loads of requests for pico are loads for these too."""


@pytest.fixture(scope="session")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function from a variant of tiny_models to its engine in bfloat16, which is built once."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        from support.tiny_models import make_variant
        from tensorwright import build

        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 512}
            model = make_variant(folder / "model", variant, seed=5, **sizes)
            made[variant] = build(model, folder / "engine", dtype="bfloat16", accuracy="none").path
        return made[variant]

    return get


@pytest.fixture(scope="session")
def held_out_lines() -> list[str]:
    """Lines of 20 characters or more, in a fixed order, from a spread of held-out files."""
    from tensorwright.models.train_pico import read_texts

    _, held_out = read_texts(None)
    lines = [[line for line in text.splitlines() if len(line) >= 20] for text in held_out]
    return [line for file in lines if len(file) > 60 for line in file[40:60:4]]
