"""Declares `tensorwright bench serve` and its options. All packages but click are imported when the command runs."""

from __future__ import annotations

from typing import Any

import click

from tensorwright.click_command import SectionedCommand
from tensorwright.click_options import add_options
from tensorwright.interrupts import nothing_begun
from tensorwright.options.bench import LoadTestFields
from tensorwright.options.declare import Door


@click.command("serve", cls=SectionedCommand)
@click.argument("url")
@click.option("--model", help="The model's name.  [default: the only one that the server has]")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key that is sent as a bearer token.  [env: OPENAI_API_KEY]")
@add_options(Door.BENCH_SERVE, LoadTestFields)
@click.option("--plot", metavar="FILE.svg", help="Draw the result.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def bench_serve(
    url: str, model: str | None, api_key: str | None, plot: str | None, as_json: bool, **settings: Any
) -> None:
    """Latencies and goodput of the server at URL, by made-up requests to its /v1/completions.

    TTFT and e2e count from the moment when a request should have been sent. A request is good if it was completed
    within the limits; goodput is good requests per second.
    """
    with nothing_begun:
        from tensorwright.runtime.serving.load_test.settings import LoadSettings, base_url, check_api_key, check_plot

    load = LoadSettings(**settings)
    load.check()
    base = base_url(url)
    check_api_key(api_key)
    picture = check_plot(plot)
    with nothing_begun:
        from tensorwright.runtime.serving.load_test.session import run_session

    run_session(base, model, api_key, load, picture, as_json)
