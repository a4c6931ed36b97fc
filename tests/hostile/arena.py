"""A server under attack, honest clients beside it, and the bounds that hold for them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile.attacks import SOUND
from hostile.clients import Attacker, Outcome, Target, timed, together
from hostile.observing import Figures, Growth, Watch, figures, watch
from hostile.server import attacked
from support.served import Served

Log = Callable[[Outcome, list[str]], str]

LONGEST_GAP = 0.25  # seconds that a stream or /health may stand still beyond what it does without the attack
NOISE = 3  # times the longest gap of a quiet run, and of the machine itself in the same time
NEWCOMER = 3.0  # seconds that a request of one token may wait, where a row is about that
MOST_MEMORY = 64 << 20  # of one attack
MOST_LEFT = 96 << 20  # of all of them: allocators keep 47 to 67 MB, more on a busy machine, where more wait at once
LIMIT = 120.0  # seconds for one attack; one that takes longer is cut off, and its server with it
HOPELESS = 4.0  # seconds; a gap over it is not tried again, for no noise of a machine is that long and unseen
TRIES = 3
SETTLE = 30.0  # seconds until threads and descriptors are those of before, at most
AFTERMATH = 0.02
LARGE = 1_000_000  # bytes of a body that threads of the server read


@dataclass(repr=False)
class Arena:
    """Starts its server when it is first used, and another one after an attack that ended it."""

    engine: Path
    folder: Path
    options: tuple[str, ...] = ()
    keys: bool = True
    files: int | None = None
    tries: int = TRIES
    settle: float = SETTLE
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _parts: tuple[Served, Target, Watch] | None = None
    _quiet: dict[str, dict[str, Any]] = field(default_factory=dict)
    _calm: Figures = field(default_factory=Figures)

    def parts(self) -> tuple[Served, Target, Watch]:
        if self._parts is None:
            with contextlib.ExitStack() as starting:  # a server that does not answer as it must is stopped
                served, target = starting.enter_context(
                    attacked(self.engine, self.folder, *self.options, keys=self.keys, files=self.files)
                )
                warm_up(target)
                self._calm = figures(served.process.pid)
                watcher = starting.enter_context(watch(target))
                self._quiet = watcher.quiet(1.5)
                watcher.rest()
                self._stack = starting.pop_all()
            self._parts = served, target, watcher
        return self._parts

    def close(self) -> None:
        self._parts = None
        self._stack.close()
        self._stack = contextlib.ExitStack()

    def attack(
        self, ready: Callable[[int], Attacker], size: int, newcomers: bool = False, log: Log | None = None
    ) -> list[str]:
        """What is wrong, after at most three tries: what one of them does without a fault was the machine's noise.
        Each has another size, so that none finds what the one before has left in a cache."""
        faults: list[str] = []
        for number in range(self.tries):
            if number:
                print(f"another try: {'; '.join(faults)}")  # pytest shows it if that fails too
                self.look_at_the_machine()
            faults, final = self._try([ready(size - number)], newcomers, log)
            if not faults or final:
                break
        return faults

    def look_at_the_machine(self) -> None:
        """Measures anew what stands still without an attack."""
        watched = self.parts()[2]
        with watched.at_work():
            self._quiet = watched.quiet(1.0)

    def attack_all(self, attacks: Mapping[str, Callable[[int], Attacker]], size: int) -> list[str]:
        """What is wrong with any of several attacks, by its name. They come one after the other, while the honest
        clients are at work once; where that is not without fault, each comes again by itself."""
        faults, _ = self._try([ready(size) for ready in attacks.values()], newcomers=False, log=None)
        if not faults:
            return []
        print(f"each by itself: {'; '.join(faults)}")
        return [f"{name}: {fault}" for name, ready in attacks.items() for fault in self.attack(ready, size - 1)]

    def _try(self, attackers: list[Attacker], newcomers: bool, log: Log | None) -> tuple[list[str], bool]:
        """(faults, whether no noise can explain them). log: is asked of the only attacker."""
        served, target, watched = self.parts()
        pid, written, grown = served.process.pid, served.log.stat().st_size, 0
        final: list[str] = []
        times: list[tuple[float, float]] = []
        before = lowest(pid)
        with watched.at_work(newcomers):
            for attacker in attackers:
                with Growth(pid) as growth:
                    begin = time.monotonic()
                    outcome = timed(attacker, target, LIMIT)
                    times.append((begin, time.monotonic() + AFTERMATH))
                grown = max(grown, growth.bytes)
                if outcome is None or set(outcome.answers) - set(SOUND):
                    break
                final += [outcome.finding] if outcome.finding else []
            time.sleep(AFTERMATH)
            reports = [watched.report(begin, end) for begin, end in times]
        if outcome is not None and any(not answer.isdigit() for answer in set(outcome.answers) - set(SOUND)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                served.process.wait(SETTLE)  # an answer that broke off may be the first sign of its end
        ended = served.process.poll()
        if outcome is None or ended is not None:
            self.close()
            return [f"not over after {LIMIT:g} s" if outcome is None else f"the server ended, code {ended}"], True
        if unsound := set(outcome.answers) - set(SOUND):
            final += [f"answered {answer}: {outcome.text[:120]}" for answer in unsound]
            final += [outcome.finding] if outcome.finding else []
        if log is not None:
            final += _said(log, served, written, outcome)
        faults = [fault for report in reports for fault in self._slow(report, newcomers)]
        if grown > MOST_MEMORY:
            faults.append(f"memory grew by {grown >> 20} MB, at most {MOST_MEMORY >> 20} may be")
        faults += left(pid, before, self.settle)
        hopeless = max(report[probe]["gap"] for report in reports for probe in ("victim", "health")) > HOPELESS
        return final + faults, bool(final) or hopeless

    def _slow(self, report: dict[str, dict[str, Any]], newcomers: bool) -> list[str]:
        faults = []
        for probe, most in (("victim", LONGEST_GAP), ("health", LONGEST_GAP), *([("newcomer", NEWCOMER)] * newcomers)):
            quiet, machine = self._quiet[probe]["gap"], report["machine"]["gap"]
            bound, gap = most + NOISE * (quiet + machine), report[probe]["gap"]
            if gap > bound:
                faults.append(
                    f"{probe} stood still for {gap:.2f} s, at most {bound:.2f} may be "
                    f"(quiet {quiet:.2f}, the machine {machine:.2f})"
                )
        if broken := report["victim"]["refusals"]:
            faults.append(f"an honest stream broke: {broken}")
        return faults

    def leftovers(self) -> list[str]:
        """What is not as it was, once nobody asks for anything."""
        served, target, watched = self.parts()
        grown = figures(served.process.pid).memory - self._calm.memory
        faults = [f"memory stays {grown >> 20} MB higher"] if grown > MOST_LEFT else []
        watched.close()
        names = ("requests_running", "requests_waiting", "kv_blocks_used")
        held: dict[str, float] = {}
        limit = time.monotonic() + 2 * SETTLE
        while time.monotonic() < limit:
            held = {name: value for name in names if (value := _metric(target, name))}
            if (sockets := figures(served.process.pid).sockets - self._calm.sockets) > 0:
                held["sockets beyond those of before"] = sockets
            if not held:
                break
            time.sleep(0.05)
        return faults + [f"{name}: {value:g}" for name, value in held.items()]


def _said(log: Log, served: Served, written: int, outcome: Outcome) -> list[str]:
    time.sleep(0.3)  # so that lines come that should not
    limit = time.monotonic() + SETTLE
    while True:
        with served.log.open(errors="replace") as lines:
            lines.seek(written)
            wrong = log(outcome, lines.readlines())
        if not wrong or time.monotonic() > limit:
            return [wrong] if wrong else []
        time.sleep(0.05)


def _metric(target: Target, name: str) -> float:
    _, text = target.ask("GET", "/metrics")
    lines = [line for line in text.splitlines() if line.startswith(f"tensorwright_{name}{{")]
    if not lines:
        raise RuntimeError(f"/metrics has no tensorwright_{name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def warm_up(target: Target) -> None:
    """What is read or started once, at the first request that needs it."""
    target.complete(prompt="import os", max_tokens=4, guided_regex="[a-z]{4}")
    target.complete(prompt=["a", "b"], max_tokens=2, stop=["zz"], bad_words=["zz"], logit_bias={"5": 1}, logprobs=1)
    message = b'{"model":"pico","max_tokens":2,"messages":[{"role":"user","content":"a"}]}'
    for path, body in (
        ("/v1/chat/completions", message),
        ("/v1/responses", b'{"model":"pico","max_output_tokens":2,"input":"a"}'),
        ("/tokenize", b'{"model":"pico","prompt":"a","return_token_strs":true}'),
        ("/detokenize", b'{"model":"pico","tokens":[5]}'),
    ):
        status, text = target.post(path, body)
        if status != "200":
            raise RuntimeError(f"{path} answered {status}: {text[:200]}")
    target.ask("GET", "/v1/cache_events")
    large = b'{"temperature":"' + b"9" * LARGE + b'"}'
    together([lambda: target.ask("GET", "/metrics"), lambda: target.post("/v1/completions", large)] * 3)


def lowest(pid: int) -> Figures:
    """Fewest threads and descriptors of some looks."""
    looks = []
    for _ in range(3):
        looks.append(figures(pid))
        time.sleep(0.003)
    fewest = min(look.threads for look in looks), min(look.descriptors for look in looks)
    return Figures(looks[0].memory, looks[0].peak, *fewest)


def left(pid: int, before: Figures, settle: float) -> list[str]:
    """Threads and descriptors over those of before, once they had time to go. Sockets are not among them, for honest
    clients come and go; see `leftovers`."""
    least = figures(pid)
    limit = time.monotonic() + settle
    while time.monotonic() < limit and (least.threads > before.threads or least.descriptors > before.descriptors):
        time.sleep(0.01)
        now = figures(pid)
        least = Figures(0, 0, min(least.threads, now.threads), min(least.descriptors, now.descriptors))
    return [
        f"{now - then} {name} are left"
        for name, now, then in (
            ("threads", least.threads, before.threads),
            ("descriptors", least.descriptors, before.descriptors),
        )
        if now > then
    ]


@contextlib.contextmanager
def arena(engine: Path, folder: Path, *options: str, keys: bool = True, files: int | None = None) -> Iterator[Arena]:
    opened = Arena(engine, folder, options, keys, files)
    try:
        yield opened
    finally:
        opened.close()
