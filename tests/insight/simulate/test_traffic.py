"""Made requests: arrivals, lengths, common beginnings, tenants, published traces, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.simulate.arrival_file import read_arrivals
from tensorwright.insight.simulate.traffic import Traffic, make_traffic
from tensorwright.options.simulate import TrafficFields

LONGEST = 1 << 20
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:51.6805900,0,55
2023-11-16 18:15:48.6805900,91,16
"""


def make(longest: int = LONGEST, **fields: Any) -> Traffic:
    return make_traffic(TrafficFields(**fields), longest, longest)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_the_same_seed_gives_the_same_requests() -> None:
    constant = ("seed", "known", "conversations")  # Each request is a conversation of its own, whatever the seed.

    def columns(seed: int) -> list[Any]:
        made = make(requests=50, rate=3.0, seed=seed, prefix_share=0.5, tenants=4)
        names = [name for name in Traffic.__dataclass_fields__ if name not in constant]
        return [getattr(made, name).tolist() for name in names]

    assert columns(1) == columns(1)
    assert all(a != b for a, b in zip(columns(1), columns(2), strict=True))


@pytest.mark.parametrize(("fields", "variation"), [({}, 1.0), ({"arrival": "gamma", "variation": 3.0}, 3.0)])
def test_gaps_have_the_mean_and_the_variation_that_were_asked_for(fields: dict[str, Any], variation: float) -> None:
    made = make(requests=200_000, rate=40.0, **fields)
    gaps = np.diff(made.arrivals * 1e-9)
    assert gaps.mean() == pytest.approx(1 / 40, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)
    assert made.rate == pytest.approx(40, rel=0.03)


def test_bursts_come_together() -> None:
    assert set(make(requests=9, arrival="burst").arrivals.tolist()) == {0}
    made = make(requests=6, arrival="burst", rate=2.0, burst_size=3)
    assert made.arrivals.tolist() == [0, 0, 0, 1_500_000_000, 1_500_000_000, 1_500_000_000]


def test_a_share_of_the_prompts_begins_alike() -> None:
    made = make(requests=20_000, prefix_share=0.3, prefixes=5, prefix_len=100)
    shared = made.prefix_tokens > 0
    assert shared.mean() == pytest.approx(0.3, abs=0.02)
    assert (made.prefix_tokens < made.prompts).all()
    assert set(made.prefix_tokens[shared & (made.prompts > 100)].tolist()) == {100}
    assert np.bincount(made.prefixes[shared]) == pytest.approx(shared.sum() / 5, rel=0.1)


def test_tenants_send_less_and_less() -> None:
    counts = np.bincount(make(requests=60_000, tenants=3).tenants)
    assert counts / 60_000 == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.01)


def test_a_trace_is_read_in_the_order_of_time(trace: Path) -> None:
    read = read_arrivals(trace, 100)
    assert read.seconds.tolist() == pytest.approx([0, 2, 4])
    assert (read.prompts.tolist(), read.outputs.tolist(), read.left_out) == ([374, 91, 396], [44, 16, 109], 1)
    assert len(read_arrivals(trace, 2)) == 2


def test_a_trace_begins_again_when_it_is_over_and_keeps_to_a_rate(trace: Path) -> None:
    made = make(arrival_file=str(trace), requests=7)
    assert (made.arrivals * 1e-9).tolist() == pytest.approx([0, 2, 4, 6, 8, 10, 12])
    assert made.prompts.tolist() == [374, 91, 396, 374, 91, 396, 374]
    faster = make(arrival_file=str(trace), requests=7, rate=7.0)
    assert (faster.arrivals * 1e-9).tolist() == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert len(make(arrival_file=str(trace))) == 3


FAULTS = {
    "TIMESTAMP,ContextTokens\n": "GeneratedTokens are missing",
    "": "are missing",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n": "must have a request",
    "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n": "line 2: TIMESTAMP must be a time",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,-1,2\n": "line 2: ContextTokens must be a whole number",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,2.5\n": "line 2: GeneratedTokens must be a whole number",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1\n": "line 2: GeneratedTokens must be a whole number",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,99999999999\n": "GeneratedTokens must be",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=FAULTS[text]):
        make(arrival_file=str(path))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read as a trace"):
        make(arrival_file=str(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidOptionError, match="cannot be read as a trace"):
        make(arrival_file=str(tmp_path / "bytes.csv"))


EXCLUDE: list[tuple[dict[str, Any], str]] = [
    ({"arrival_file": "x.csv", "arrival": "poisson"}, "leave out --arrival"),
    ({"arrival_file": "x.csv", "input_len": 5}, "leave out --input-len"),
    ({"burst_size": 3}, "--burst-size needs --arrival burst"),
    ({"arrival": "burst", "rate": 3.0}, "needs --burst-size"),
    ({"variation": 3.0}, "--variation needs --arrival gamma"),
    ({"rate": 1e-9}, "within a hundred years"),
    ({"profile": "agent", "prefix_share": 0.5}, "leave out --prefix-share"),
]


@pytest.mark.parametrize(("fields", "fault"), EXCLUDE)
def test_options_that_exclude_each_other_are_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidOptionError, match=fault):
        make(**fields)


def test_requests_that_are_too_long_are_refused_or_cut() -> None:
    fields = {"requests": 3, "profile": "fixed", "input_len": 90, "output_len": 20}
    with pytest.raises(
        InvalidOptionError, match=r"3 of 3 requests are longer than the 100 positions .* 90 \+ 20 tokens"
    ):
        make(100, **fields)
    cut = make(100, **fields, cut=True)
    assert (cut.prompts.tolist(), cut.outputs.tolist()) == ([90] * 3, [10] * 3)
    assert make(50, **fields, cut=True).prompts.tolist() == [49] * 3
    with pytest.raises(InvalidOptionError, match="its KV cache has 1 positions"):
        make(1, **fields, cut=True)
