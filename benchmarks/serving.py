"""Goodput of this project's server next to llama.cpp's and OpenVINO GenAI's continuous batching, under the same limits.

    python benchmarks/serving.py --quick
    python benchmarks/serving.py --profile chat --input-len 512 --ttft-limit 3 --out out/serving-chat
    python benchmarks/serving.py --profile agent --out out/serving-agent

For every side, the highest rate of Poisson arrivals is searched at which at least 90 % of the requests are good: first
token and gaps between tokens within the limits, as `tensorwright bench serve` counts them. Sides take turns, one trial
each: A B C A B C, the same requests for all in a round; whoever is not asked is stopped. Then each side's best rate is
tried again, with other prompts. No side keeps prefixes, except with the profile agent, whose prompts begin alike: there
each side has its cache of prefixes in its best form (server_sides.py). Environments and conversions are those of
benchmarks/peers (its --cache, only read once it is set up); what is made besides lies under --servers. Writes OUT.json
and OUT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER / "servers"), str(FOLDER / "peers"), str(FOLDER)]

import idle  # noqa: E402
import serving_page  # noqa: E402
from environments import Cache, Side, parse_sides  # noqa: E402
from machine import describe  # noqa: E402
from rate_search import RateSearch  # noqa: E402
from server_process import ServerProcess  # noqa: E402
from server_sides import DEFAULT_SIDES, Capacity, Sides  # noqa: E402
from shapes import SHAPES  # noqa: E402
from worker import PeerError  # noqa: E402

from tensorwright.errors import LoadTestError  # noqa: E402
from tensorwright.options.bench import AGENT, FIXED, PROFILES, lengths_of  # noqa: E402
from tensorwright.runtime.serving.load_test.report import summarise  # noqa: E402
from tensorwright.runtime.serving.load_test.session import limits_of, load_test  # noqa: E402
from tensorwright.runtime.serving.load_test.settings import LoadSettings  # noqa: E402

TOKEN_RANGE = (10, 30000)  # the range of benchmarks/peers
SHORT_LENGTHS = (512, 128)
"""The bounds of the profiles whose prompts share nothing, so that a run takes minutes."""


@dataclass
class Contest:
    """One side: its server, its search, and the measured trials."""

    side: Side
    server: ServerProcess
    search: RateSearch
    load_seconds: float
    trials: list[dict[str, Any]] = field(default_factory=list)
    confirmed: list[dict[str, Any]] = field(default_factory=list)
    failed: str | None = None


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def trial(contest: Contest, settings: LoadSettings, seconds: float) -> dict[str, Any]:
    """Runs one load test at the settings' rate, with the requests of `seconds`, but at least enough for a share."""
    assert settings.rate is not None
    count = max(settings.requests, round(settings.rate * seconds))
    settings = replace(settings, requests=count)
    contest.server.resume()
    try:
        _, traces = asyncio.run(load_test(contest.server.url, None, settings))
    finally:
        contest.server.pause()
    result = summarise(traces, limits_of(settings))
    if result["seconds"]["itl"] is None:
        raise LoadTestError("an answer must come in several chunks, each came in one: there is no ITL")
    latency = {f"{name}_{p}": result["seconds"][name][p] for name in ("ttft", "itl") for p in ("p50", "p99")}
    return latency | {
        "rate": settings.rate,
        "requests": count,
        "share": result["goodput"]["share"],
        "goodput": result["goodput"]["per_second"],
        "output_tokens": result["per_second"]["output_tokens"],
        "errors": result["requests"]["errors"],
        "duration": result["duration"],
    }


def tried(contest: Contest, settings: LoadSettings, seconds: float, what: str) -> dict[str, Any] | None:
    """Runs a trial and reports it. A side whose server fails is left out, with the reason."""
    try:
        made = trial(contest, settings, seconds)
    except LoadTestError as error:
        contest.failed = str(error)
        say(f"{contest.side} is out: {error}")
        return None
    say(
        f"{what:10}{contest.side!s:28}{made['rate']:8.3f} req/s: {made['share']:5.0%} good, TTFT P50 "
        f"{made['ttft_p50']:.2f} s, ITL P99 {made['itl_p99'] * 1e3:.0f} ms, {made['duration']:.1f} s"
    )
    return made


