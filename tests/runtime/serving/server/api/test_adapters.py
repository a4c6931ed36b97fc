"""LoRA adapters over HTTP: named as models, listed with their parent, loaded and unloaded by clients with a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from support.made_adapters import make_adapter, places_of
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import AdapterError, InvalidOptionError
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions

KEY = {"authorization": "Bearer first-key"}
PROMPT = "import os"


@pytest.fixture(scope="module")
def folder(chat_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the server's adapters. Beside it is another one, which no client may load."""
    root, shapes = tmp_path_factory.mktemp("server-adapters"), places_of(chat_engine).modules
    for number, name in enumerate(("inside/one", "inside/two", "outside")):
        make_adapter(root / name, shapes, rank=4, seed=number, spread=0.1)
    (root / "inside" / "link").symlink_to(root / "outside")
    (root / "inside" / "loop").symlink_to(root / "inside" / "loop")
    (root / "inside" / "files").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (root / "inside" / "files" / name).symlink_to(root / "outside" / name)
    return root / "inside"


@pytest.fixture(scope="module")
def adapted(chat_engine: Path, folder: Path) -> Iterator[LLM]:
    with LLM(chat_engine, adapters={"one": folder / "one"}, max_loras=2, kv_cache_memory="16MiB", threads=1) as llm:
        yield llm


@pytest.fixture
def server(adapted: LLM, folder: Path) -> Iterator[FastAPI]:
    yield create_app({"pico": adapted}, ServerOptions(api_keys=("first-key",), adapter_folder=str(folder)))
    for name in set(adapted.adapters) - {"one"}:
        adapted.unload_adapter(name)


def ask(app: FastAPI, method: str, path: str, headers: dict[str, str] = KEY, **body: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.request(method, path, json=body or None, headers=headers, timeout=PATIENCE)

    return asyncio.run(send())


def text(app: FastAPI, model: str) -> Any:
    answer = ask(app, "POST", "/v1/completions", model=model, prompt=PROMPT, max_tokens=6, temperature=0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_model_field_names_an_adapter(server: FastAPI, adapted: LLM) -> None:
    expected = {
        name: adapted.generate(PROMPT, SamplingParams(max_tokens=6, temperature=0, adapter=adapter)).outputs[0].text
        for name, adapter in (("pico", None), ("one", "one"))
    }
    assert expected["pico"] != expected["one"]
    answers = {name: text(server, name) for name in expected}
    assert {name: answer["choices"][0]["text"] for name, answer in answers.items()} == expected
    assert {name: answer["model"] for name, answer in answers.items()} == {"pico": "pico", "one": "one"}
    assert answers["one"]["system_fingerprint"].startswith(answers["pico"]["system_fingerprint"] + "_")
    talk = [{"role": "user", "content": "x"}]
    for model in expected:
        chat = ask(server, "POST", "/v1/chat/completions", model=model, messages=talk, max_tokens=2)
        assert chat.json()["model"] == model, chat.text
        assert ask(server, "POST", "/tokenize", model=model, prompt="x").status_code == 200


def test_models_are_listed_with_their_adapters(server: FastAPI) -> None:
    cards = ask(server, "GET", "/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("pico", None), ("one", "pico")]
    for card in cards:
        assert ask(server, "GET", f"/v1/models/{card['id']}").json() == card


def test_loaded_and_unloaded_by_clients(server: FastAPI, adapted: LLM) -> None:
    assert ask(server, "POST", "/v1/completions", model="two", prompt="x").status_code == 404
    loaded = ask(server, "POST", "/v1/load_lora_adapter", lora_name="two", lora_path="two")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'two' added successfully.")
    first = text(server, "two")["choices"][0]["text"]
    assert first != text(server, "one")["choices"][0]["text"]
    again: dict[str, Any] = {"lora_name": "two", "lora_path": "one"}
    assert ask(server, "POST", "/v1/load_lora_adapter", **again).status_code == 400
    assert text(server, "two")["choices"][0]["text"] == first
    assert ask(server, "POST", "/v1/load_lora_adapter", **again, load_inplace=True).status_code == 200
    assert text(server, "two")["choices"] == text(server, "one")["choices"]
    assert adapted.adapters["two"].key == adapted.adapters["one"].key
    assert ask(server, "POST", "/v1/unload_lora_adapter", lora_name="two").status_code == 200
    gone = ask(server, "POST", "/v1/completions", model="two", prompt="x")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    assert "there are pico, one" in gone.json()["error"]["message"]
    assert ask(server, "POST", "/v1/unload_lora_adapter", lora_name="two").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"lora_name": "x", "lora_path": "../outside"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "link"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "files"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "loop"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "x" * 300}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "/etc"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "nowhere"}, 400, "inside the server's --adapter-folder"),
        ({"lora_name": "x", "lora_path": "."}, 400, "cannot be read"),
        ({"lora_name": "x", "lora_path": "a\0b"}, 400, "lora_path must be the path"),
        ({"lora_name": "pico", "lora_path": "two"}, 400, "must not be the name of a model"),
        ({"lora_name": "one", "lora_path": "two"}, 400, "is loaded already"),
        ({"lora_name": " x", "lora_path": "two"}, 400, "printable characters"),
        ({"lora_name": "", "lora_path": "two"}, 400, "lora_name"),
        ({"lora_name": "x" * 257, "lora_path": "two"}, 400, "lora_name"),
        ({"lora_name": "x", "lora_path": "two", "model": "y"}, 404, "no model 'y'"),
        ({"lora_name": "x"}, 400, "lora_path"),
    ],
)
def test_wrong_requests(
    server: FastAPI, adapted: LLM, folder: Path, body: dict[str, Any], status: int, words: str
) -> None:
    answer = ask(server, "POST", "/v1/load_lora_adapter", **body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]
    assert str(folder) not in answer.text
    assert list(adapted.adapters) == ["one"]


