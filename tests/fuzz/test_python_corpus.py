"""The corpus that atheris found for python_targets.py, without atheris."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.python_targets import TARGETS

CORPUS = Path(__file__).resolve().parent / "python_corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_taken_or_refused(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    for path in files:
        TARGETS[target](path.read_bytes())


def test_every_folder_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
