"""A router before two servers, one that prefills and one that decodes, all in processes of their own, against one
server alone: the same answers, whatever is lost on the way. Then what belongs to one engine, or to all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.made_adapters import make_adapter, places_of
from support.served import KEY, Served, completion, read_events, route, serve
from support.toy_engine import ENDLESS
from support.toy_pair import mapped_rings
from support.waiting import PATIENCE, wait_until
from tensorwright.runtime.serving.server.handover import PREFIX, PROOF

LONG = "def parse(text):\n    return [line.split(',') for line in text.splitlines() if line]\n\n" * 6
CHAT = {"model": "pico", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": LONG}]}

LONG_WAY = ("--transfer-timeout", str(PATIENCE))
"""A busy machine takes long for a prefix, which would be computed again then."""
PATIENT = ("--prefill-timeout", str(PATIENCE), "--retry-after-failure", "600")
"""An engine that is gone is asked once, however long the tests after that take."""
TEMPLATE = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option of servers that can chat."""
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    return "--chat-template", str(file)


@dataclass
class Cluster:
    router: Served
    prefill: Served
    decode: Served
    alone: Served


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("a-token-of-many-characters\n")
    return file


@contextmanager
def cluster(engine: Path, folder: Path, token_file: Path, alone: Served, *both: str) -> Iterator[Cluster]:
    """both: options of the two engines."""
    with ExitStack() as running:
        token = ("--transfer-token-file", str(token_file))
        prefill = running.enter_context(serve(engine, folder, "--role", "prefill", *token, *LONG_WAY, *both))
        decoder = running.enter_context(serve(engine, folder, "--role", "decode", *token, *LONG_WAY, *both))
        urls = ("--prefill", prefill.url, "--decode", decoder.url, "--min-prefill-bytes", "64")
        router = running.enter_context(route(folder, *urls, *token, *PATIENT))
        yield Cluster(router, prefill, decoder, alone)


@pytest.fixture(scope="module")
def alone(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory, template: tuple[str, str]) -> Iterator[Served]:
    with serve(pico_engine, tmp_path_factory.mktemp("alone"), *template) as server:
        yield server


@pytest.fixture(scope="module")
def pair(
    pico_engine: Path,
    tmp_path_factory: pytest.TempPathFactory,
    token_file: Path,
    alone: Served,
    template: tuple[str, str],
) -> Iterator[Cluster]:
    with cluster(pico_engine, tmp_path_factory.mktemp("pair"), token_file, alone, *template) as made:
        yield made


def choices(server: Served, body: dict[str, Any], path: str = "/v1/completions") -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def fetched(server: Served, **labels: str) -> float:
    return server.metric("tensorwright_transfer_prefixes_total", way="fetched", **labels)


BODIES = {
    "greedy": completion(LONG, 12, logprobs=3),
    "seeded": completion(LONG + "x = ", 12, logprobs=3, temperature=0.9, seed=11),
    "several": completion([LONG + "a", LONG + "b = 1", "import os\n" * 40], 6, n=2, temperature=0.8, seed=3),
    "ids": completion([5 + i % 90 for i in range(200)], 6),
}


@pytest.mark.parametrize("name", BODIES)
def test_answers_are_those_of_one_engine(pair: Cluster, name: str) -> None:
    before = fetched(pair.decode)
    assert choices(pair.router, BODIES[name]) == choices(pair.alone, BODIES[name])
    prompts = len(BODIES[name]["prompt"]) if name == "several" else 1
    assert fetched(pair.decode) == before + prompts
    assert pair.decode.metric("tensorwright_transfer_lost_total", way="fetched") == 0


