"""Declares `tensorwright bench serve` and its options. All packages but click are imported when the command runs."""

from __future__ import annotations

from typing import Any

import click

from tensorwright.interrupts import nothing_begun


@click.command("serve")
@click.argument("url")
@click.option("--model", help="Default: the only one that the server has.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Sent as a bearer token.  [env: OPENAI_API_KEY]")
@click.option("--requests", type=int, default=100, show_default=True, help="Requests that are measured.")
@click.option("--rate", type=float, help="Requests per second in the mean.  [default: 1; of a burst: all at once]")
@click.option("--arrival", type=click.Choice(["poisson", "burst"]), help="How they come.  [default: poisson]")
@click.option("--burst-size", type=int, help="Of --arrival burst with --rate: requests at the same moment.")
@click.option("--concurrency", type=int, help="So many users instead, each of whom waits for the answer.")
@click.option(
    "--profile",
    type=click.Choice(["chat", "summarisation", "code", "fixed"]),
    default="chat",
    show_default=True,
    help="Lengths: log-normal as in that use, or fixed.",
)
@click.option("--input-len", type=int, help="Longest prompt, or length of a fixed one.  [default: 4096; fixed: 512]")
@click.option("--output-len", type=int, help="Longest output, or length of a fixed one.  [default: 1024; fixed: 128]")
@click.option(
    "--prompts",
    type=click.Choice(["text", "ids"]),
    default="text",
    show_default=True,
    help="Send text or token ids; the server's /tokenize makes them of exact length.",
)
@click.option("--token-range", type=(int, int), metavar="LOW HIGH", help="With --prompts ids: ids below HIGH, unasked.")
@click.option("--ttft-limit", type=float, metavar="S", help="A good request has its first token by then.")
@click.option("--itl-limit", type=float, metavar="S", help="A good request's gaps between tokens are no longer.")
@click.option("--itl-percentile", type=float, default=99.0, show_default=True, help="Of its gaps that must hold it.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Outputs of full length.")
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--warmup", type=int, default=1, show_default=True, help="Requests before the test, not measured.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds of silence that end a request.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of lengths, prompts and arrivals.")
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
