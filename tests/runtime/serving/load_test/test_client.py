"""The client against a server whose times are known, and against one that does everything wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from support.command_line import call
from support.fake_openai import Answer, FakeServer, tokenize
from support.waiting import PATIENCE, one_try_is_enough
from tensorwright.errors import MissingDependencyError
from tensorwright.runtime.serving.load_test.session import load_test
from tensorwright.runtime.serving.load_test.settings import LoadSettings

Capture = pytest.CaptureFixture[str]
SLACK = 0.4
"""Seconds that a busy machine may keep a thread from running. The waits of the fake are noted, not trusted."""
FIXED = {"profile": "fixed", "input_len": 8, "output_len": 3, "prompts": "ids", "token_range": (5, 90), "warmup": 0}
OPTIONS = ("--profile", "fixed", "--input-len", "8", "--output-len", "3", "--warmup", "0")
IDS = (*OPTIONS, "--prompts", "ids", "--token-range", "5", "90")


def settings(**changes: object) -> LoadSettings:
    return LoadSettings(**{**FIXED, **changes})  # type: ignore[arg-type]


@one_try_is_enough
def test_every_statistic_is_that_of_the_server(capsys: Capture, tmp_path: Path) -> None:
    """The figures of the JSON against those of the times that the server noted when it wrote."""
    answers = [Answer((0.15 * i, 0.02 * i, 0.3)) for i in range(1, 5)]
    picture = tmp_path / "a.svg"
    with FakeServer(answers.__getitem__) as server:
        command = ("bench", "serve", server.url + "/v1", *IDS, "--requests", "4", "--arrival", "burst")
        limits = ("--ttft-limit", "0.37", "--plot", str(picture))
        code, out, err = call(capsys, *command, *limits, "--json")
    assert (code, err) == (0, "")
    result, seen = json.loads(out), server.seen
    ttft = [s.written[0] - s.arrived for s in seen]
    gaps = [b - a for s in seen for a, b in itertools.pairwise(s.written)]
    made = {
        "ttft": ttft,
        "tpot": [(s.written[-1] - s.written[0]) / 2 for s in seen],
        "itl": gaps,
        "request": [s.ended - s.arrived for s in seen],
    }
    for name, values in made.items():
        got = result["seconds"][name]
        assert got["mean"] == pytest.approx(np.mean(values), abs=SLACK), name
        for p in (50, 90, 99):
            assert got[f"p{p}"] == pytest.approx(np.percentile(values, p), abs=SLACK), name
    # Each TTFT differs from the next by 0.15 s: mixed up or shifted requests are seen in spite of the slack.
    assert result["seconds"]["ttft"]["mean"] >= np.mean(ttft)
    assert result["duration"] == pytest.approx(max(s.ended for s in seen) - min(s.arrived for s in seen), abs=SLACK)
    assert result["per_second"]["output_tokens"] == pytest.approx(12 / result["duration"])
    assert result["tokens"] == {
        "counted_by": "usage", "input": 32, "output": 12, "output_asked_for": 12, "per_chunk": 1.0,
    }  # fmt: skip
    assert result["goodput"]["good"] <= 2  # those of 0.15 s and 0.3 s, if the machine let them be in time
    assert result["goodput"]["per_second"] == result["goodput"]["good"] / result["duration"]
    assert (result["model"], result["load"]["arrival"]) == ("made-up", "burst")
    assert len(list(ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}circle"))) == 4


@one_try_is_enough
def test_the_time_of_every_chunk() -> None:
    """Trace by trace against the server's own clock: never before it wrote, and soon after."""
    with FakeServer(lambda i: Answer((0.05, 0.1, 0.02, 0.1), usage=i == 0)) as server:
        _, traces = asyncio.run(load_test(server.url, None, settings(requests=2, concurrency=1)))
    assert [trace.usage for trace in traces] == [4, None]
    assert [trace.tokens for trace in traces] == [4, 4]
    for trace, seen in zip(traces, server.seen, strict=True):
        written = [t - seen.arrived for t in seen.written]
        shifts = [chunk - trace.sent - w for chunk, w in zip(trace.chunks, written, strict=True)]
        assert all(0 <= shift < SLACK for shift in shifts)
        assert trace.chunks == sorted(trace.chunks)
        assert trace.chunks[-1] <= trace.end


