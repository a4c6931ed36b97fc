"""A soak of `tensorwright serve`: thousands of requests of every kind, and faults; nothing may be lost or left over.

    python benchmarks/soak.py --requests 20000
    python benchmarks/soak.py --requests 400 --out out/soak-short

A server of pico, in a process of its own, gets seeded traffic from many clients at once: completions, beams, guided
outputs, chats, calls of tools, thinking, responses that go on from others, messages, adapters, deadlines, streams and
none; clients that leave, read slowly or send halves; bodies that are wrong or too large. Its KV cache and the tiers
behind it are so small that sequences preempt each other and blocks go to the disk and come back. The first life has
adapters, which are taken away and given back while it answers; then it is ended in order under traffic, and the second
life, with speculation, has its engine replaced twice. Meanwhile the process is held still, and the files of the disk
tier are cut off, damaged and removed, and its disk is full.

It checks that every job has one end that is right for it; that clients, log and counters agree; that nothing is in use
when nobody asks; that memory, files and threads do not grow from the first fifth of a life to the last; and that a
sample of what survived has the bits that a quiet server gives to it alone. It writes OUT.json and OUT.md, and ends with
code 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks" / "soaking"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import soak_checks  # noqa: E402
from machine import describe  # noqa: E402
from soak_client import Clients, Outcome  # noqa: E402
from soak_faults import STEP_LIMIT, Faults  # noqa: E402
from soak_jobs import ADAPTERS, FINISHED, KEYS, MAX_BODY, Drawer  # noqa: E402
from soak_page import summary  # noqa: E402
from soak_server import Held, Life  # noqa: E402

from support.agents import THOUGHT  # noqa: E402
from support.chat_engine import make_chat_engine  # noqa: E402
from support.chat_samples import SAMPLES  # noqa: E402
from support.made_adapters import make_adapter, places_of  # noqa: E402

FIFTHS = 5
BEFORE_RESTART = 0.5
"""The share of the jobs after which the first life is measured, and then ended under traffic."""
COMMON = (
    f"--threads 2 --max-requests-per-key 100 --max-priority 2 --max-body-size {MAX_BODY} --body-timeout 10 "
    "--client-timeout 2 --log-level info --quiet-probes"
)
CROWDED = (
    "--api-key-file {folder}/keys --max-batch-size 16 --max-num-tokens 192 --max-queue-size 32 --kv-cache-memory 10MiB "
    "--prefix-cache-memory 4MiB --prefix-cache-disk {folder}/disk --prefix-cache-disk-size 24MiB "
    "--max-stored-responses 256 --drain-timeout 240 --priority-ageing 2s"
)
ADAPTED = f"--adapter-folder {{folder}}/adapters --max-loras {len(ADAPTERS)} " + " ".join(
    f"--adapter {name}={{folder}}/adapters/{name}" for name in ADAPTERS
)
SPECULATES = "--speculative ngram,tokens=4"
WATCHED = f"--watchdog restart --step-limit {STEP_LIMIT:g} --watchdog-dir {{folder}}"
ALONE = (
    "--api-key-file {folder}/quiet-keys --no-prefix-caching --no-jump-forward --max-batch-size 4 "
    "--kv-cache-memory 64MiB"
)
FIRST = f"{COMMON} {CROWDED} {ADAPTED}"
SECOND = f"{COMMON} {CROWDED} {SPECULATES} {WATCHED}"
QUIET = f"{COMMON} {ALONE} {ADAPTED}"
"""The options of the three lives of a server."""


@dataclass
class Soak:
    """One run. outcomes: of all jobs, in any order; the answers of those that are not in the sample are dropped."""

    args: argparse.Namespace
    folder: Path
    engine: Path
    drawer: Drawer
    clients: Clients
    faults: Faults
    sample: frozenset[int]
    begun: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    issued: int = 0
    under_way: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    lives: list[Life] = field(default_factory=list)
    held: dict[str, list[Held]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    reached: dict[str, dict[str, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    exits: dict[str, int | None] = field(default_factory=dict)

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def restart_at(self) -> int:
        """The job behind which the first life is ended: some jobs after its last measurement."""
        return int(self.args.requests * (BEFORE_RESTART + 0.02))

    def start(self, name: str, options: str) -> Life:
        filled = [word.format(folder=self.folder) for word in options.split()]
        plant = None if options is QUIET else self.args.plant
        life = Life(self.engine, self.clients.port, self.folder, name, filled, plant)
        self.lives.append(life)
        return life

    async def worker(self) -> None:
        while True:
            while not self.open.is_set():
                await self.open.wait()
            if self.issued >= self.args.requests:
                return
            number, self.issued, self.under_way = self.issued, self.issued + 1, self.under_way + 1
            first = number < self.restart_at
            outcome = await self.clients.run(self.drawer.draw(number, adapters=first, replaced=not first))
            if number not in self.sample:
                outcome.answers.clear()
            self.outcomes.append(outcome)
            self.under_way -= 1

    async def pause(self, count: bool) -> None:
        """Lets what is under way end, measures the quiet server, and goes on. count: whether it compares the server's
        counters with its log."""
        self.open.clear()
        while self.under_way:
            await asyncio.sleep(0.05)
        await self.clients.close()
        metrics, left = await soak_checks.wait_until_idle(self.life)
        if left:
            self.wrong.append(f"{self.life.name}, after {self.issued} jobs, still in use: {left}")
        self.metrics[self.life.name] = metrics
        reached = self.reached.setdefault(self.life.name, {})
        reached |= {name: max(value, reached.get(name, value)) for name, value in metrics.items()}
        self.held.setdefault(self.life.name, []).append(self.life.held())
        self.say(f"{self.life.name}: {self.issued} jobs, {self.held[self.life.name][-1]}")
        if count:
            counted = soak_checks.accounting(self.life, self.outcomes, metrics)
            self.wrong += [f"{self.life.name}: {fault}" for fault in counted]
        await self.clients.open()
        self.open.set()

    async def reach(self, number: int) -> None:
        """Waits until so many jobs have begun."""
        while self.issued < min(number, self.args.requests):
            if not self.open.is_set() or self.life.process.poll() is None:
                await asyncio.sleep(0.02)
            else:
                raise RuntimeError(f"the server ended with code {self.life.process.returncode}: see its log")

    async def disturb(self, first: int, last: int, adapters: bool) -> None:
        """Injects the faults of a life, evenly from job `first` to job `last`."""
        faults = self.faults.of_life(adapters)
        for place, fault in enumerate(faults):
            await self.reach(first + (2 * place + 1) * (last - first) // (2 * len(faults)))
            try:
                await fault(self.life)
            except Exception as error:  # The soak goes on, and says so in the end.
                self.wrong.append(f"{self.life.name}, {fault.__name__}: {type(error).__name__}: {error}")

    async def live(self, first: int, last: int, adapters: bool) -> None:
        """Runs a life's jobs: five parts, each ended by a measurement, and its faults beside them."""
        disturbing = asyncio.create_task(self.disturb(first, last, adapters))
        for fifth in range(1, FIFTHS + 1):
            await self.reach(first + (last - first) * fifth // FIFTHS)
            if fifth == FIFTHS:
                await disturbing
            await self.pause(count=fifth == FIFTHS)

    async def restart(self) -> None:
        """Ends the first life in order while clients ask, and starts the second one at the same port."""
        await self.reach(self.restart_at)
        self.clients.restarting = True
        before = self.life
        self.exits[before.name] = await asyncio.to_thread(before.end)
        life = self.start("second life", SECOND)
        await asyncio.to_thread(life.wait)
        await asyncio.sleep(1)
        self.clients.restarting = False
        self.say(f"{before.name} ended with code {self.exits[before.name]}; second life answers")

    async def run(self) -> None:
        await asyncio.to_thread(self.start("first life", FIRST).wait)
        await self.clients.open()
        self.open.set()
        workers = [asyncio.create_task(self.worker()) for _ in range(self.args.clients)]
        try:
            await self.live(0, int(self.args.requests * BEFORE_RESTART), adapters=True)
            await self.restart()
            await self.live(self.issued, self.args.requests, adapters=False)
            await asyncio.gather(*workers)
            self.exits[self.life.name] = await asyncio.to_thread(self.life.end)
            await self.check_bits()
        finally:
            for worker in workers:
                worker.cancel()
            await self.clients.close()
            for life in self.lives:
                life.kill()

    async def check_bits(self) -> None:
        """Asks a quiet server for the sample, one job after the other."""
        survivors = [one for one in self.outcomes if one.end == FINISHED and one.job.number in self.sample]
        quiet = self.start("quiet life", QUIET)
        await asyncio.to_thread(quiet.wait)
        alone = Clients(self.clients.port, "alone")
        await alone.open()
        self.say(f"{len(survivors)} survivors are asked for alone")
        self.compared = len(survivors)
        self.wrong += await soak_checks.compare_alone(alone, survivors)
        await alone.close()
        self.exits[quiet.name] = await asyncio.to_thread(quiet.end)

    def judge(self) -> list[str]:
        """Returns everything that does not hold."""
        wrong = [*self.wrong, *soak_checks.wrong_ends(self.outcomes)]
        wrong += soak_checks.missing_lines(self.lives, self.outcomes)
        numbers = Counter(one.job.number for one in self.outcomes)
        if sorted(numbers) != list(range(self.args.requests)) or max(numbers.values()) != 1:
            wrong.append(f"{self.args.requests} jobs must have one end each, {len(self.outcomes)} ends came")
        for name, held in self.held.items():
            wrong += [f"{name}: {fault}" for fault in soak_checks.growth(held)]
        wrong += [f"{name} must end with code 0, it ended with {code}" for name, code in self.exits.items() if code]
        for life in self.lives:
            wrong += [f"{life.name}, in its log: {fault}" for fault in life.log.faults]
        if not any(life.log.replaced for life in self.lives):
            wrong.append("an engine must be replaced while the process is held still, none was")
        return wrong + soak_checks.untouched(self.reached)

    def report(self) -> dict[str, Any]:
        ends: dict[str, Counter[str]] = {}
        for one in self.outcomes:
            ends.setdefault(one.job.kind, Counter())[one.end if one.right else "wrong"] += 1
        shown = {name: {key: value for key, value in found.items() if "_bucket" not in key and "_created" not in key}
                 for name, found in self.metrics.items()}  # fmt: skip
        return {
            "requests": self.args.requests, "seed": self.args.seed, "clients": self.args.clients,
            "date": time.strftime("%Y-%m-%d"), "machine": describe(), "seconds": time.monotonic() - self.begun,
            "ends": {kind: dict(counts) for kind, counts in sorted(ends.items())},
            "http_requests": sum(len(one.tries) for one in self.outcomes), "codes": dict(self.clients.codes),
            "manners": dict(Counter(one.job.manner for one in self.outcomes)),
            "faults": dict(self.faults.counts), "compared": getattr(self, "compared", 0),
            "held": {name: [asdict(one) for one in held] for name, held in self.held.items()},
            "exits": self.exits, "engines_replaced": sum(life.log.replaced for life in self.lives), "metrics": shown,
            "wrong": self.judge(),
        }  # fmt: skip


def made_engine(folder: Path, given: Path | None) -> Path:
    """Returns an engine of pico that chats, calls tools and thinks. given: an engine of pico; None builds one."""
    if given is None:
        from tensorwright import build

        given = build(ROOT / "models" / "pico", folder / "plain", dtype="float32", accuracy="none").path
    return make_chat_engine(given, folder / "engine", SAMPLES["hermes"].template + THOUGHT)


def made_soak(args: argparse.Namespace, folder: Path) -> Soak:
    """Makes all that the servers read: engine, keys, adapters."""
    engine = made_engine(folder, args.engine)
    (folder / "keys").write_text("\n".join(KEYS) + "\n")
    (folder / "quiet-keys").write_text("\n".join(key.split()[0] for key in KEYS) + "\n")  # without bounds
    (folder / "disk").mkdir()
    for number, name in enumerate(ADAPTERS):
        make_adapter(folder / "adapters" / name, places_of(engine).modules, seed=number, spread=0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    drawer = Drawer(args.seed, vocabulary=8000)
    comparable = [number for number in range(args.requests) if drawer.draw(number, True, True).compares]
    sample = random.Random(args.seed).sample(comparable, min(args.compare, len(comparable)))
    return Soak(args, folder, engine, drawer, Clients(port), Faults(args.seed, folder / "disk"), frozenset(sample))


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--requests", type=int, default=20_000, help="jobs, each of one request or several; default: %(default)s")
    add("--clients", type=int, default=40, help="who ask at once; default: %(default)s")
    add("--compare", type=int, default=600, help="most jobs that are asked for again, alone; default: %(default)s")
    add("--seed", type=int, default=0, help="of jobs and faults; default: %(default)s")
    add("--engine", type=Path, help="an engine of pico; default: one is built")
    add("--out", type=Path, default=Path("out/soak"), help="without suffix; default: %(default)s")
    add("--keep", type=Path, help="a new folder for engine, logs and files of the tier; default: a temporary one")
    add("--plant", type=Path, help="a file of Python that the crowded servers run first, to see the soak find a fault")
    args = parser.parse_args(words)
    if args.requests < 100:
        parser.error(
            f"argument --requests: must be at least 100, so that each life has its faults, got {args.requests}"
        )
    return args


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Runs a soak and returns its report, whose "wrong" is empty if everything holds."""
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(temporary) if args.keep is None else args.keep.resolve()
        folder.mkdir(parents=True, exist_ok=args.keep is None)
        made = made_soak(args, folder)
        asyncio.run(made.run())
        return made.report()


def main() -> None:
    args = options()
    report = soak(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=2))
    page = summary(report)
    args.out.with_suffix(".md").write_text(page)
    print("\n" + page)
    sys.exit(1 if report["wrong"] else 0)


if __name__ == "__main__":
    main()
