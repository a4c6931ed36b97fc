"""What one hostile client does to everybody else: every attack of tests/hostile/attacks.py against a real server.

    python benchmarks/hostile_client.py ENGINE [--only NAME ...] [--json FILE] [--limit SECONDS] [--quiet SECONDS]
    python benchmarks/hostile_client.py --table BEFORE.json AFTER.json

ENGINE is one of the bundled pico model (build-engine models/pico ENGINE). Each attack gets a fresh `tensorwright
serve`. Beside it honest clients: one streams, one asks /health, one asks for a token; first alone, for --quiet seconds,
then while the attack goes on. An attack that is not over after --limit seconds is ended with its server, and its row
says "> limit". Of each row: the longest time that the stream, /health and who asks for a token stood still; how far the
server's memory grew at its highest; what the attack was answered, after how long, how the server's process ended, and
what else was found wrong. --json keeps all figures, also those without the attack, and of a file that is there already
the rows that are not measured anew. The table on stdout is Markdown; --table makes one of several runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from machine import describe  # noqa: E402

from hostile.attacks import ATTACKS, Attack  # noqa: E402
from hostile.clients import Outcome, Target, timed  # noqa: E402
from hostile.local import LOCAL  # noqa: E402
from hostile.observing import Growth, watch  # noqa: E402
from hostile.server import attacked_by  # noqa: E402
from support.served import Served  # noqa: E402

MEGABYTE = 1 << 20
PROBES = ("victim", "health", "newcomer")
COLUMNS = ("standstill, s", "memory, MB", "outcome")
AFTERMATH = 0.3  # seconds after an attack's answer that belong to the attack


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def measure(attack: Attack, engine: Path, folder: Path, limit: float, quiet: float) -> dict[str, Any]:
    """Returns one row, measured against a server of its own."""
    with attacked_by(attack, engine, folder) as (served, target):
        if not attack.watched:
            outcome = timed(attack.ready(attack.size), target, limit)
            return row_of(attack, served, outcome, limit) | {"quiet": {}, "during": {}, "grown": 0}
        with watch(target) as observed:
            before = observed.quiet(quiet)
            found = strike(attack, served, target, limit)
            begin, end = found.pop("begin"), found.pop("end")
            time.sleep(AFTERMATH)
            during = observed.report(begin, end + AFTERMATH)
            return found | {"quiet": before, "during": during, "quiet_seconds": quiet}


def strike(attack: Attack, served: Served, target: Target, limit: float) -> dict[str, Any]:
    """Runs the attack itself, and reads the process's figures before and after it."""
    ready = attack.ready(attack.size)
    written = served.log.stat().st_size
    with Growth(served.process.pid) as growth:
        begin = time.monotonic()
        outcome = timed(ready, target, limit)
        end = time.monotonic()
    row = row_of(attack, served, outcome, limit)
    if outcome is not None and attack.log is not None:
        time.sleep(0.5)
        with served.log.open(errors="replace") as log:
            log.seek(written)
            row["finding"] = row["finding"] or attack.log(outcome, log.readlines())
    return row | {"begin": begin, "end": end, "grown": growth.bytes}


def row_of(attack: Attack, served: Served, outcome: Outcome | None, limit: float) -> dict[str, Any]:
    try:
        ended = served.process.wait(0.5)
    except subprocess.TimeoutExpired:
        ended = None
    over = outcome is not None
    shown = outcome or Outcome(finding=f"not over after {limit:g} s")
    return {
        "row": attack.row, "name": attack.name, "what": attack.what, "size": attack.size, "over": over, "exit": ended,
        "answers": sorted(set(shown.answers)), "text": shown.text[:200], "finding": shown.finding,
        "seconds": shown.seconds if over else limit,
    }  # fmt: skip