def test_of_two_loads_of_a_name_at_once_one_is_refused(server: FastAPI, adapted: LLM) -> None:
    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://server") as client:
            bodies = [{"lora_name": "two", "lora_path": path} for path in ("one", "two")]
            posts = [client.post("/v1/load_lora_adapter", json=b, headers=KEY, timeout=PATIENCE) for b in bodies]
            return list(await asyncio.gather(*posts))

    assert sorted(answer.status_code for answer in asyncio.run(send())) == [200, 400]


def test_only_with_the_option_and_a_key(server: FastAPI, adapted: LLM) -> None:
    body: dict[str, Any] = {"lora_name": "two", "lora_path": "two"}
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert ask(server, "POST", path, headers={}, **body).status_code == 401
        assert ask(create_app({"pico": adapted}), "POST", path, headers={}, **body).status_code == 404
    with pytest.raises(InvalidOptionError, match="adapter_folder needs api_keys"):
        ServerOptions(adapter_folder="x")


def test_a_field_that_does_not_count_is_named(server: FastAPI) -> None:
    """vLLM's clients send lora_int_id."""
    answer = ask(server, "POST", "/v1/load_lora_adapter", lora_name="two", lora_path="two", lora_int_id=5)
    assert answer.status_code == 200, answer.text
    assert "lora_int_id" in answer.headers["x-tensorwright-ignored"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda llm: {"one": llm}, "'one' must be the name of one model or one adapter"),
        (lambda llm: {"pico": llm, "again": llm}, "'one' must be the name of one model or one adapter"),
    ],
)
def test_names_are_unique(adapted: LLM, make: Callable[[LLM], dict[str, LLM]], words: str) -> None:
    with pytest.raises(AdapterError, match=words):
        create_app(make(adapted))


def test_adapters_and_transfers_exclude_each_other(adapted: LLM) -> None:
    with pytest.raises(InvalidOptionError, match="adapters must be left out where prefixes are exchanged"):
        create_app({"pico": adapted}, transfers=object())  # type: ignore[arg-type]
