"""Runs a whole load test, from the first question to the server to the report."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.serving.load_test.chart import draw_load_test
from tensorwright.runtime.serving.load_test.client import Client
from tensorwright.runtime.serving.load_test.report import describe_load, show, summarise
from tensorwright.runtime.serving.load_test.run import make_requests, run_load
from tensorwright.runtime.serving.load_test.settings import LoadSettings
from tensorwright.runtime.serving.load_test.trace import Limits, Trace


async def load_test(
    base: str,
    model: str | None,
    settings: LoadSettings,
    *,
    api_key: str | None = None,
    done: Callable[[int], None] = lambda steps: None,
) -> tuple[str, list[Trace]]:
    """Runs the requests of a load test. Returns the model's name and a trace of every request."""
    async with Client(base, settings.timeout, api_key) as client:
        name = await client.choose_model(model)
        requests = await make_requests(client, name, settings)
        return name, await run_load(client, requests, settings, done)


def limits_of(settings: LoadSettings) -> Limits:
    return Limits(settings.ttft_limit, settings.itl_limit, settings.itl_percentile)


def run_session(
    base: str, model: str | None, api_key: str | None, settings: LoadSettings, plot: Path | None, as_json: bool
) -> None:
    """Runs `tensorwright bench serve` with checked options."""
    with progress_bar("requests", settings.requests, sys.stderr.isatty() and not as_json) as done:
        name, traces = asyncio.run(load_test(base, model, settings, api_key=api_key, done=done))
    limits = limits_of(settings)
    result = summarise(traces, limits)
    heading = f"{base}, {name}: {describe_load(settings)}"
    if plot is not None:
        plot.write_text(draw_load_test(result, traces, limits, heading), encoding="utf-8")
    if as_json:
        load = asdict(settings)
        click.echo(json.dumps({"benchmark": "serve", "url": base, "model": name, "load": load, **result}, indent=2))
    else:
        show(result, heading)
