"""What a client may ask for at the others' expense: priorities and what the prefix cache tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.served import KEY, OTHER_KEY, Served
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided import compile_queue
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server import requests
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.options import ServerOptions


def defaults_of(key: int | None, body: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Of a request with the key of this number, as its handler sees it."""
    app = SimpleNamespace(state=SimpleNamespace(options=ServerOptions(**options), salt_secret=b"secret"))
    request: Any = SimpleNamespace(app=app, scope={"state": {} if key is None else {"key": key}})
    return client_defaults(request, CompletionRequest(prompt="x", **(body or {})), {"top_p": 0.5})


def test_each_key_has_a_salt_that_does_not_show_it() -> None:
    """Of the key that was found to be right, however the header spelled it; one that is given twice has one."""
    salts = [defaults_of(number, api_keys=("a", "b", "a"))["cache_salt"] for number in (1, 2, 3)]
    assert salts[0] == salts[2] != salts[1]
    assert len(salts[0]) == 64
    assert "cache_salt" not in defaults_of(1, api_keys=("a",), shared_prefixes=True)
    assert defaults_of(None) == {"top_p": 0.5}


def test_a_grammar_is_compiled_on_its_clients_behalf() -> None:
    """Nobody compiles for others' share of the places, nor does anybody later in the same thread."""
    asked: list[str | None] = []
    llm: Any = SimpleNamespace(generate_async=lambda *given: asked.append(compile_queue._client.get()))
    requests._start(llm, lambda: ["x"], SamplingParams(), None, "key 2")
    assert asked == ["key 2"]
    assert compile_queue._client.get() is None


@pytest.mark.parametrize(("priority", "most"), [(1, 0), (8, 7)])
def test_a_priority_above_the_servers_is_refused(priority: int, most: int) -> None:
    for fine in (-5, 0, most):
        defaults_of(None, {"priority": fine}, max_priority=most)
    words = rf"at most {most} on this server \(its --max-priority\), got {priority}"
    with pytest.raises(InvalidRequestError, match=words):
        defaults_of(None, {"priority": priority}, max_priority=most)


def test_a_keys_values_reach_its_requests() -> None:
    keys = ("a weight=2.5 priority=3", "b", "a weight=2.5 priority=3")
    first, second, again = (defaults_of(number, api_keys=keys, shared_prefixes=True) for number in (1, 2, 3))
    assert first == again == {"top_p": 0.5, "tenant": 1, "tenant_weight": 2.5, "priority": 3}
    assert second == {"top_p": 0.5, "tenant": 2, "tenant_weight": 1.0}
    assert "priority" not in defaults_of(1, {"priority": 3}, api_keys=("b",), max_priority=4)
    for key, asked, words in (("a priority=3", 4, "at most 3 with this key"), ("a priority=-2", 0, "at most -2 with")):
        with pytest.raises(InvalidRequestError, match=words):
            defaults_of(1, {"priority": asked}, api_keys=(key,), max_priority=9)


def cached(served: Served, key: str, chat: bool = False, **fields: Any) -> int:
    text = "A secret of one client alone, which is long enough to fill a block or two of the cache: 7342. " * 2
    where = "chat/completions" if chat else "completions"
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    body = {**prompt, "max_tokens": 1, **fields}
    answer = served.client.post(f"/v1/{where}", json=body, headers={"authorization": f"Bearer {key}"})
    answer.raise_for_status()
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_key_learns_nothing_of_what_another_sent(served: Served) -> None:
    assert cached(served, KEY) == 0
    assert cached(served, OTHER_KEY) == 0
    assert cached(served, KEY) >= 32
    assert cached(served, OTHER_KEY) >= 32
    assert cached(served, KEY, cache_salt="of both") == 0
    assert cached(served, OTHER_KEY, cache_salt="of both") >= 32


def test_without_keys_all_share(open_served: Served) -> None:
    assert cached(open_served, "any") == 0
    assert cached(open_served, "other") >= 32


def test_a_priority_is_refused_over_http(served: Served) -> None:
    answer = served.client.post("/v1/completions", json={"prompt": "x", "priority": 1})
    assert answer.status_code == 400
    assert "--max-priority" in answer.json()["error"]["message"]
