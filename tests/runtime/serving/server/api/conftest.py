"""One real server on loopback for all of these tests: pico with a chat template, OpenAI's own clients."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
import xxhash
from fastapi import FastAPI

from support.agents import ANSWER, THOUGHT
from support.chat_samples import SAMPLES
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM
from tensorwright.engine_format.checksums import checksum_text, read_checksums
from tensorwright.runtime.serving.server.app import create_app

TEMPLATE = """{% if tone is defined %}# {{ tone }}
{% endif %}{% for message in messages %}# {{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}def {% endif %}"""


MARKERS = {"<tool_call>": False, "</tool_call>": False, "<think>": False, "</think>": False, "[TOOL_CALLS]": True,
           "[ARGS]": True}  # fmt: skip
"""Tokens that the chat engine's tokenizer has beside pico's, and whether they are special, as models have them."""


def with_markers(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """pico's tokenizer with MARKERS in the place of the last entries of its vocabulary, which no other entry is made
    of."""
    vocab = tokenizer["model"]["vocab"]
    last = sorted(vocab, key=vocab.__getitem__)[-len(MARKERS) :]
    for (marker, special), entry in zip(MARKERS.items(), last, strict=True):
        token = vocab[marker] = vocab.pop(entry)
        rule = {"id": token, "content": marker, "special": special}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({**rule, **flags})
    merges = tokenizer["model"]["merges"]
    joined = ["".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in merges]
    tokenizer["model"]["merges"] = [merge for merge, entry in zip(merges, joined, strict=True) if entry not in last]
    return tokenizer


@pytest.fixture(scope="session")
def chat_engine(pico_engine_float32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pico's engine, with a chat template and MARKERS put in."""
    engine = tmp_path_factory.mktemp("chat") / "pico"
    shutil.copytree(pico_engine_float32, engine)
    tokenizer = with_markers(json.loads((engine / "tokenizer.json").read_text(encoding="utf-8")))
    sums = {name: tuple(file) for name, file in read_checksums(engine).items()}
    for name, text in (("chat_template.jinja", TEMPLATE), ("tokenizer.json", json.dumps(tokenizer))):
        (engine / name).write_text(text, encoding="utf-8")
        sums[name] = (xxhash.xxh3_128_hexdigest(text.encode()), len(text.encode()))
    (engine / "checksums.txt").write_text(checksum_text(sums))
    return engine


@pytest.fixture(scope="session")
def llm(chat_engine: Path) -> Iterator[LLM]:
    with LLM(chat_engine, kv_cache_memory="64MiB", threads=2, max_batch_size=32) as llm:
        yield llm


@pytest.fixture(scope="session")
def tiny_llm(toy_engine: Path) -> Iterator[LLM]:
    """Its queue is soon full, and a request of ENDLESS tokens runs until it is left."""
    with LLM(toy_engine, kv_cache_memory="32MiB", threads=1, max_batch_size=1, max_queue_size=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def app(llm: LLM, tiny_llm: LLM) -> FastAPI:
    return create_app({"pico": llm, "some/tiny": tiny_llm})


@pytest.fixture(scope="session")
def url(app: FastAPI) -> Iterator[str]:
    """Of the running server, without a path."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
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
def nothing_left_behind(llm: LLM, tiny_llm: LLM) -> Iterator[None]:
    """After every test all blocks are free, or remember a prompt."""
    yield
    wait_until(lambda: not busy(llm) and not busy(tiny_llm))


def busy(llm: LLM) -> bool:
    """Whether any request runs or waits, or holds blocks."""
    stats = llm.get_stats()
    return bool(stats["running"] or stats["waiting"] or stats["used_blocks"])