@one_try_is_enough
def test_requests_are_sent_when_they_should_be() -> None:
    """Open loop: no answer is waited for. Closed loop: never more at once than there are users."""
    with FakeServer(lambda i: Answer((0.3,))) as server:
        _, traces = asyncio.run(load_test(server.url, None, settings(requests=6, rate=40.0)))
        assert server.most_open > 2
        arrived = [seen.arrived - server.seen[0].arrived for seen in server.seen]
        scheduled = sorted(trace.scheduled - traces[0].scheduled for trace in traces)
        assert arrived == pytest.approx(scheduled, abs=SLACK)
        assert all(trace.sent >= trace.scheduled for trace in traces)
    with FakeServer(lambda i: Answer((0.02, 0.02))) as server:
        asyncio.run(load_test(server.url, None, settings(requests=7, concurrency=2, warmup=1)))
    assert (server.most_open, len(server.seen)) == (2, 8)


def test_what_is_sent() -> None:
    with FakeServer(lambda i: Answer()) as server:
        asyncio.run(load_test(server.url, "made-up", settings(requests=3, arrival="burst"), api_key="secret"))
        asyncio.run(load_test(server.url, "made-up", settings(requests=1, ignore_eos=False, temperature=0.5)))
    first, last = server.seen[0].body, server.seen[3].body
    assert first | {"prompt": []} == {
        "model": "made-up", "prompt": [], "max_tokens": 3, "temperature": 0.0, "seed": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    assert len(first["prompt"]) == 8
    assert all(5 <= token < 90 for seen in server.seen for token in seen.body["prompt"])
    assert len({tuple(seen.body["prompt"]) for seen in server.seen[:3]}) == 3
    assert last["prompt"] in [seen.body["prompt"] for seen in server.seen[:3]]  # the same seed; they came in any order
    assert ("ignore_eos" in last, last["temperature"]) == (False, 0.5)
    assert "authorization: bearer secret" in server.headers[1].lower()


@pytest.mark.parametrize("prompts", ["text", "ids"])
def test_prompts_are_of_exact_length(prompts: str) -> None:
    with FakeServer(lambda i: Answer()) as server:
        made = LoadSettings(requests=6, arrival="burst", profile="code", input_len=200, prompts=prompts)
        _, traces = asyncio.run(load_test(server.url, None, made))
    sent = {json.dumps(seen.body["prompt"]) for seen in server.seen}
    assert len(sent) == 7  # the warm-up's too
    counts = [len(tokenize(p) if prompts == "text" else p) for p in (json.loads(s) for s in sent)]
    assert {trace.prompt_tokens for trace in traces} < set(counts)
    assert sum(counts) >= sum(trace.prompt_tokens for trace in traces) > 6


@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize("prompts", ["text", "ids"])
def test_agents_continue_their_conversations(prompts: str, concurrency: int | None) -> None:
    """All prompts begin alike, each turn begins with the turn before, and comes when that has its answer."""
    made = LoadSettings(requests=14, rate=None if concurrency else 300.0, concurrency=concurrency, profile="agent",
                        input_len=600, output_len=4, prompts=prompts, warmup=0)  # fmt: skip
    with FakeServer(lambda i: Answer((0.02, 0.01))) as server:
        _, traces = asyncio.run(load_test(server.url, None, made))
    assert all(trace.error is None for trace in traces)
    sent = sorted(server.seen, key=lambda seen: seen.arrived)
    texts = [seen.body["prompt"] for seen in sent]
    counts = [len(tokenize(text) if prompts == "text" else text) for text in texts]
    assert sorted(counts) == sorted(trace.prompt_tokens for trace in traces)
    beginning = texts[0][: len(texts[0]) // 2] if prompts == "text" else texts[0][:400]
    assert all(text[: len(beginning)] == beginning for text in texts)
    continued = 0
    for i, text in enumerate(texts):
        before = [seen for j, seen in enumerate(sent) if j != i and text[: len(texts[j])] == texts[j]]
        assert all(seen.written[-1] <= sent[i].arrived for seen in before)
        continued += bool(before)
    assert continued >= 4
    assert server.most_open <= (concurrency or 8)


WRONG = {
    "http 429": Answer(status=429, body='{"error": {"message": "the queue is full"}}'),
    "http 503": Answer(status=503, body="not JSON"),
    "broken off": Answer((0.0, 0.0), dies=True),
    "error event": Answer(last_event='{"error": {"message": "the loop died"}}'),
    "bad answer": Answer(last_event="{half"),
}
MESSAGES = {
    "http 429": "it answered 429: the queue is full",
    "http 503": "it answered 503: not JSON",
    "broken off": "RemoteProtocolError",
    "error event": "the loop died",
    "bad answer": "an event that is no JSON: '{half'",
}


def test_failures_are_counted_by_kind(capsys: Capture) -> None:
    """Each kind once more than the one before; the good requests keep their figures."""
    plan = [Answer()] + [answer for i, answer in enumerate(WRONG.values(), start=1) for _ in range(i)]
    with FakeServer(plan.__getitem__) as server:
        command = ("bench", "serve", server.url, *IDS, "--requests", str(len(plan)), "--arrival", "burst")
        code, out, _ = call(capsys, *command, "--timeout", str(PATIENCE), "--json")
    result = json.loads(out)
    errors = result["requests"]["errors"]
    assert code == 0
    assert {kind: error["count"] for kind, error in errors.items()} == {kind: i for i, kind in enumerate(WRONG, 1)}
    for kind, message in MESSAGES.items():
        assert message in errors[kind]["first"]
    assert (result["requests"]["completed"], result["goodput"]["good"], result["tokens"]["output"]) == (1, 1, 1)
    assert result["goodput"]["share"] == pytest.approx(1 / len(plan))


def test_what_says_nothing_is_given_up_and_counts() -> None:
    with FakeServer(lambda i: Answer(silent=True)) as server:
        _, traces = asyncio.run(load_test(server.url, None, settings(requests=2, concurrency=1, timeout=0.2)))
    assert [(trace.error, trace.message) for trace in traces] == [("timeout", "nothing came for 0.2 s")] * 2
    assert all(trace.end - trace.sent >= 0.2 for trace in traces)


def test_other_ends_of_a_stream() -> None:
    plan = [Answer(closes_without_done=True), Answer(content_type="text/html"), Answer(waits=())]
    with FakeServer(plan.__getitem__) as server:
        _, traces = asyncio.run(load_test(server.url, None, settings(requests=3, concurrency=1)))
    assert [(trace.error, trace.message) for trace in traces] == [
        ("broken off", "the stream ended without [DONE]"),
        ("bad answer", "its type must be text/event-stream, is text/html"),
        ("bad answer", "a completion without text"),
    ]


def test_a_server_that_goes_away() -> None:
    """Gone after the first answer: the rest find nobody."""
    with FakeServer(lambda i: Answer()) as server:

        def gone(steps: int) -> None:
            server.stop()

        _, traces = asyncio.run(load_test(server.url, None, settings(requests=2, concurrency=1), done=gone))
    assert [trace.error for trace in traces] == [None, "no connection"]


def test_nothing_completed_ends_the_command(capsys: Capture) -> None:
    with FakeServer(lambda i: WRONG["http 429"]) as server:
        code, out, err = call(
            capsys, "bench", "serve", server.url, *IDS, "--requests", "2", "--concurrency", "1", "--json"
        )
    assert (code, json.loads(out)["error"]) == (1, "LoadTestError")
    assert "none was (2 x http 429: it answered 429: the queue is full)" in err


def test_nobody_listens(capsys: Capture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        code, _, err = call(capsys, "bench", "serve", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1
    assert "a server must listen at http://127.0.0.1" in err
    assert "ConnectError" in err


def test_models(capsys: Capture) -> None:
    """A name that the server does not have, or none of several: refused, nothing sent."""
    with FakeServer(lambda i: Answer(), models=("a", "b")) as server:
        for option, came in (((), "none given"), (("--model", "c"), "got 'c'")):
            code, _, err = call(capsys, "bench", "serve", server.url, *option)
            assert (code, f"--model must be one that the server has: a, b; {came}" in err) == (2, True)
        code, out, _ = call(capsys, "bench", "serve", server.url, "--model", "b", *IDS, "--requests", "1")
    assert (code, [seen.body["model"] for seen in server.seen]) == (0, ["b"])
    assert "1 of 1 completed" in out


def test_a_server_without_a_tokenizer(capsys: Capture) -> None:
    with FakeServer(lambda i: Answer(), tokenizer=False) as server:
        code, _, err = call(capsys, "bench", "serve", server.url, *OPTIONS)
        assert (code, server.seen) == (1, [])
    assert "/tokenize must answer; it answered 404: no path /tokenize; with --prompts ids --token-range" in err


def test_wrong_options_are_refused_before_anything_is_sent(capsys: Capture, tmp_path: Path) -> None:
    with FakeServer(lambda i: Answer()) as server:
        for wrong in (
            ("--rate", "-1"),
            ("--concurrency", "2", "--rate", "1"),
            ("--profile", "novel"),
            ("--plot", str(tmp_path / "none" / "a.svg")),
            ("--token-range", "1", "2"),
            ("--api-key", "two words"),
            ("--no-such-option",),
        ):
            code, _, err = call(capsys, "bench", "serve", server.url, *wrong)
            assert (code, err.startswith("error: ")) == (2, True), wrong
        assert call(capsys, "bench", "serve", "no-url")[0] == 2
    assert server.headers == []


def test_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "tensorwright.runtime.serving.load_test.client")
    with pytest.raises(MissingDependencyError, match=r"pip install -e '.\[serve\]'"):
        __import__("tensorwright.runtime.serving.load_test.client")
