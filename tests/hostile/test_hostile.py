"""One hostile client beside honest ones: whatever it sends, nobody else waits for it, and nothing of it stays.

Each field of each endpoint at its largest and oddest, each attack of the review. The bounds, and how they are kept
apart from a machine's noise, stand in arena.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostile.arena import LIMIT, Arena, arena
from hostile.attacks import ATTACKS, Attack
from hostile.clients import Attacker, Outcome, Target, posts, timed
from hostile.declared import declared, unshared
from hostile.fields import BODIES, DELETED, PATHS, body_with
from hostile.local import LOCAL
from hostile.server import attacked_by
from hostile.values import Value
from support.waiting import wait_until

LARGEST = 3_900_000  # bytes of a field's value: a body may have 4 MiB
LONG_PATH = 60_000  # bytes of a parameter in a path
NARROW = ("--max-connections", "20", "--log-prompts", "--max-batch-size", "4")
PLANTED_FAULTS = {
    "sleep": "health stood still",
    "memory": "memory grew by",
    "thread": "1 threads are left",
    "descriptor": "1 descriptors are left",
    "fault": "answered 500",
    "exit": "the server ended, code 9",
}
PLANTED = Path(__file__).with_name("planted")
ABOUT_NEWCOMERS = ("slow-compiles", "priority")

TOGETHER = [attack for attack in ATTACKS if not attack.alone]
APART = [attack for attack in ATTACKS if attack.alone and attack.watched]
AT_ONCE = 16  # attacks while the honest clients are at work once
VALUES = [
    (endpoint, [*rows[start : start + AT_ONCE]])
    for endpoint, table in BODIES.items()
    if (rows := [(path, number) for path, values in table.items() for number in range(len(values))])
    for start in range(0, len(rows), AT_ONCE)
]
"""Some of an endpoint's values, each a field and a place among those it is attacked with."""


