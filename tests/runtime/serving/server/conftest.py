"""One server for most tests; what must be told otherwise gets its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.served import KEY, MAX_BODY, OTHER_KEY, PAGE, PER_ADDRESS, Served, completion, serve
from support.toy_engine import ENDLESS
from support.waiting import wait_until


@pytest.fixture(scope="session")
def served(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With two keys, small bodies and a queue of one beside the one that runs."""
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys"
    keys.write_text(f"# who may enter\n\n{OTHER_KEY}\n")
    options = (
        "--api-key", KEY, "--api-key-file", str(keys), "--max-body-size", str(MAX_BODY), "--max-batch-size", "2",
        "--max-queue-size", "1", "--body-timeout", "1", "--header-timeout", "1", "--retry-after", "3",
        "--client-timeout", "2", "--max-requests-per-key", "20",
    )  # fmt: skip
    with serve(pico_engine, folder, *options, headers={"authorization": f"Bearer {KEY}"}) as server:
        yield server


@pytest.fixture(scope="session")
def open_served(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the toy engine, without keys; it has CORS, logs prompts but no probes, ends requests after a second, and
    bounds what an address has."""
    options = (
        "--cors-origin",
        PAGE,
        "--log-prompts",
        "--quiet-probes",
        "--request-timeout",
        "1",
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
    """Of the toy engine, so that a request of ENDLESS tokens runs until it is left. Two run at once, and one waits."""
    options = ("--max-batch-size", "2", "--max-queue-size", "1", "--retry-after", "3")
    with serve(toy_engine, tmp_path_factory.mktemp("endless"), *options) as server:
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
