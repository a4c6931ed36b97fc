"""benchmarks/serving.py without the peers: the search, servers as processes, a run against made-up servers, the page.

What needs the real peers is tried by `serving.py --setup-only` and by the run itself.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks" / part) for part in ("servers", "peers", "")]

import server_sides  # noqa: E402
import serving  # noqa: E402
import serving_page  # noqa: E402
from environments import Cache, Side  # noqa: E402
from rate_search import RateSearch  # noqa: E402
from server_process import ServerProcess, free_port  # noqa: E402
from worker import PeerError  # noqa: E402

from support.waiting import PATIENCE, wait_until  # noqa: E402
from tensorwright.runtime.serving.load_test.settings import LoadSettings  # noqa: E402
from tensorwright.runtime.serving.load_test.trace import Trace  # noqa: E402

# A server that takes requests one after the other, so many seconds for each.
FAKE = """
    import asyncio, json, sys
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    async def connection(reader, writer):
        head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode().lower()
        size = next((int(l.split(":")[1]) for l in head.splitlines() if l.startswith("content-length")), 0)
        await reader.readexactly(size)
        if "/v1/models" in head:
            body, kind = json.dumps({"data": [{"id": "fake"}]}), "application/json"
        else:
            async with turn:
                await asyncio.sleep(seconds)
            event = 'data: {"choices": [{"text": "a"}]}\\n\\n'
            body, kind = event + event + "data: [DONE]\\n\\n", "text/event-stream"
        head = f"HTTP/1.1 200 OK\\r\\nContent-Type: {kind}\\r\\nContent-Length: {len(body)}\\r\\nConnection: close"
        writer.write(f"{head}\\r\\n\\r\\n{body}".encode())
        await writer.drain()
        writer.close()
    async def main():
        global turn
        turn = asyncio.Lock()
        if seconds < 0: sys.exit("no model")
        await (await asyncio.start_server(connection, "127.0.0.1", port)).serve_forever()
    asyncio.run(main())