def search(args: argparse.Namespace, contests: list[Contest], idleness: list[idle.Idleness]) -> bool:
    """Runs rounds of one trial per unfinished side. Returns True if time or trials ran out before all finished."""
    for round_ in range(args.trials):
        open_ = [c for c in contests if c.failed is None and c.search.next_rate() is not None]
        if not open_:
            return False
        idleness.append(idle.look())
        for contest in open_:
            if time.monotonic() > args.deadline:
                return True
            rate = contest.search.next_rate()
            made = tried(contest, replace(args.load, rate=rate, seed=round_), args.seconds, f"search {round_ + 1}")
            if made is not None:
                contest.trials.append(made)
                contest.search.tell(made["rate"], made["share"] >= args.share)
    return any(c.failed is None and c.search.next_rate() is not None for c in contests)


def confirm(args: argparse.Namespace, contests: list[Contest], idleness: list[idle.Idleness]) -> None:
    """Tries each side's best rate again, with prompts and arrivals that the search did not use."""
    for round_ in range(args.confirm):
        idleness.append(idle.look())
        for contest in [c for c in contests if c.failed is None and c.search.good is not None]:
            settings = replace(args.load, rate=contest.search.good, seed=1000 + round_)
            made = tried(contest, settings, args.seconds, f"again {round_ + 1}")
            if made is not None:
                contest.confirmed.append(made)


