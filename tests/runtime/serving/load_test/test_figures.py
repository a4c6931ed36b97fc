"""Figures of made-up traces: every number by hand. And the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tensorwright.errors import LoadTestError
from tensorwright.runtime.serving.load_test.chart import FAILED, GOOD, MISSED, draw_load_test
from tensorwright.runtime.serving.load_test.events import BadAnswer, Chunk, EventParser, read_chunk
from tensorwright.runtime.serving.load_test.report import count_errors, show, summarise
from tensorwright.runtime.serving.load_test.trace import Limits, Trace, goodput


def trace(scheduled: float, *chunks: float, usage: int | None = None, late: float = 0.0) -> Trace:
    return Trace(scheduled, 10, 3, sent=scheduled + late, end=chunks[-1], chunks=list(chunks), usage=usage)


def failed(scheduled: float, end: float, kind: str, message: str) -> Trace:
    made = Trace(scheduled, 10, 3, sent=scheduled, end=end)
    made.fail(kind, message)
    return made


TRACES = [
    trace(1.0, 2.0, 2.5, 3.5, usage=3),
    trace(2.0, 2.25, 2.5, 2.75, usage=5, late=0.125),
    failed(3.0, 9.0, "timeout", " nothing came "),
    failed(4.0, 4.5, "http 429", "full"),
    failed(4.0, 4.5, "http 429", "also full"),
]


def test_every_figure() -> None:
    result = summarise(TRACES, Limits(0.5, None))
    assert result["requests"] == {
        "sent": 5,
        "completed": 2,
        "errors": {"http 429": {"count": 2, "first": "full"}, "timeout": {"count": 1, "first": "nothing came"}},
    }
    assert list(result["requests"]["errors"]) == ["http 429", "timeout"]
    assert result["duration"] == 8.0  # from 1 to 9
    assert result["seconds"]["ttft"] == pytest.approx({"mean": 0.625, "p50": 0.625, "p90": 0.925, "p99": 0.9925})
    assert result["seconds"]["tpot"]["mean"] == pytest.approx((1.5 / 2 + 0.5 / 4) / 2)
    assert result["seconds"]["itl"]["p50"] == pytest.approx(0.375)  # of 0.25, 0.25, 0.5, 1.0
    assert result["seconds"]["request"]["mean"] == pytest.approx((2.5 + 0.75) / 2)
    assert result["send_delay"]["mean"] == pytest.approx(0.025)
    assert result["per_second"] == {"requests": 0.25, "input_tokens": 2.5, "output_tokens": 1.0}
    tokens = {"counted_by": "usage", "input": 20, "output": 8, "output_asked_for": 6, "per_chunk": 8 / 6}
    assert result["tokens"] == tokens
    assert (result["goodput"]["good"], result["goodput"]["share"], result["goodput"]["per_second"]) == (1, 0.2, 0.125)


def test_tokens_are_counted_by_chunks_without_usage() -> None:
    result = summarise([trace(0.0, 1.0, 2.0)], Limits(None, None))
    assert (result["tokens"]["counted_by"], result["tokens"]["output"]) == ("chunks", 2)
    assert result["seconds"]["tpot"]["p50"] == 1.0
    single = summarise([trace(0.0, 1.0)], Limits(None, None))
    assert single["seconds"]["tpot"] is None
    assert single["seconds"]["itl"] is None


def test_goodput() -> None:
    """The limits themselves are good; the percentile is of a request's own gaps."""
    steady, slow_start = trace(0.0, 1.0, 1.5, 2.0), trace(0.0, 1.25, 1.5)
    hiccup = trace(0.0, *(1.0 + 0.25 * i for i in range(10)), 10.0)
    traces = [steady, slow_start, hiccup, TRACES[2]]

    def good(limits: Limits) -> float:
        return goodput(traces, limits, 4.0)["good"]

    assert good(Limits(None, None)) == 3
    assert good(Limits(1.0, None)) == 2
    assert good(Limits(None, 0.5)) == 2
    assert good(Limits(None, 0.25)) == 1
    assert good(Limits(None, 0.5, 90.0)) == 3  # nine of its ten gaps are short
    assert good(Limits(1.0, 0.5)) == 1
    assert goodput(traces, Limits(1.0, 0.5), 4.0) == {"good": 1, "share": 0.25, "per_second": 0.25}


def test_nothing_completed_is_an_error() -> None:
    with pytest.raises(LoadTestError, match=r"none was \(http 429: full|none was \(2 x http 429: full; 1 x timeout"):
        summarise(TRACES[2:], Limits(None, None))
    assert count_errors(TRACES[:2]) == {}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(summarise(TRACES, Limits(0.5, 0.1, 90.0)), "made up")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["made up", "2 of 5 completed in 8.00 s", "  2 x http 429: full", "  1 x timeout: nothing came"]
    row = next(line for line in lines if line.startswith("TTFT ms"))
    assert row.split() == ["TTFT", "ms", "625.00", "625.00", "925.00", "992.50"]
    assert "goodput: 0.00 requests/s, 0.0% good (TTFT <= 0.5 s, P90 of a request's ITL <= 0.1 s)" in lines
    assert "8 tokens came of 6 that were asked for" in lines


def test_the_picture() -> None:
    """One bar per percentile as long as its value says, one dot per request in the colour of its fate."""
    limits = Limits(0.5, None)
    text = draw_load_test(summarise(TRACES, limits), TRACES, limits, "<made up>")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    dots = [circle.get("fill") for circle in root.iter(f"{space}circle")]
    assert dots == [MISSED, GOOD, FAILED, FAILED, FAILED]
    bars = [float(r.get("width", "0")) for r in root.iter(f"{space}rect") if r.get("fill") in ("#9ecae1", "#08519c")]
    assert bars[0] / bars[1] == pytest.approx(0.625 / 0.9925, rel=1e-3)  # TTFT: P50 to P99
    assert any(t.text == "<made up>" for t in root.iter(f"{space}text"))


def test_events_are_found_wherever_the_bytes_are_cut() -> None:
    stream = 'data: {"a": "é"}\n\n: a comment\n\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\n'.encode()
    for size in (1, 2, 7, len(stream)):
        parser = EventParser()
        parts = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [event for part in parts for event in parser.feed(part)] == ['{"a": "é"}', "one\ntwo", "[DONE]"]


def test_what_an_event_says() -> None:
    assert read_chunk("[DONE]") == Chunk(done=True)
    assert read_chunk('{"choices": [{"text": "a"}]}') == Chunk(has_text=True)
    assert read_chunk('{"choices": [{"text": ""}]}') == Chunk()
    assert read_chunk('{"choices": [], "usage": {"completion_tokens": 4}}') == Chunk(usage=4)
    assert read_chunk('{"error": {"message": "gone"}}') == Chunk(error="gone")
    assert read_chunk('{"error": "gone"}') == Chunk(error="gone")
    many = ('{"choices": ' + "9" * 5000 + "}", '{"choices": ' + "[" * 100_000)
    for wrong in ("{", "[]", '{"text": "a"}', '{"choices": 3}', '{"choices": [3]}', *many):
        with pytest.raises(BadAnswer):
            read_chunk(wrong)