def longest(row: dict[str, Any], probe: str, when: str = "during") -> str:
    found = row[when].get(probe)
    if found is None:
        return "-"
    over = ">" if when == "during" and not row["over"] else ""
    return f"{over}{found['gap']:.2f}" if found["gap"] < 10 else f"{over}{found['gap']:.0f}"


def outcome_of(row: dict[str, Any]) -> str:
    if row["exit"] is not None:
        return f"server ended, exit code {row['exit']}"
    answered = ", ".join(row["answers"]) or "no answer"
    time_taken = f"{row['seconds']:.1f} s" if row["over"] else f"> {row['seconds']:g} s"
    return "; ".join(part for part in (f"{answered} after {time_taken}", row["finding"]) if part)


def cells(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * len(COLUMNS)
    gaps = " / ".join(longest(row, probe) for probe in PROBES) if row["during"] else "-"
    return [gaps, f"{row['grown'] / MEGABYTE:.0f}", outcome_of(row)]


def noise(run: Iterable[dict[str, Any]]) -> str:
    """Says how long each probe stood still at most without an attack, in any row."""
    gaps = [max((row["quiet"][probe]["gap"] for row in run if row["quiet"]), default=0.0) for probe in PROBES]
    return " / ".join(f"{gap:.2f}" for gap in gaps)


def table(runs: list[list[dict[str, Any]]], names: list[str]) -> str:
    """Returns a Markdown table with a group of columns for each run. Its last line is the machine's own noise."""
    by_name = [{row["name"]: row for row in run} for run in runs]
    order = list(dict.fromkeys(name for run in by_name for name in run))
    heads = ["row", "attack"]
    for name in names:
        before = f"{name}: " if name else ""
        heads += [before + column for column in COLUMNS]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in order:
        first = next(run[name] for run in by_name if name in run)
        label = f"{name}: {first['what']} ({first['size']})"
        figures = [cell for run in by_name for cell in cells(run.get(name))]
        lines.append("| " + " | ".join([first["row"], label, *figures]) + " |")
    quiet = [cell for run in runs for cell in (noise(run), "", "")]
    lines.append("| " + " | ".join(["", "no attack: the longest of any row", *quiet]) + " |")
    return "\n".join(lines)


def run_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    attacks = {attack.name: attack for attack in ATTACKS}
    known = [*attacks, *LOCAL]
    wanted = arguments.only or known
    if unknown := set(wanted) - set(known):
        raise SystemExit(f"no attack is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    rows = kept(arguments.json)
    for number, name in enumerate(wanted):
        say(f"{number + 1} of {len(wanted)}: {name}")
        with tempfile.TemporaryDirectory() as folder:
            if name in attacks:
                row = measure(attacks[name], arguments.engine, Path(folder), arguments.limit, arguments.quiet)
            else:
                row = dataclasses.asdict(LOCAL[name](arguments.engine, Path(folder))) | {"name": name}
        say(f"    stream {longest(row, 'victim')} s, /health {longest(row, 'health')} s, "
            f"{row['grown'] / MEGABYTE:.0f} MB: {outcome_of(row)}")  # fmt: skip
        rows[name] = row
        if arguments.json is not None:
            found = {"machine": describe(), "rows": [rows[each] for each in known if each in rows]}
            arguments.json.write_text(json.dumps(found, indent=1))
    return [rows[name] for name in wanted]


def kept(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, nargs="?", help="of the bundled model")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these attacks alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures; its other rows stay")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for one attack; 60")
    parser.add_argument("--quiet", type=float, default=5.0, metavar="SECONDS", help="without the attack, before it; 5")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only a table of such runs' --json files")
    arguments = parser.parse_args()
    if arguments.table:
        runs = [json.loads(path.read_text())["rows"] for path in arguments.table]
        print(table(runs, ["before", "after"] if len(runs) == 2 else [path.stem for path in arguments.table]))
    elif arguments.engine is None:
        parser.error("an engine is needed, or --table")
    else:
        print(table([run_all(arguments)], [""]))


if __name__ == "__main__":
    main()
