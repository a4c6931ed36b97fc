"""This project next to llama.cpp, ONNX Runtime GenAI, OpenVINO GenAI and transformers: same weights, same machine.

    python benchmarks/peers/run.py --shape qwen2.5-0.5b --quick
    python benchmarks/peers/run.py --shape llama-3.2-1b --sides tensorwright=int4 llama.cpp=Q4_0 --out out/peers-llama

Sets up an environment for each peer under --cache (never this project's own), converts the same random weights for
each, checks that the machine is idle, and then asks one worker process per side in turn: A B C A B C. While one works
the others are stopped. Writes OUT.json, OUT.md and OUT.svg. A peer that cannot be set up is reported with its reason.
The ceilings of the machine are measured in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import cases  # noqa: E402
import idle  # noqa: E402
import measure  # noqa: E402
import plot  # noqa: E402
import report as pages  # noqa: E402
from environments import MODULES, OURS, Cache, Side, parse_sides  # noqa: E402
from machine import describe  # noqa: E402
from shapes import SHAPES  # noqa: E402
from worker import PeerError, Worker  # noqa: E402

REFERENCE = "transformers bf16"


@dataclass
class Ready:
    """The sides that were set up: workers by side, their facts, and the reasons why others are missing."""

    workers: dict[str, Worker]
    sides: dict[str, dict[str, Any]]
    refused: dict[str, str]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def ceilings(threads: int) -> dict[str, float]:
    """Measures the ceilings in a process of its own, so that this one stays small."""
    command = [sys.executable, str(FOLDER.parent / "ceilings.py"), "--json", "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)[str(threads)]


def prepare(cache: Cache, sides: list[Side], checkpoint: Path, again: set[str]) -> Ready:
    """Makes environments and conversions before anything is timed, and makes them anew for the peers in `again`."""
    ready = Ready({}, {}, {})
    for side in sides:
        say(f"{side}: environment and conversion")
        try:
            made = cache.convert(side, checkpoint, again=side.peer in again)
        except PeerError as error:
            ready.refused[str(side)] = str(error)
            say(f"{side} is out: {error}")
            continue
        ready.sides[str(side)] = {
            "peer": side.peer,
            "form": side.form,
            "bits": side.bits,
            "convert_seconds": made["seconds"],
            "convert_peak_bytes": made["peak_bytes"],
            "converted_earlier": made["earlier"],
            "file_bytes": made["file_bytes"],
            "bytes_per_token": made["bytes_per_token"],
        }
    return ready


def start(cache: Cache, sides: list[Side], ready: Ready, threads: int, timeout: float) -> None:
    """Starts one worker per side. Each is loaded, woken, and then stopped until it is asked."""
    for side in [s for s in sides if str(s) in ready.sides]:
        command = cache.command(side, "serve", str(cache.models / side.file_name), side.form, str(threads))
        variables = cache.variables(side.peer) | {"OMP_NUM_THREADS": str(threads)}
        worker = None
        try:
            worker = Worker(command, cache.logs / f"serve-{side.file_name}.log", timeout, variables)
            first = measure.wake(worker)
        except PeerError as error:
            if worker is not None:
                worker.close()
            ready.refused[str(side)] = str(error)
            del ready.sides[str(side)]
            say(f"{side} is out: {error}")
            continue
        worker.pause()
        ready.workers[str(side)] = worker
        facts = {"load_seconds": worker.ready["load_seconds"], "versions": worker.ready["versions"]}
        ready.sides[str(side)] |= facts | {"first_tokens": first}
        say(f"{side}: ready after {facts['load_seconds']:.1f} s")


def require_idle(patience: float, force: bool) -> bool:
    """Returns True if the machine is not idle but --force is given; ends the program if it is not given."""
    say("is the machine idle?")
    seen = idle.wait_until_idle(0.0 if force else patience)
    say(f"{seen}: {'idle' if seen.idle else 'NOT idle'}")
    if not seen.idle and not force:
        raise SystemExit(
            f"error: at most {idle.LIMIT:.0%} of the machine may be at work; end other programs, or --force"
        )
    return not seen.idle


def assemble(args: argparse.Namespace, ready: Ready, results: measure.Results, forced: bool) -> dict[str, Any]:
    reference = ready.sides.get(REFERENCE, {}).get("first_tokens")
    for facts in ready.sides.values():
        facts["agreement"] = pages.agreement(facts["first_tokens"], reference) if reference else "-"
    return {
        "shape": args.shape,
        "threads": args.threads,
        "rounds": args.rounds,
        "quick": args.quick,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe(),
        "forced": forced or any(not i.idle for i in results.idleness),
        "idleness": [asdict(i) for i in results.idleness],
        "ceilings_one_thread": ceilings(1),
        "ceilings": results.ceilings,
        "sides": ready.sides,
        "refused": ready.refused,
        "failed": results.failed,
        "rows": results.rows,
        "others": results.others,
    }


def write(report: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    page = pages.markdown(report)
    out.with_suffix(".json").write_text(json.dumps(report, indent=2))
    out.with_suffix(".md").write_text(page)
    out.with_suffix(".svg").write_text(plot.svg(report))
    print("\n" + page)
    say(f"written: {out}.json, .md, .svg")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument(
        "--checkpoint", type=Path, help="a checkpoint of that shape; default: random weights, made once"
    )
    parser.add_argument("--sides", nargs="+", metavar="PEER[=FORM]", help="default: every peer in every form")
    parser.add_argument("--quick", action="store_true", help="4 cases instead of 7, 3 rounds: a first result")
    parser.add_argument("--rounds", type=int, help="default: 5, quick 3")
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tensorwright-peers")
    parser.add_argument("--out", type=Path, default=Path("out/peers"), help="without suffix; default: %(default)s")
    parser.add_argument(
        "--reconvert", action="store_true", help="convert all anew (without it: only this project's engines)"
    )
    parser.add_argument("--setup-only", action="store_true", help="environments and conversions, nothing timed")
    parser.add_argument(
        "--force", action="store_true", help="measure on a machine that is not idle; the report says so"
    )
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for an idle machine")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a worker may take for one answer")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def measure_all(args: argparse.Namespace, cache: Cache, sides: list[Side], ready: Ready) -> measure.Results:
    """Starts the workers, runs the rounds, and ends every worker whatever happens (a stopped one would stay)."""

    def begin_round(results: measure.Results) -> None:
        results.idleness.append(idle.wait_until_idle(0.0 if args.force else args.patience))
        results.ceilings.append(ceilings(args.threads))
        say(f"{results.idleness[-1]}; ceilings {results.ceilings[-1]}")

    failed: dict[str, str] = {}
    try:
        start(cache, sides, ready, args.threads, args.timeout)
        if not ready.workers:
            raise SystemExit(f"error: no side could be set up: {ready.refused}")
        selected = cases.QUICK if args.quick else cases.FULL
        results = measure.run_rounds(ready.workers, selected, args.rounds, begin_round, say)
        failed = results.failed
    finally:
        peaks = measure.finish(ready.workers, failed)
    for side, facts in ready.sides.items():
        facts["peak_bytes"] = peaks.get(side)
    return results


def main() -> None:
    args = options()
    sides = parse_sides(args.sides)
    cache = Cache(args.cache.expanduser().resolve(), args.shape)
    forced = not args.setup_only and require_idle(args.patience, args.force)  # conversions are timed too
    checkpoint = args.checkpoint.resolve() if args.checkpoint else cache.checkpoint()
    # An engine of this project is always built by the present code. Other peers' conversions stay.
    again = set(MODULES) if args.reconvert else set() if args.setup_only else {OURS}
    ready = prepare(cache, sides, checkpoint, again)
    if args.setup_only:
        say(f"set up: {', '.join(ready.sides) or 'nothing'}")
        return
    forced = require_idle(args.patience, args.force) or forced
    results = measure_all(args, cache, sides, ready)
    write(assemble(args, ready, results, forced), args.out)


if __name__ == "__main__":
    main()
