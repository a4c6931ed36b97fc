"""The corpus that atheris found for python_targets.py, without atheris."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.python_targets import TARGETS
from fuzz.request_targets import vocabulary

CORPUS = Path(__file__).resolve().parent / "python_corpus"


@pytest.fixture(scope="module", autouse=True)
def no_process_stays() -> Iterator[None]:
    """Of those that compile grammars."""
    yield
    vocabulary.cache_clear()


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_taken_or_refused(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    for path in files:
        TARGETS[target](path.read_bytes())


def test_every_folder_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