def set_up(args: argparse.Namespace, failed: dict[str, str]) -> list[Contest]:
    """Converts everything, then starts the servers one after the other. Each is stopped once it is ready."""
    peers, own = (
        Cache(args.cache.expanduser().resolve(), args.shape),
        Cache(args.servers.expanduser().resolve(), args.shape),
    )
    sides, models = Sides(peers, own, args.llama_server), dict[Side, Path]()
    for side in parse_sides(args.sides):
        say(f"{side}: environment and conversion")
        try:
            models[side] = sides.prepare(side)
        except PeerError as error:
            failed[str(side)] = str(error)
            say(f"{side} is out: {error}")
    contests: list[Contest] = []
    for side, model in models.items() if not args.setup_only else ():
        server = sides.start(side, model, args.capacity)
        try:
            seconds = server.wait_until_ready(args.timeout)
            asyncio.run(load_test(server.url, None, args.waking))
        except (PeerError, LoadTestError) as error:
            server.close()
            failed[str(side)] = str(error)
            say(f"{side} is out: {error}")
            continue
        server.pause()
        contests.append(Contest(side, server, RateSearch(args.start_rate, args.precision), seconds))
        say(f"{side}: ready after {seconds:.1f} s")
    return contests


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures everything, from idle to the report, and always ends every server."""
    failed: dict[str, str] = {}
    idleness: list[idle.Idleness] = []
    contests = set_up(args, failed)
    try:
        seen = idle.wait_until_idle(0.0 if args.force else args.patience)
        say(f"{seen}: {'idle' if seen.idle else 'NOT idle'}")
        if not seen.idle and not args.force:
            raise SystemExit("error: the machine is not idle; end other programs, or --force")
        args.deadline = time.monotonic() + args.budget
        ended_early = search(args, contests, idleness)
        confirm(args, contests, idleness)
    finally:
        for contest in contests:
            contest.server.close()
    return {
        "shape": args.shape, "threads": args.capacity.threads, "quick": args.quick, "share": args.share,
        "confirm": args.confirm, "date": time.strftime("%Y-%m-%d"), "machine": describe(),
        "capacity": asdict(args.capacity), "load": asdict(args.load), "ended_early": ended_early,
        "forced": args.force or not all(i.idle for i in idleness), "idleness": [asdict(i) for i in idleness],
        "failed": failed | {str(c.side): c.failed for c in contests if c.failed is not None},
        "sides": {
            str(c.side): {
                "peer": c.side.peer, "form": c.side.form, "load_seconds": c.load_seconds, "best_rate": c.search.good,
                "trials": c.trials, "confirmed": c.confirmed,
            }
            for c in contests
        },
    }  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    add("--sides", nargs="+", metavar="PEER[=FORM]", default=DEFAULT_SIDES, help="default: %(default)s")
    add("--quick", action="store_true", help="under 12 minutes: trials of 12 s, one confirmation, a bracket of 20 %%")
    add("--profile", choices=[name for name in PROFILES if name != FIXED], default="code")
    longest, agents = SHORT_LENGTHS, lengths_of(AGENT, None, None)
    add("--input-len", type=int, help=f"longest prompt; default: {longest[0]}, of {AGENT} {agents[0]}")
    add("--output-len", type=int, help=f"longest output; default: {longest[1]}, of {AGENT} {agents[1]}")
    add("--ttft-limit", type=float, default=2.0)
    add("--itl-limit", type=float, default=0.2)
    add("--itl-percentile", type=float, default=90.0, help="of a request's gaps within the limit; default: %(default)s")
    add("--share", type=float, default=0.9, help="of requests that must be good; default: %(default)s")
    add("--start-rate", type=float, default=0.5, help="requests per second of the first trial")
    add("--seconds", type=float, help="of arrivals in a trial; default: 30, quick 12")
    add("--requests", type=int, help="fewest of a trial; default: 30, quick 12")
    add("--trials", type=int, default=10, help="most of a side's search")
    add("--confirm", type=int, help="trials at the best rate; default: 3, quick 1")
    add("--budget", type=float, help="seconds after which no trial of the search begins; default: 2400, quick 420")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--sequences", type=int, default=16, help="at once, of every side")
    add("--step-tokens", type=int, default=512, help="most tokens of a step, of every side")
    add("--prefix-memory", type=int, default=8, help=f"GiB of the peers' prefixes, with {AGENT}; default: %(default)s")
    add("--cache", type=Path, default=Path.home() / ".cache" / "tensorwright-peers", help="of benchmarks/peers")
    add("--servers", type=Path, default=Path.home() / ".cache" / "tensorwright-servers", help="what is made besides")
    add("--llama-server", type=Path, help="default: compiled from the peer's sources, once")
    add("--out", type=Path, default=Path("out/serving"), help="without suffix; default: %(default)s")
    add("--setup-only", action="store_true", help="environments, conversions and llama-server, nothing timed")
    add("--force", action="store_true", help="measure on a machine that is not idle; the report says so")
    add("--patience", type=float, default=120.0, help="seconds to wait for an idle machine")
    add("--timeout", type=float, default=180.0, help="seconds for a server to load, and of silence in a trial")
    return complete(parser.parse_args())


def complete(args: argparse.Namespace) -> argparse.Namespace:
    """Returns the arguments with defaults that depend on --quick, and with the trials' common settings, checked."""
    quick = {"seconds": 12.0, "requests": 12, "confirm": 1, "budget": 420.0}
    full = {"seconds": 30.0, "requests": 30, "confirm": 3, "budget": 2400.0}
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    defaults = lengths_of(AGENT, None, None) if args.profile == AGENT else SHORT_LENGTHS
    args.input_len, args.output_len = args.input_len or defaults[0], args.output_len or defaults[1]
    args.precision = 1.2 if args.quick else 1.1
    args.load = LoadSettings(
        requests=args.requests, rate=args.start_rate, profile=args.profile, input_len=args.input_len,
        output_len=args.output_len, prompts="ids", token_range=TOKEN_RANGE, ttft_limit=args.ttft_limit,
        itl_limit=args.itl_limit, itl_percentile=args.itl_percentile, warmup=1, timeout=args.timeout,
    )  # fmt: skip
    args.load.check()
    # These requests are not counted. They page in weights and compile kernels, at full prompts and several sequences.
    args.waking = replace(args.load, requests=4, rate=None, arrival="burst", profile="fixed", output_len=8)
    prefixes = args.prefix_memory if args.profile == AGENT else 0
    length = args.input_len + args.output_len + 8
    args.capacity = Capacity(args.threads, args.sequences, args.step_tokens, length, prefixes)
    return args


def main() -> None:
    args = options()
    if args.setup_only:
        set_up(args, {})
        return
    report = measure(args)
    page = serving_page.markdown(report)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=2))
    args.out.with_suffix(".md").write_text(page)
    print("\n" + page)
    say(f"written: {args.out}.json, .md")


if __name__ == "__main__":
    main()
