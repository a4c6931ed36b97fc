"""An LLM over a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_runtime import FakeEngine, fake_module, write_engine
from tensorwright.runtime import native
from tensorwright.runtime.llm import LLM


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(native, "create_engine", lambda *args: engine)
    monkeypatch.setattr(native, "load_module", fake_module)
    return engine


@pytest.fixture
def llm(fake: FakeEngine, tmp_path: Path) -> Iterator[LLM]:
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        yield llm
