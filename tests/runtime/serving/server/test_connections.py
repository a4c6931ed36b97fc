"""Connections without a server: who has a place, how a request is framed, which hosts are known, what is left of
descriptors."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

import pytest

from tensorwright.errors import ClientShareError, InvalidOptionError, InvalidRequestError
from tensorwright.runtime.serving.server import acceptor, connections
from tensorwright.runtime.serving.server.acceptor import RETRY_SECONDS, Acceptor, SlowLog
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.connections import RESERVE, Connections, Place
from tensorwright.runtime.serving.server.framing import (
    FREE_CHUNKS,
    MAX_EXTRA,
    MAX_HEAD,
    MIN_CHUNK,
    Framing,
    FramingError,
)
from tensorwright.runtime.serving.server.hosts import HostGuard
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.shares import Shares


class Crowd:
    """A table, and who was closed, by the name that each got here."""

    def __init__(self, most: int, per_address: int | None = None):
        self.table = Connections(most, per_address)
        self.closed: list[str] = []

    def enter(self, name: str, address: str = "a") -> Place:
        return self.table.enter(address, lambda: self.closed.append(name))


def test_places_are_for_those_that_ask_and_one_more_is_turned_away() -> None:
    crowd = Crowd(most=1)
    first, second = crowd.enter("first"), crowd.enter("second")
    assert crowd.table.begin(first, probe=False) is None
    refusal = crowd.table.begin(second, probe=False)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.headers["connection"]) == (503, "too_many_connections", "close")
    assert crowd.table.begin(crowd.enter("probe"), probe=True) is None
    crowd.table.end(first)
    crowd.table.end(second)
    assert crowd.table.begin(second, probe=False) is None
    assert (crowd.table.served, crowd.table.open, crowd.closed) == (1, 3, [])


def test_a_newcomer_takes_the_oldest_place_of_whoever_has_most_that_wait() -> None:
    crowd = Crowd(most=2)
    polite = crowd.enter("polite", "b")
    served = [crowd.enter(f"served {number}") for number in range(2)]
    assert [crowd.table.begin(place, probe=False) for place in served] == [None, None]
    waiting = [crowd.enter(f"waiting {number}") for number in range(RESERVE - 1)]
    assert crowd.table.open == 2 + RESERVE
    crowd.table.begin(waiting[0], probe=True)
    crowd.table.end(waiting[0])  # so it waits for a shorter time than the others
    for number in range(1, RESERVE - 1):
        crowd.enter("new", f"c{number}")
        assert crowd.closed[-1] == f"waiting {number}"
    assert polite in crowd.table._all
    assert crowd.table.closed["gave_its_place"] == len(crowd.closed) == RESERVE - 2


def test_where_none_waits_the_oldest_probe_goes_and_then_nobody() -> None:
    crowd = Crowd(most=1)
    places = [crowd.enter(str(number)) for number in range(1 + RESERVE)]
    assert [crowd.table.begin(place, probe=number > 0) for number, place in enumerate(places)] == [None] * len(places)
    crowd.enter("new")
    assert crowd.closed == ["1"]
    alone = Crowd(most=1)
    assert alone.table.begin(alone.enter("it"), probe=False) is None
    assert not alone.table.give_up_one()


def test_an_address_has_places_of_its_own() -> None:
    crowd = Crowd(most=99, per_address=1)
    mine, other = crowd.enter("mine"), crowd.enter("other", "b")
    assert crowd.table.begin(mine, probe=False) is None
    assert crowd.table.begin(other, probe=False) is None
    more = crowd.enter("more")
    refusal = crowd.table.begin(more, probe=False)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "too_many_connections")
    for number in range(RESERVE):
        crowd.enter(f"idle {number}")
    assert crowd.closed == ["idle 0"]
    assert crowd.table.open == 1 + RESERVE + 1


def test_who_leaves_twice_is_counted_once() -> None:
    crowd = Crowd(most=1)
    place = crowd.enter("it")
    crowd.table.begin(place, probe=False)
    crowd.table.leave(place)
    crowd.table.leave(place)
    crowd.table.end(place)
    assert (crowd.table.open, crowd.table.served) == (0, 0)


HOST = (b"host", b"a")


@pytest.mark.parametrize(
    ("version", "headers", "status"),
    [
        ("1.1", [HOST], None),
        ("1.0", [], None),
        ("1.1", [], 400),
        ("1.1", [HOST, HOST], 400),
        ("2.0", [HOST], 505),
        ("1.1", [HOST, (b"transfer-encoding", b"Chunked")], None),
        ("1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], 400),
        ("1.1", [HOST, (b"transfer-encoding", b"identity")], 400),
        ("1.0", [HOST, (b"transfer-encoding", b"chunked")], 400),
        ("1.1", [HOST, (b"transfer-encoding", b"chunked"), (b"content-length", b"3")], 400),
    ],
)
def test_heads(version: str, headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    framing = Framing()
    if status is None:
        framing.end_head(version, headers)
        assert not framing.in_head
        return
    with pytest.raises(FramingError) as caught:
        framing.end_head(version, headers)
    assert caught.value.answer.status == status


def test_chunks_must_have_a_size_on_average() -> None:
    framing = Framing()
    framing.end_head("1.1", [HOST])
    for _ in range(FREE_CHUNKS):
        framing.count_chunk()
        framing.count_content(1)
    with pytest.raises(FramingError, match=f"must have {MIN_CHUNK} bytes on average"):
        framing.count_chunk()
    framing.begin()
    framing.end_head("1.1", [HOST])
    for _ in range(3 * FREE_CHUNKS):
        framing.count_chunk()
        framing.count_wire(MIN_CHUNK + 8)
        framing.count_content(MIN_CHUNK)


def test_what_is_not_content_is_bounded() -> None:
    framing = Framing()
    framing.count_wire(MAX_HEAD)
    with pytest.raises(FramingError) as caught:
        framing.count_wire(1)
    assert caught.value.answer.status == 431
    framing.end_head("1.1", [HOST])
    framing.count_content(1 << 20)
    framing.count_wire((1 << 20) + MAX_EXTRA)
    with pytest.raises(FramingError, match="extensions of chunks and the trailers"):
        framing.count_wire(1)


@pytest.mark.parametrize(
    ("allowed", "local", "host", "admitted"),
    [
        ((), True, "localhost", True),
        ((), True, "LOCALHOST:8000", True),
        ((), True, "localhost.", True),
        ((), True, "127.0.0.1:80", True),
        ((), True, "127.8.9.1", True),
        ((), True, "[::1]", True),
        ((), True, "[0:0::1]:8000", True),
        ((), True, "evil.example", False),
        ((), True, "localhost.evil.example", False),
        ((), True, "127.0.0.1.evil.example", False),
        ((), True, "127.0.0.1:80:90", False),
        ((), True, "localhost:x", False),
        ((), True, "localhost evil.example", False),
        ((), True, "10.0.0.1", False),
        ((), True, "", False),
        (("mine.example",), True, "Mine.example:1", True),
        (("mine.example",), True, "localhost", True),
        (("mine.example",), False, "localhost", False),
        (("::2",), False, "[::2]:80", True),
        (("[::2]",), False, "[::2]", True),
    ],
)
def test_hosts(allowed: tuple[str, ...], local: bool, host: str, admitted: bool) -> None:
    ServerOptions(allowed_hosts=allowed)
    seen: list[str] = []

    async def app(scope: object, receive: object, send: object) -> None:
        seen.append("app")

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            seen.append(str(message["status"]))

    scope = {"type": "http", "path": "/v1/models", "headers": [(b"host", host.encode())]}
    asyncio.run(HostGuard(app, allowed, local)(scope, None, send))  # type: ignore[arg-type]
    assert seen == (["app"] if admitted else ["421"])


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a:80", "[::1]:80", "a/"])
def test_hosts_that_are_none_cannot_be_allowed(host: str) -> None:
    with pytest.raises(InvalidOptionError, match="allowed_hosts must be"):
        ServerOptions(allowed_hosts=(host,))


def scope_of(address: str, key: int | None = None) -> dict[str, object]:
    return {"client": (address, 1), "state": {} if key is None else {"key": key}}


def test_a_client_has_its_share_and_no_more() -> None:
    shares = Shares(per_key=4, per_address=None)
    first = shares.open(scope_of("a", 1))
    first.grow(3)
    second = shares.open(scope_of("b", 1))
    with pytest.raises(ClientShareError, match="your key has 4 requests and completions under way, of 4"):
        shares.open(scope_of("a", 1))
    with pytest.raises(ClientShareError):
        second.grow(2)
    with pytest.raises(InvalidRequestError, match="this request asks for 5"):
        second.grow(5)
    assert dict(shares.of_keys()) == {1: 4}
    shares.open(scope_of("a", 2)).grow(4)
    first.close()
    second.grow(4)
    second.close()
    second.close()
    assert dict(shares.of_keys()) == {2: 4}


def test_so_has_an_address() -> None:
    shares = Shares(per_key=None, per_address=1)
    share = shares.open(scope_of("a"))
    shares.open(scope_of("b", 1))
    with pytest.raises(ClientShareError, match="your address"):
        shares.open(scope_of("a", 1))
    share.close()
    shares.open(scope_of("a", 1))
    assert dict(shares.of_keys()) == {1: 2}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("not an address", "another", False),
    ],
)
def test_what_counts_as_one_client(one: str, other: str, same: bool) -> None:
    clients = [client_of({**scope_of(address), "headers": []}) for address in (one, other)]
    assert (clients[0] == clients[1]) is same
    shares = Shares(per_key=None, per_address=1)
    shares.open(scope_of(one))
    if not same:
        shares.open(scope_of(other))
        return
    with pytest.raises(ClientShareError):
        shares.open(scope_of(other))


def test_only_a_key_that_was_checked_makes_a_client() -> None:
    """Without keys, and at /metrics, anybody may send any header."""
    headers = [[(b"authorization", b"Bearer " + key)] for key in (b"a", b"b")]
    assert len({client_of({**scope_of("a"), "headers": header}) for header in headers}) == 1
    assert len({client_of({**scope_of("a", key), "headers": headers[0]}) for key in (1, 2)}) == 2
    assert client_of({**scope_of("a", 1), "headers": []}) == client_of({**scope_of("b", 1), "headers": []})


def test_a_warning_that_comes_often_is_written_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = SlowLog(logging.getLogger("slow"), 10, lambda: now[0])
    for _ in range(1000):
        log.warn("again", n=1)
    now[0] = 10
    log.warn("again")
    written = [record.facts for record in caplog.records if record.name == "slow"]  # type: ignore[attr-defined]
    assert written == [{"n": 1}, {"left_out": 999}]


@pytest.mark.parametrize(
    ("limits", "room", "then"),
    [
        ((2000, 2000), 1040, (2000, 2000)),
        ((100, 5000), 1040, (1040 + 32 + 10, 5000)),
        ((100, 500), 500 - 32 - 10, (500, 500)),
        ((100, -1), 1040, (1040 + 32 + 10, -1)),
        ((-1, -1), 1040, (-1, -1)),
        ((58, 58), None, (58, 58)),
    ],
)
def test_sockets_are_as_many_as_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], room: int | None, then: tuple[int, int]
) -> None:
    now = [limits]
    monkeypatch.setattr(connections.resource, "getrlimit", lambda which: now[0])
    monkeypatch.setattr(connections.resource, "setrlimit", lambda which, limits: now.__setitem__(0, limits))
    monkeypatch.setattr(connections, "_open_files", lambda: 10)
    if room is None:
        with pytest.raises(InvalidOptionError, match="raise its limit"):
            connections.allow_sockets(1040, least=17)
    else:
        assert connections.allow_sockets(1040, least=17) == room
    assert now[0] == then


class Door:
    """A listening socket and a loop whose selector, both fail as often as they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Connections):
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.readers: dict[int, Callable[[], None]] = {}
        self.accept_error: OSError | None = None
        self.watch_error: OSError | None = None
        self.accepted = 0
        self.clients: list[socket.socket] = []
        self.leaves = False  # whether clients close at once
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "add_reader", self.add_reader)
        monkeypatch.setattr(loop, "remove_reader", lambda number: self.readers.pop(number, None))
        monkeypatch.setattr(loop, "call_later", lambda seconds, then: self.later.append((seconds, then)))
        monkeypatch.setattr(Acceptor, "_begin", self.begin)
        self.acceptor = Acceptor(self, table, lambda place: asyncio.Protocol())  # type: ignore[arg-type]
        self.acceptor.start()

    def add_reader(self, number: int, then: Callable[[], None]) -> None:
        if number != self.fileno() and self.watch_error is not None:
            raise self.watch_error
        self.readers[number] = then

    async def begin(self, *arguments: object) -> None:
        await asyncio.sleep(0)

    def fileno(self) -> int:
        return -7

    def listen(self, backlog: int) -> None: ...

    def setblocking(self, flag: bool) -> None: ...

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.accept_error is not None:
            raise self.accept_error
        self.accepted += 1
        ours, theirs = socket.socketpair()
        self.clients.append(theirs)
        if self.leaves:
            theirs.close()
        return ours, ("a", self.accepted)

    @property
    def listens(self) -> bool:
        return self.fileno() in self.readers


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
@pytest.mark.parametrize("where", ["accept_error", "watch_error"])
def test_without_descriptors_it_pauses_gives_one_up_and_writes_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, where: str
) -> None:
    async def run() -> None:
        table, closed = Connections(1000), list[int]()
        for place in range(200):
            table.enter("a", lambda place=place: closed.append(place))  # type: ignore[misc]
        door = Door(monkeypatch, table)
        setattr(door, where, OSError(number, "none left"))
        for turn in range(100):
            assert door.listens
            door.readers[door.fileno()]()
            assert not door.listens
            assert len(door.later) == len(closed) == turn + 1
            seconds, listen = door.later[-1]
            assert seconds == RETRY_SECONDS
            listen()
        setattr(door, where, None)
        before = door.accepted
        door.readers[door.fileno()]()
        assert door.accepted == before + acceptor.AT_ONCE
        assert door.listens

    asyncio.run(run())
    written = [record.message for record in caplog.records if record.name == "tensorwright.server"]
    assert written == ["no connection can be taken"]


def test_a_connection_that_failed_on_its_way_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        door = Door(monkeypatch, Connections(1))
        door.accept_error = OSError(errno.ECONNABORTED, "gone")
        door.readers[door.fileno()]()
        assert door.listens
        door.acceptor.close()
        assert not door.listens

    asyncio.run(run())


def test_who_closed_already_and_said_nothing_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        table = Connections(1000)
        door = Door(monkeypatch, table)
        door.leaves = True
        door.readers[door.fileno()]()
        assert (door.accepted, table.open) == (acceptor.AT_ONCE, 0)
        door.leaves = False
        door.readers[door.fileno()]()
        assert (door.accepted, table.open) == (2 * acceptor.AT_ONCE, acceptor.AT_ONCE)

    asyncio.run(run())