def test_a_stream_is_passed_on_as_it_comes(pair: Cluster) -> None:
    body = BODIES["greedy"] | {"stream": True}

    def texts(server: Served) -> list[str]:
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            events = read_events(answer.iter_lines())
        assert events[-1] == "[DONE]"
        return [choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"]]

    streamed = texts(pair.router)
    assert "".join(streamed) == "".join(texts(pair.alone))
    assert len(streamed) > 1


def test_the_prefix_comes_through_shared_memory_on_one_machine(pair: Cluster) -> None:
    before = pair.decode.metric("tensorwright_transfer_shared_total")
    choices(pair.router, completion(LONG + "shared = True\n" * 30, 2))
    assert pair.decode.metric("tensorwright_transfer_shared_total") == before + 1
    for server in (pair.prefill, pair.decode):
        wait_until(lambda server=server: not mapped_rings(server.process.pid))  # type: ignore[misc]


def test_a_short_prompt_goes_to_the_decode_engine_at_once(pair: Cluster) -> None:
    before = fetched(pair.decode)
    assert choices(pair.router, completion("import os", 4)) == choices(pair.alone, completion("import os", 4))
    assert fetched(pair.decode) == before


def test_scored_prompts_are_computed_where_they_are_answered(pair: Cluster) -> None:
    before = fetched(pair.decode)
    body = completion(LONG, 2, echo=True, logprobs=1)
    assert choices(pair.router, body) == choices(pair.alone, body)
    assert fetched(pair.decode) == before


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/pico"])
def test_models_are_those_of_the_engines(pair: Cluster, path: str) -> None:
    assert pair.router.client.get(path).json() == pair.alone.client.get(path).json()


SYSTEM, ASKED = "Write Python.", [{"role": "user", "content": LONG}]
OF_AGENTS = {
    "/v1/responses": {"model": "pico", "input": ASKED, "instructions": SYSTEM, "max_output_tokens": 6},
    "/v1/messages": {"model": "pico", "messages": ASKED, "system": SYSTEM, "max_tokens": 6},
}


def told(answer: dict[str, Any]) -> Any:
    """What an API for agents says, without what differs by request."""
    parts = answer.get("content") or [part for item in answer["output"] for part in item["content"]]
    return [part["text"] for part in parts], answer["model"], answer["usage"]["output_tokens"]


@pytest.mark.parametrize("path", OF_AGENTS)
def test_apis_for_agents_are_prefilled_and_answered(pair: Cluster, path: str) -> None:
    body = OF_AGENTS[path] | {"temperature": 0, "unknown": 1}
    before = fetched(pair.decode)
    ours, theirs = (server.client.post(path, json=body).raise_for_status() for server in (pair.router, pair.alone))
    assert told(ours.json()) == told(theirs.json())
    assert fetched(pair.decode) == before + 1
    assert ours.headers["x-tensorwright-ignored"] == theirs.headers["x-tensorwright-ignored"]


def test_tokens_of_messages_are_counted(pair: Cluster) -> None:
    body = {"model": "pico", "messages": ASKED, "system": SYSTEM}
    ours, theirs = (each.client.post("/v1/messages/count_tokens", json=body) for each in (pair.router, pair.alone))
    assert ours.json() == theirs.json()
    assert ours.json()["input_tokens"] > 100


@dataclass
class Two:
    """Two engines that share nothing, each behind both of two routers."""

    engines: list[Served]
    routers: list[Served]


@pytest.fixture(scope="module")
def two(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory, template: tuple[str, str]) -> Iterator[Two]:
    """With a key, a chat template, and a folder of adapters that has `one`."""
    folder = tmp_path_factory.mktemp("two")
    make_adapter(folder / "adapters" / "one", places_of(pico_engine).modules, rank=4, seed=1, spread=0.1)
    options = ("--adapter-folder", str(folder / "adapters"), "--max-loras", "2", "--api-key", KEY, *template)
    headers = {"x-api-key": KEY}
    with ExitStack() as running:
        engines = [running.enter_context(serve(pico_engine, folder, *options, headers=headers)) for _ in range(2)]
        urls = [word for engine in engines for word in ("--decode", engine.url)]
        yield Two(engines, [running.enter_context(route(folder, *urls, *PATIENT, headers=headers)) for _ in range(2)])


def test_an_adapter_is_loaded_by_every_engine(two: Two) -> None:
    def ask(path: str, **body: Any) -> Any:
        return two.routers[0].client.post(path, json=body)

    def loaded() -> list[bool]:
        lists = [engine.client.get("/v1/models").json()["data"] for engine in two.engines]
        return ["one" in [card["id"] for card in cards] for cards in lists]

    assert ask("/v1/load_lora_adapter", lora_name="one", lora_path="one").status_code == 200
    assert loaded() == [True, True]
    refused = ask("/v1/load_lora_adapter", lora_name="one", lora_path="one")
    assert refused.status_code == 400
    assert "loaded already" in refused.json()["error"]["message"]
    assert ask("/v1/unload_lora_adapter", lora_name="one").status_code == 200
    assert loaded() == [False, False]


def test_a_stored_response_is_found_where_it_lies(two: Two) -> None:
    """Read, continued and deleted behind two engines, also by another router; and without a word where its engine is
    gone. That engine ends here; the tests of `two` that need it stand before."""
    engines, routers = two.engines, two.routers
    body = {"model": "pico", "input": "import os", "max_output_tokens": 3}
    made = [routers[0].client.post("/v1/responses", json=body).json()["id"] for _ in range(4)]
    for which, name in enumerate(made):
        follow = routers[which % 2].client.post("/v1/responses", json=body | {"previous_response_id": name})
        assert follow.json()["previous_response_id"] == name
        assert routers[which % 2].client.get(f"/v1/responses/{name}?stream=false").json()["id"] == name
        assert routers[which % 2].client.get(f"/v1/responses/{name}?stream=true").status_code == 400
    where = [[e.client.get(f"/v1/responses/{name}").status_code == 200 for e in engines] for name in made]
    assert all(sum(found) == 1 for found in where)
    assert {found[0] for found in where} == {True, False}, "both engines have some"
    first, second = (made[[found[at] for found in where].index(True)] for at in range(2))
    assert routers[0].client.delete(f"/v1/responses/{first}").json()["deleted"] is True
    for unknown in (first, "resp_000000000000_00", "resp_1"):
        assert routers[1].client.get(f"/v1/responses/{unknown}").json()["error"]["code"] == "response_not_found"
    engines[1].process.kill()
    engines[1].process.wait()
    for answer in (
        routers[0].client.get(f"/v1/responses/{second}"),
        routers[0].client.post("/v1/responses", json=body | {"previous_response_id": second}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
        assert "stored this response" in answer.json()["error"]["message"]
    assert routers[0].client.post("/v1/responses", json=body).status_code == 200


def test_an_adapter_that_an_engine_is_too_dead_to_load_is_refused(two: Two) -> None:
    two.engines[1].process.kill()
    two.engines[1].process.wait()
    adapter = {"lora_name": "one", "lora_path": "one"}
    answer = two.routers[1].client.post("/v1/load_lora_adapter", json=adapter)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")


def test_dots_lead_to_no_other_path_of_an_engine(pair: Cluster) -> None:
    raw = pair.router.send_raw(b"GET /v1/models/../../metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    with raw, raw.makefile("rb") as answer:
        text = answer.read().decode()
    assert text.startswith("HTTP/1.1 404")
    assert "model_not_found" in text


def test_refusals_are_those_of_the_engine(pair: Cluster) -> None:
    for body in (completion(LONG, 4, temperature=-1), completion(LONG, 10**6), {"model": "nobody", "prompt": LONG}):
        ours, theirs = (server.client.post("/v1/completions", json=body) for server in (pair.router, pair.alone))
        assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())
        assert ours.status_code in (400, 404)
    assert pair.router.client.post("/v1/chat/completions", json=CHAT).status_code == (
        pair.alone.client.post("/v1/chat/completions", json=CHAT).status_code
    )


def test_strangers_hand_nothing_over(pair: Cluster) -> None:
    body, stranger = completion(LONG, 2), "0" * 64
    handed = f"{stranger};127.0.0.1:9;{'0' * 32}"
    assert pair.decode.client.post("/v1/completions", json=body, headers={PREFIX: handed}).status_code == 403
    assert pair.alone.client.post("/v1/completions", json=body, headers={PREFIX: handed}).status_code == 403
    assert pair.decode.client.post("/v1/completions", json=body, headers={PREFIX: "nonsense"}).status_code == 400
    for headers in ({}, {PROOF: stranger}):
        assert pair.prefill.client.post("/prefill/completions", json=body, headers=headers).status_code == 403
    # A client of the router cannot speak for it.
    assert pair.router.client.post("/v1/completions", json=body, headers={PREFIX: handed}).status_code == 200


def test_roles_have_their_routes(pair: Cluster) -> None:
    assert pair.prefill.client.post("/v1/completions", json=completion()).status_code == 404
    assert pair.decode.client.post("/prefill/completions", json=completion()).status_code == 404
    assert pair.router.client.get("/ready").status_code == 200


def test_a_decode_engine_that_is_gone_is_passed_over(pair: Cluster, tmp_path: Path, token_file: Path) -> None:
    urls = ("--prefill", pair.prefill.url, "--decode", pair.decode.url, "--decode", "http://127.0.0.1:9")
    token = ("--transfer-token-file", str(token_file))
    with route(tmp_path, *urls, *token, *PATIENT) as router:
        for body in (BODIES["greedy"], BODIES["seeded"], BODIES["ids"]):
            assert choices(router, body) == choices(pair.alone, body)
        assert router.metric("tensorwright_router_moved_total") == 1


def test_a_prefill_engine_that_is_gone_changes_no_answer(pair: Cluster) -> None:
    """It ends here; the tests of `pair` that need it stand before."""
    pair.prefill.process.kill()
    pair.prefill.process.wait()
    for body in (BODIES["greedy"], BODIES["seeded"]):
        assert choices(pair.router, body) == choices(pair.alone, body)
        # It is passed over from the first failure on.
        assert pair.router.metric("tensorwright_router_prefill_failed_total") == 1


def test_without_any_decode_engine_requests_are_refused(pair: Cluster) -> None:
    """It ends here, so this is the last test of `pair`."""
    pair.decode.process.kill()
    pair.decode.process.wait()
    answer = pair.router.client.post("/v1/completions", json=BODIES["greedy"])
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_engine"
    assert pair.router.client.get("/ready").status_code == 503


@pytest.fixture(scope="module")
def toys(
    toy_engine: Path, tmp_path_factory: pytest.TempPathFactory, token_file: Path, alone: Served
) -> Iterator[Cluster]:
    """Of the toy engine, whose streams of ENDLESS tokens run until something ends them."""
    with cluster(toy_engine, tmp_path_factory.mktemp("toys"), token_file, alone) as made:
        yield made


def test_a_client_that_leaves_ends_the_engines_work(toys: Cluster) -> None:
    body = completion("abc" * 30, ENDLESS, stream=True)
    with toys.router.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # let go of, it would close the connection
        next(lines)
        wait_until(lambda: toys.decode.metric("tensorwright_requests_running") == 1)
    wait_until(lambda: toys.decode.metric("tensorwright_requests_running") == 0)
    wait_until(lambda: toys.router.metric("tensorwright_http_requests_in_flight") <= 1)


def test_an_engine_that_dies_in_its_answer_ends_the_stream_with_an_error(toys: Cluster) -> None:
    """It ends here, so this is the last test of `toys`."""
    body = completion("abc" * 30, ENDLESS, stream=True)
    with toys.router.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        toys.decode.process.kill()
        events = read_events(lines)
    assert json.loads(events[-1])["error"]["code"] == "engine_gone"


def test_keys_and_salts_hold_behind_a_router(
    pico_engine: Path, tmp_path: Path, token_file: Path, alone: Served
) -> None:
    """Each key has a prefix cache of its own, under a salt that only the process knows: both engines use their own."""
    with ExitStack() as running:
        options = ("--transfer-token-file", str(token_file), "--api-key", KEY, *LONG_WAY)
        servers = [running.enter_context(serve(pico_engine, tmp_path, *options)) for _ in range(2)]
        urls = ("--prefill", servers[0].url, "--decode", servers[1].url)
        token = ("--transfer-token-file", str(token_file))
        router = running.enter_context(route(tmp_path, *urls, *token, *PATIENT))
        body = completion(LONG * 3, 4)
        assert router.client.post("/v1/completions", json=body).status_code == 401
        answer = router.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert answer.json()["choices"] == choices(alone, body)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
