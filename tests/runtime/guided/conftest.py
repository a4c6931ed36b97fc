"""What the tests of guided decoding share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.waiting import PATIENCE
from tensorwright.runtime.guided import compile_process


@pytest.fixture(autouse=True)
def _grammars_have_time() -> Iterator[None]:
    """A grammar may take as long as a busy machine lets it; tests of the limit choose their own. The limit is set aside
    by a patch of its own, so that a test's `monkeypatch` is undone before its other fixtures end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_process, "LIMIT_S", PATIENCE)
        yield
