"""When requests come and how long they are: drawn as said, repeatable; wrong settings are refused."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwright.errors import InvalidOptionError
from tensorwright.options.bench import AGENT, FIXED, PROFILES
from tensorwright.runtime.serving.load_test.run import arrival_times
from tensorwright.runtime.serving.load_test.settings import LoadSettings, base_url, check_plot
from tensorwright.runtime.serving.load_test.workload import (
    AGENTS,
    LENGTHS,
    LogNormal,
    RequestLengths,
    burst_times,
    draw_lengths,
    poisson_times,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_arrivals() -> None:
    """Gaps of mean 1/rate and as large a deviation; their law within Kolmogorov's 1 % bound, 1.63 / sqrt(n)."""
    times = poisson_times(20_000, 4.0, rng())
    gaps = np.diff([0.0, *times])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)  # 4 standard errors
    assert gaps.std() == pytest.approx(0.25, rel=0.06)
    expected = 1 - np.exp(-4.0 * np.sort(gaps))
    assert np.abs(expected - np.arange(1, 20_001) / 20_000).max() < 1.63 / np.sqrt(20_000)


def test_bursts() -> None:
    assert burst_times(3, None, None) == [0.0] * 3
    assert burst_times(5, 4.0, 2) == [0.0, 0.0, 0.5, 0.5, 1.0]  # four per second in the mean


def test_arrivals_depend_on_the_seed_only() -> None:
    first, again, other = (arrival_times(LoadSettings(requests=9, rate=3.0, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert arrival_times(LoadSettings(requests=2, arrival="burst")) == [0.0, 0.0]
    slower = arrival_times(LoadSettings(requests=9, rate=1.5, seed=1))
    assert slower == pytest.approx([2 * t for t in first])  # the same arrivals, stretched


def pairs(drawn: list[RequestLengths]) -> np.ndarray:
    """The lengths of prompts and outputs: [requests, 2]."""
    return np.array([(one.prompt, one.output) for one in drawn])


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_log_normal(name: str) -> None:
    """The mean within 4 standard errors, the logarithm's deviation within 3 %: so many draws, no bound in the way."""
    count = 40_000
    drawn = pairs(draw_lengths(name, count, 10**6, 10**6, rng())).astype(float)
    for column, law in enumerate((LENGTHS[name].prompt, LENGTHS[name].output)):
        error = np.sqrt((np.exp(law.sigma**2) - 1) / count)
        assert drawn[:, column].mean() == pytest.approx(law.mean, rel=4 * error)
        assert np.log(drawn[:, column]).std() == pytest.approx(law.sigma, rel=0.03)


def test_every_profile_that_can_be_asked_for_has_lengths() -> None:
    assert {*LENGTHS, AGENT, FIXED} == set(PROFILES)


def test_lengths_keep_their_bounds() -> None:
    assert pairs(draw_lengths("fixed", 2, 7, 3, rng())).tolist() == [[7, 3], [7, 3]]
    drawn = pairs(draw_lengths("chat", 500, 300, 20, rng()))
    assert drawn.max(axis=0).tolist() == [300, 20]
    assert drawn.min() >= 1
    assert min(LogNormal(1.0, 3.0).sample(500, 10, rng())) == 1
    for most in (1, 2, 64, 8192):
        drawn = pairs(draw_lengths("agent", 500, most, 20, rng()))
        assert (drawn.min() >= 1, drawn[:, 0].max() <= most, drawn[:, 1].max()) == (True, True, 20)


def test_agents_take_turns_in_conversations_that_grow() -> None:
    """Each turn is longer than the last one and its answer; the turns of a conversation have the mean that is said,
    and eight conversations go on at once."""
    count = 40_000
    drawn = draw_lengths("agent", count, 10**7, 10**6, rng())
    turns = dict[int, list[int]]()
    for index, one in enumerate(drawn):
        turns.setdefault(one.conversation, []).append(index)
    for places in turns.values():
        assert {b - a for a, b in itertools.pairwise(places)} <= {AGENTS.users}
        for a, b in itertools.pairwise(places):
            assert drawn[b].prompt > drawn[a].prompt + drawn[a].output
    lengths = [len(places) for places in turns.values()]
    error = np.sqrt(1 - 1 / AGENTS.turns)  # the deviation of a geometric law over its mean
    assert np.mean(lengths) == pytest.approx(AGENTS.turns, rel=4 * error / np.sqrt(len(lengths)))
    first = np.array([drawn[places[0]].prompt for places in turns.values()])
    assert {one.common for one in drawn} == {AGENTS.prefix}
    assert (first > AGENTS.prefix).all()
    assert (first - AGENTS.prefix).mean() == pytest.approx(AGENTS.question.mean, rel=0.05)
    short = draw_lengths("agent", 50, 300, 20, rng(), users=3)
    assert {one.common for one in short} == {200}  # The common beginning leaves room for turns.
    assert len({one.conversation for one in short[:3]}) == 3
    assert len({one.conversation for one in short}) < 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"requests": 0}, "--requests must be at least 1, got 0"),
        ({"rate": 0.0}, "--rate must be a positive number, got 0.0"),
        ({"rate": float("nan")}, "--rate must be"),
        ({"timeout": float("inf")}, "--timeout must be"),
        ({"ttft_limit": -1.0}, "--ttft-limit must be"),
        ({"itl_percentile": 101.0}, "--itl-percentile must be"),
        ({"concurrency": 0}, "--concurrency must be at least 1"),
        ({"concurrency": 2, "rate": 1.0}, "leave out --rate"),
        ({"concurrency": 2, "arrival": "burst"}, "leave out --arrival"),
        ({"arrival": "uniform"}, "--arrival must be one of poisson, burst"),
        ({"burst_size": 2, "rate": 1.0}, "--burst-size needs --arrival burst"),
        ({"burst_size": 2, "arrival": "burst"}, "--burst-size needs --rate"),
        ({"arrival": "burst", "rate": 1.0}, "needs --burst-size"),
        ({"profile": "novel"}, "--profile must be"),
        ({"prompts": "pictures"}, "--prompts must be one of text, ids"),
        ({"token_range": (5, 9)}, "--token-range needs --prompts ids"),
        ({"prompts": "ids", "token_range": (9, 9)}, "--token-range must be LOW HIGH"),
        ({"warmup": -1}, "--warmup must be 0 or more"),
        ({"temperature": -0.1}, "--temperature must be"),
        ({"seed": -1}, "--seed must be"),
        ({"output_len": 0}, "--output-len must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        LoadSettings(**settings).check()


def test_right_settings_are_not() -> None:
    for settings in ({}, {"concurrency": 3}, {"arrival": "burst"}, {"arrival": "burst", "rate": 2.0, "burst_size": 4}):
        LoadSettings(**settings).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:y", "http://x/?a=b"])
def test_wrong_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidOptionError, match="URL must be that of a server"):
        base_url(url)


def test_urls_may_name_the_version() -> None:
    forms = Counter(base_url(f"http://host:1/{rest}") for rest in ("", "v1", "v1/"))
    assert forms == {"http://host:1": 3}
    assert base_url("https://host/behind/v1") == "https://host/behind"


def test_places_of_the_picture(tmp_path: Path) -> None:
    check_plot(str(tmp_path / "new.svg"))
    check_plot(None)
    for wrong in ("new.png", "missing/new.svg", ""):
        with pytest.raises(InvalidOptionError, match="--plot"):
            check_plot(str(tmp_path / wrong))