"""
SECONDS = {"broken": -1.0}
RATES = {"fast": 5.0, "slow": 1.5}


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "fake_server.py"
    path.write_text(textwrap.dedent(FAKE))
    return path


def start(fake: Path, seconds: float) -> ServerProcess:
    port = free_port()
    return ServerProcess(
        [sys.executable, str(fake), str(port), str(seconds)], port, "/v1/models", fake.parent / "log", {}
    )


def searched(search: RateSearch, capacity: float, most: int = 50) -> list[float]:
    rates = []
    while (rate := search.next_rate()) is not None and len(rates) < most:
        rates.append(rate)
        search.tell(rate, rate <= capacity)
    return rates


@pytest.mark.parametrize("capacity", [0.11, 0.5, 0.74, 1.0, 9.3])
def test_the_search_brackets_the_highest_rate(capacity: float) -> None:
    search = RateSearch(0.5, 1.1)
    rates = searched(search, capacity)
    assert search.good is not None
    assert search.bad is not None
    assert search.good <= capacity < search.bad <= search.good * 1.1
    assert len(rates) == len(set(rates)) <= 9


def test_the_search_gives_up_and_is_not_led_astray() -> None:
    search = RateSearch(0.5)
    assert searched(search, 0.0)[-1] >= search.lowest
    assert (search.good, search.next_rate()) == (None, None)
    noisy = RateSearch(1.0)
    noisy.tell(1.0, True)
    noisy.tell(2.0, False)
    noisy.tell(1.0, False)  # the same rate, bad this time: what was good counts no more
    assert (noisy.good, noisy.next_rate()) == (None, 0.5)
    noisy.tell(4.0, True)  # above a bad one
    assert noisy.good is None


def test_a_server_is_held_still_and_ended(fake: Path) -> None:
    server = start(fake, 0.0)

    def stopped() -> bool:
        return Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    try:
        assert 0 < server.wait_until_ready(PATIENCE) < PATIENCE
        server.pause()
        wait_until(stopped, "a server that is held")
        server.resume()
        assert 0 < server.wait_until_ready(PATIENCE) < PATIENCE
        server.pause()
    finally:
        server.close()  # a stopped one, too
    assert server.process.returncode is not None


def test_a_server_that_ends_says_why(fake: Path) -> None:
    server = start(fake, -1.0)
    with pytest.raises(PeerError, match="its server ended with code 1: no model"):
        server.wait_until_ready(PATIENCE)
    server.close()


def test_sides_without_a_server_are_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path, "qwen2.5-0.5b")
    with pytest.raises(PeerError, match=r"no server here; those with one are tensorwright, llama\.cpp, openvino-genai"):
        server_sides.Sides(cache, cache, None).prepare(Side("transformers", "bf16"))


def test_every_side_gets_the_same_capacity(tmp_path: Path) -> None:
    sides = server_sides.Sides(Cache(tmp_path, "qwen2.5-0.5b"), Cache(tmp_path, "qwen2.5-0.5b"), Path("llama-server"))
    sides.peers.python = lambda peer: f"python of {peer}"  # type: ignore[method-assign]
    for text in server_sides.DEFAULT_SIDES:
        peer, form = text.split("=")
        command, _ = sides._command(Side(peer, form), "model", 80, server_sides.Capacity(3, 5, 384, 100))
        assert {"3", "5", "384", "80"} <= set(command), text
        assert "model" in command or "tensorwright=model" in command


def test_prefixes_are_kept_by_every_side_or_by_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = server_sides.Sides(Cache(tmp_path, "qwen2.5-0.5b"), Cache(tmp_path, "qwen2.5-0.5b"), Path("llama-server"))
    sides.peers.python = lambda peer: f"python of {peer}"  # type: ignore[method-assign]
    for profile, kept in (("code", False), ("agent", True)):
        monkeypatch.setattr(sys, "argv", ["serving.py", "--profile", profile])
        args = serving.options()
        assert (args.load.lengths, args.load.prompts) == ((8192, 1024) if kept else (512, 128), "ids")
        commands = [
            sides._command(Side(*text.split("=")), "model", 80, args.capacity)[0] for text in server_sides.DEFAULT_SIDES
        ]
        ours, llama, openvino = commands
        assert ("--no-prefix-caching" in ours, "--no-cache-prompt" in llama) == (not kept, not kept)
        assert [llama[llama.index("--cache-ram") + 1], openvino[-1]] == (["8192", "8"] if kept else ["0", "0"])
        assert ("--cache-prompt" in llama and "--cache-reuse" in llama) == kept


def run(monkeypatch: pytest.MonkeyPatch, fake: Path, *options: str) -> tuple[dict[str, Any], str]:
    """A run with made-up servers in place of the peers', and made-up loads: half of the requests are late at a rate
    above RATES."""
    rates = {}

    def begin(self: object, side: Side, model: Path, capacity: object) -> ServerProcess:
        server = start(fake, SECONDS.get(side.form, 0.0))
        rates[server.url] = RATES.get(side.form, 0.0)
        return server

    async def load(url: str, model: str | None, settings: LoadSettings) -> tuple[str, list[Trace]]:
        late = 0.0 if (settings.rate or 0.0) <= rates[url] else 9.0
        starts = [i / (settings.rate or 1.0) for i in range(settings.requests)]
        waits = [0.5 + late * (i % 2) for i in range(settings.requests)]
        pairs = zip(starts, waits, strict=True)
        return "fake", [Trace(s, 8, 2, s, s + w + 0.1, [s + w, s + w + 0.1]) for s, w in pairs]

    monkeypatch.setattr(serving, "parse_sides", lambda texts: [Side(*text.split("=")) for text in texts])
    monkeypatch.setattr(server_sides.Sides, "prepare", lambda self, side: Path(side.form))
    monkeypatch.setattr(server_sides.Sides, "start", begin)
    monkeypatch.setattr(serving, "load_test", load)
    monkeypatch.setattr(serving.idle, "look", lambda seconds=2.0: serving.idle.Idleness(0.0, 0.0))
    out, places = fake.parent / "out", ["--cache", str(fake.parent / "a"), "--servers", str(fake.parent / "b")]
    monkeypatch.setattr(sys, "argv", ["serving.py", *places, "--out", str(out), *options])
    serving.main()
    return json.loads(out.with_suffix(".json").read_text()), out.with_suffix(".md").read_text()


def test_a_whole_run(monkeypatch: pytest.MonkeyPatch, fake: Path) -> None:
    """Each finds its own highest rate, in turns; the page has their ratio, and why one side is missing."""
    sides = ("--sides", "tensorwright=fast", "llama.cpp=slow", "openvino-genai=broken")
    report, page = run(monkeypatch, fake, "--quick", *sides, "--start-rate", "2", "--trials", "6", "--confirm", "2")
    fast, slow = report["sides"]["tensorwright fast"], report["sides"]["llama.cpp slow"]
    assert [t["rate"] for t in fast["trials"][:3]] == [2.0, 4.0, 8.0]
    assert [t["rate"] for t in slow["trials"][:3]] == [2.0, 1.0, pytest.approx(2**0.5)]
    for facts, rate in ((fast, RATES["fast"]), (slow, RATES["slow"])):
        assert facts["best_rate"] <= rate < 1.2 * facts["best_rate"]
        assert [(t["rate"], t["share"]) for t in facts["confirmed"]] == [(facts["best_rate"], 1.0)] * 2
        assert [t["share"] >= 0.9 for t in facts["trials"]] == [t["rate"] <= rate for t in facts["trials"]]
    ratio = fast["confirmed"][0]["goodput"] / slow["confirmed"][0]["goodput"]
    assert ratio > 2
    assert serving_page.ratio_to_best(report) == pytest.approx(ratio)
    assert f"best of the others: **{ratio:.2f}**" in page
    assert "| tensorwright fast |" in page
    assert "openvino-genai broken: its server ended with code 1: no model" in page
    assert (report["ended_early"], "ended early" in page) == (False, False)


def test_time_that_is_over_is_told(monkeypatch: pytest.MonkeyPatch, fake: Path) -> None:
    report, page = run(monkeypatch, fake, "--quick", "--sides", "tensorwright=fast", "--budget", "0")
    assert report["ended_early"]
    assert report["sides"]["tensorwright fast"]["trials"] == []
    assert "The search ended early" in page


def test_a_trial_is_a_load_test(fake: Path) -> None:
    """Of a server whose every answer takes 50 ms, one after the other."""
    server = start(fake, 0.05)
    try:
        server.wait_until_ready(PATIENCE)
        server.pause()
        contest = serving.Contest(Side("tensorwright", "int4"), server, RateSearch(1.0), 0.0)
        load = LoadSettings(requests=3, rate=50.0, profile="fixed", prompts="ids", token_range=(1, 9), ttft_limit=0.04)
        made = serving.trial(contest, load, 0.1)
        assert (made["requests"], made["rate"], made["share"], made["errors"]) == (5, 50.0, 0.0, {})
        assert made["ttft_p99"] >= made["ttft_p50"] >= 0.05
    finally:
        server.close()


def test_a_machine_that_is_not_idle_is_refused(monkeypatch: pytest.MonkeyPatch, fake: Path) -> None:
    monkeypatch.setattr(serving.idle, "wait_until_idle", lambda patience: serving.idle.Idleness(0.5, 2.0))
    with pytest.raises(SystemExit, match="not idle"):
        run(monkeypatch, fake, "--sides", "tensorwright=fast")
    assert not (fake.parent / "out.json").exists()


def test_nothing_good_is_said_plainly() -> None:
    side = {"peer": "tensorwright", "form": "int4", "best_rate": None, "confirmed": [], "trials": []}
    report = {"sides": {"tensorwright int4": side}}
    assert serving_page.ratio_to_best(report) is None
    assert "| tensorwright int4 | none found | - |" in serving_page._speed(report)