@pytest.fixture(scope="module")
def roomy(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A server as it comes."""
    with arena(pico_engine, tmp_path_factory.mktemp("roomy")) as opened:
        yield opened


@pytest.fixture(scope="module")
def narrow(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Few connections, a small batch, bodies in the log, no keys."""
    with arena(pico_engine, tmp_path_factory.mktemp("narrow"), *NARROW, keys=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def faulty(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A server with faults for whoever asks for them; see planted/sitecustomize.py."""
    with (
        pytest.MonkeyPatch.context() as patch,
        arena(pico_engine, tmp_path_factory.mktemp("faulty")) as opened,
    ):
        patch.setenv("PYTHONPATH", str(PLANTED), prepend=os.pathsep)
        opened.settle = 0.5
        yield opened


def label(attack: Attack) -> str:
    return f"{attack.row}-{attack.name}"


def check(faults: list[str]) -> None:
    if faults:
        pytest.fail("; ".join(faults), pytrace=False)


def test_every_field_of_every_endpoint_has_a_row(roomy: Arena) -> None:
    _, target, _ = roomy.parts()
    status, text = target.ask("GET", "/openapi.json")
    assert status == "200"
    rows = {endpoint: set(table) for endpoint, table in BODIES.items()}
    rows |= {endpoint: set(names) for endpoint, names in PATHS.items()}
    found = declared(json.loads(text))
    assert {endpoint: set(fields) for endpoint, fields in found.items()} == rows
    assert unshared(found) == []


@pytest.mark.parametrize("attack", TOGETHER, ids=label)
def test_an_attack_holds_nobody_up(roomy: Arena, attack: Attack) -> None:
    size = attack.size if attack.short is None else attack.short
    check(roomy.attack(attack.ready, size, attack.name in ABOUT_NEWCOMERS, attack.log))


@pytest.mark.parametrize(("endpoint", "rows"), VALUES, ids=lambda part: part if isinstance(part, str) else part[0][0])
def test_fields_hold_nobody_up(roomy: Arena, endpoint: str, rows: list[tuple[str, int]]) -> None:
    """The next few values from this field on."""
    attacks = {f"{path} {number}": in_field(endpoint, path, BODIES[endpoint][path][number]) for path, number in rows}
    check(roomy.attack_all(attacks, LARGEST))


def in_field(endpoint: str, path: str, value: Value) -> Callable[[int], Attacker]:
    return lambda size: posts(endpoint, [body_with(endpoint, path, value(size))])


@pytest.mark.parametrize("endpoint", PATHS)
def test_an_endpoint_without_a_body_holds_nobody_up(roomy: Arena, endpoint: str) -> None:
    """With a body all the same, and with its parameters at their longest."""

    def ready(size: int) -> Attacker:
        def attack(target: Target) -> Outcome:
            path = re.sub(r"\{\w+\}", "a" * LONG_PATH, endpoint)
            method = "DELETE" if endpoint in DELETED else "GET"
            long, _ = target.ask(method, path)
            odd, text = target.ask(method, path.replace("a" * LONG_PATH, "%ff%00"), b"[" * size)
            cut = (
                long in ("RemoteDisconnected", "ConnectionResetError") and path != endpoint
            )  # longer than HTTP's parser takes
            return Outcome([odd, "refused" if cut else long], text)

        return attack

    check(roomy.attack(ready, LARGEST))


def asking(planted: str = "") -> Callable[[int], Attacker]:
    """Asks for a planted fault, or for none."""
    headers = {"x-planted": planted} if planted else {}
    return lambda size: lambda target: Outcome([target.ask("GET", "/v1/models", **headers)[0]])


@pytest.mark.parametrize("planted", PLANTED_FAULTS)
def test_a_planted_fault_is_seen(faulty: Arena, planted: str) -> None:
    """The gate itself must be able to fail, and one fault shows that it does after another try too. While the machine
    itself stands still for as long as the fault does, nobody can see it."""
    faulty.tries = 2 if planted == "sleep" else 1

    def seen() -> bool:
        found = PLANTED_FAULTS[planted] in "; ".join(faulty.attack(asking(planted), 1))
        if not found:
            faulty.look_at_the_machine()
        return found

    wait_until(seen, PLANTED_FAULTS[planted])


def test_of_several_attacks_the_faulty_one_is_named(faulty: Arena) -> None:
    faulty.tries = 1
    attacks = {"sound": asking(), "planted": asking("thread"), "later": asking()}
    assert faulty.attack_all(attacks, 2) == ["planted: 1 threads are left"]


def test_nothing_is_left(roomy: Arena) -> None:
    """After all of the above: no request, no block, no memory."""
    check(roomy.leftovers())


@pytest.mark.parametrize("attack", [each for each in APART if each.files is not None], ids=label)
def test_running_out_of_descriptors_holds_nobody_up(pico_engine: Path, tmp_path: Path, attack: Attack) -> None:
    with arena(pico_engine, tmp_path, files=attack.files) as opened:
        check(opened.attack(attack.ready, attack.short or attack.size, log=attack.log))


@pytest.mark.parametrize("attack", LOCAL)
def test_an_attack_on_the_files_of_an_engine_is_refused_or_without_effect(
    pico_engine: Path, tmp_path: Path, attack: str
) -> None:
    found = LOCAL[attack](pico_engine, tmp_path)
    assert (found.finding, found.exit) == ("", None)


@pytest.mark.parametrize("attack", [each for each in ATTACKS if not each.watched], ids=label)
def test_the_only_client_is_served(pico_engine: Path, tmp_path: Path, attack: Attack) -> None:
    with attacked_by(attack, pico_engine, tmp_path) as (_, target):
        outcome = timed(attack.ready(attack.size), target, LIMIT)
    assert outcome is not None
    assert not outcome.finding


@pytest.mark.parametrize("attack", [each for each in APART if each.files is None], ids=label)
def test_an_attack_on_a_small_server_holds_nobody_up(narrow: Arena, attack: Attack) -> None:
    """These come last, for the server and its honest clients stay until the end of this file."""
    size = attack.size if attack.short is None else attack.short
    check(narrow.attack(attack.ready, size, attack.name in ABOUT_NEWCOMERS, attack.log))
