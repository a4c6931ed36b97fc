"""`tensorwright bench serve` against `tensorwright serve`: lengths are exact, refusals are counted as what they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from support.command_line import call
from support.served import KEY, Served
from support.waiting import wait_until

Capture = pytest.CaptureFixture[str]
COMMON = ("--profile", "code", "--input-len", "60", "--output-len", "12", "--seed", "3", "--json")


def counted(served: Served) -> tuple[float, float]:
    """Tokens of prompts, computed or found in the prefix cache, and tokens generated, since the server began."""
    prompts = sum(served.metric(f"tensorwright_{name}_total") for name in ("prefill_tokens", "prefix_hit_tokens"))
    return prompts, served.metric("tensorwright_generated_tokens_total")


def test_prompts_are_of_the_length_that_the_server_counts(served: Served, capsys: Capture) -> None:
    """Text of exact length through /tokenize, every token asked for is there, and the metrics agree."""
    served.wait_until_idle()
    before = counted(served)
    command = ("bench", "serve", served.url, "--api-key", KEY, "--requests", "6", "--warmup", "0")
    code, out, _ = call(capsys, *command, "--concurrency", "1", *COMMON)
    assert code == 0
    result = json.loads(out)
    tokens = result["tokens"]
    assert (result["requests"]["completed"], tokens["counted_by"]) == (6, "usage")
    assert tokens["output"] == tokens["output_asked_for"]
    served.wait_until_idle()
    after = counted(served)
    assert (after[0] - before[0], after[1] - before[1]) == (tokens["input"], tokens["output"])


def test_a_full_queue_is_counted(endless_served: Served, leave: Callable[[], None], capsys: Capture) -> None:
    """Two run already and one may wait: of twelve at once eleven are refused, and the one that waits is answered."""

    counter = "tensorwright_http_requests_total"

    def refused() -> float:
        samples = endless_served.metrics()
        return sum(value for name, labels, value in samples if name == counter and labels["status"] == "429")

    def leave_later() -> None:
        wait_until(lambda: refused() >= before + 11)
        leave()

    before = refused()
    leaving = threading.Thread(target=leave_later)
    leaving.start()
    command = ("bench", "serve", endless_served.url, "--api-key", KEY, "--requests", "12", "--arrival", "burst")
    result = json.loads(call(capsys, *command, "--warmup", "0", *COMMON)[1])
    leaving.join()
    assert result["requests"]["errors"]["http 429"]["count"] == 11
    assert set(result["requests"]["errors"]) == {"http 429"}
    assert result["requests"]["completed"] == 1
    assert result["goodput"]["share"] == 1 / 12


def test_a_wrong_key_is_refused(served: Served, capsys: Capture) -> None:
    code, _, err = call(capsys, "bench", "serve", served.url, "--api-key", "wrong")
    assert code == 1
    assert "/v1/models must list the models; it answered 401" in err
