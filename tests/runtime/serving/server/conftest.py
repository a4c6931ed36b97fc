"""One server for most tests; what must be told otherwise gets its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from support.served import KEY, MAX_BODY, OTHER_KEY, PAGE, PER_ADDRESS, Served, completion, serve
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="session")
def served(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With two keys, small bodies and a queue of one beside the one that runs."""
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys"
    keys.write_text(f"# who may enter\n\n{OTHER_KEY}\n")
    options = (
        "--api-key", KEY, "--api-key-file", str(keys), "--max-body-size", str(MAX_BODY), "--max-batch-size", "2",
        "--max-queue-size", "1", "--retry-after", "3", "--max-requests-per-key", "20",
    )  # fmt: skip
    with serve(pico_engine, folder, *options, headers={"authorization": f"Bearer {KEY}"}) as server:
        yield server


class AskingAgain(httpx.HTTPTransport):
    """Asks again where the server ended the connection because the request did not come in time, and where a page of it
    was not made in time."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        def answered() -> httpx.Response | None:
            try:
                answer = httpx.HTTPTransport.handle_request(self, request)
            except (httpx.RemoteProtocolError, httpx.NetworkError):
                return None
            if request.method == "GET" and answer.status_code == httpx.codes.GATEWAY_TIMEOUT:
                answer.close()
                return None
            return answer

        return wait_until(answered, "an answer")


@pytest.fixture(scope="session")
def hasty_served(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the toy engine, with a key. It waits for clients, and for requests to end, no longer than a second or two. So
    a test's process that does not run for so long is cut off too, and must try again; the client does."""
    options = (
        "--api-key", KEY, "--max-body-size", str(MAX_BODY), "--body-timeout", "1", "--header-timeout", "1",
        "--client-timeout", "2", "--request-timeout", "1",
    )  # fmt: skip
    headers = {"authorization": f"Bearer {KEY}"}
    folder = tmp_path_factory.mktemp("hasty")
    with serve(toy_engine, folder, *options, headers=headers, transport=AskingAgain()) as server:
        yield server


@pytest.fixture(scope="session")
def open_served(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the toy engine, without keys; it has CORS, logs prompts but no probes, and bounds what an address has."""
    options = (
        "--cors-origin",
        PAGE,
        "--log-prompts",
        "--body-timeout",
        str(PATIENCE),
        "--quiet-probes",
        "--allowed-host",
        "mine.example",
        "--max-connections-per-address",
        str(PER_ADDRESS),
        "--max-requests-per-address",
        str(PER_ADDRESS),
    )
    with serve(toy_engine, tmp_path_factory.mktemp("open"), *options) as server:
        yield server


@pytest.fixture(scope="session")
def endless_served(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the toy engine, with a key: a request of ENDLESS tokens runs until it is left. Two run at once, one waits."""
    options = ("--max-batch-size", "2", "--max-queue-size", "1", "--retry-after", "3", "--api-key", KEY)
    headers = {"authorization": f"Bearer {KEY}"}
    with serve(toy_engine, tmp_path_factory.mktemp("endless"), *options, headers=headers) as server:
        yield server


@pytest.fixture
def leave(endless_served: Served) -> Iterator[Callable[[], None]]:
    """Two requests run in `endless_served`. What this gives ends them."""
    with ExitStack() as streams:
        for _ in range(2):
            body = completion(max_tokens=ENDLESS, stream=True)
            answer = streams.enter_context(endless_served.client.stream("POST", "/v1/completions", json=body))
            next(streams.enter_context(closing(answer.iter_lines())))
        yield streams.close
    wait_until(lambda: endless_served.metric("tensorwright_requests_running") == 0)
