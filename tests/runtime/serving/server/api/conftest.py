"""One real server on loopback for all of these tests: pico with a chat template, OpenAI's own clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest
import uvicorn
from fastapi import FastAPI

from support.agents import ANSWER, THOUGHT
from support.chat_engine import make_chat_engine
from support.chat_samples import SAMPLES
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM
from tensorwright.runtime.serving.server.app import create_app


@pytest.fixture(scope="session")
def chat_engine(pico_engine_float32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pico's engine, with a chat template and MARKERS put in."""
    return make_chat_engine(pico_engine_float32, tmp_path_factory.mktemp("chat") / "pico")


@pytest.fixture(scope="session")
def llm(chat_engine: Path) -> Iterator[LLM]:
    with LLM(chat_engine, kv_cache_memory="64MiB", threads=1, max_batch_size=32) as llm:
        yield llm


@pytest.fixture(scope="session")
def tiny_llm(toy_engine: Path) -> Iterator[LLM]:
    """Its queue is soon full, and a request of ENDLESS tokens runs until it is left."""
    with LLM(toy_engine, kv_cache_memory="32MiB", threads=1, max_batch_size=1, max_queue_size=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def endless_llm(toy_engine: Path) -> Iterator[LLM]:
    """It can chat, and runs requests of ENDLESS tokens, as many at once as there are clients."""
    template = SAMPLES["hermes"].template
    with LLM(toy_engine, kv_cache_memory="64MiB", threads=1, max_batch_size=32, chat_template=template) as llm:
        yield llm


@pytest.fixture(scope="session")
def app(llm: LLM, tiny_llm: LLM, endless_llm: LLM) -> FastAPI:
    return create_app({"pico": llm, "some/tiny": tiny_llm, "endless": endless_llm})


@pytest.fixture(scope="session")
def url(app: FastAPI) -> Iterator[str]:
    """Of the running server, without a path."""
    # A connection that a client is about to use again is never ended here, and no logger of this process changes.
    settings = {"timeout_keep_alive": int(PATIENCE), "log_config": None, "access_log": False, "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, **settings))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.fixture
def strict(app: FastAPI) -> Iterator[None]:
    """Makes the server as strict as --strict makes it."""
    lenient = app.state.options
    app.state.options = replace(lenient, strict=True)
    yield
    app.state.options = lenient


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def hermes(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The served model calls tools."""
    monkeypatch.setattr(llm, "chat_template", SAMPLES["hermes"].template + ANSWER)


@pytest.fixture
def thinks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The served model thinks, and calls tools."""
    monkeypatch.setattr(llm, "chat_template", SAMPLES["hermes"].template + THOUGHT)


@pytest.fixture(autouse=True)
def nothing_left_behind(llm: LLM, tiny_llm: LLM, endless_llm: LLM) -> Iterator[None]:
    """After every test all blocks are free, or remember a prompt."""
    yield
    wait_until(lambda: not any(busy(each) for each in (llm, tiny_llm, endless_llm)))


def busy(llm: LLM) -> bool:
    """Whether any request runs or waits, or holds blocks."""
    stats = llm.get_stats()
    return bool(stats["running"] or stats["waiting"] or stats["used_blocks"])
