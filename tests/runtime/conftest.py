"""An LLM over a fake engine, and engines over executors in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import FakeEngine, fake_module, write_engine
from support.grammar_process import DIGITS, children, engine
from support.toy_engine import ENDLESS, make_toy, write_toy_engine
from support.toy_executor import options
from support.waiting import wait_until
from tensorwright.runtime import _runtime
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary


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


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Engines over executors written in Python; they are stopped in the end."""
    engines = []

    def make(executor: Any, **changes: Any) -> Any:
        engines.append(_runtime.Engine(executor, options(executor, **changes)))
        return engines[-1]

    yield make
    for each in engines:
        each.shutdown(False)


@pytest.fixture(scope="session")
def toy_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that runs `ENDLESS` tokens for a request."""
    return write_toy_engine(tmp_path_factory.mktemp("toy") / "engine", make_toy(max_seq_len=ENDLESS + 128))


@pytest.fixture(scope="session")
def toy_llm(toy_engine: Path) -> Iterator[LLM]:
    """The toy engine in this process."""
    with LLM(toy_engine, kv_cache_memory="32MiB", threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def shared() -> GuidedVocabulary:
    return GuidedVocabulary(engine())


@pytest.fixture
def known(shared: GuidedVocabulary) -> Iterator[GuidedVocabulary]:
    """A vocabulary without the grammars of other tests. Afterwards it must compile as before, and nothing may be left
    of a job."""
    shared._grammars.clear()
    yield shared
    shared._grammars.clear()
    assert shared.compile(DIGITS).size > 0
    wait_until(lambda: not children(shared.compiler.pid))
    queue = shared.compiler._queue
    assert not [*queue._quick.holders, *queue._slow.holders, *queue._waiting]
