"""Prefixes that one engine sends and another takes; and all that can go wrong between them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.cut_wire import wire
from support.toy_engine import make_toy, write_toy_engine
from support.toy_pair import BLOCKS, PROMPT, TOKEN, Pair
from support.waiting import wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineStoppedError, InvalidOptionError, TransferError
from tensorwright.runtime.transfer.channel import Channel
from tensorwright.runtime.transfer.frames import Kind, to_json
from tensorwright.runtime.transfer.handshake import enter
from tensorwright.runtime.transfer.receiver import WINDOW, fetch_prefix
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.shared_ring import SharedRing
from tensorwright.runtime.transfer.store import PrefixStore
from tensorwright.runtime.transfer.tickets import Promise


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chunks", ["one_chunk", "small_chunks"])
def test_a_prefix_that_came_is_used(fresh: Pair, shared: bool, chunks: str, request: pytest.FixtureRequest) -> None:
    if chunks == "small_chunks":
        request.getfixturevalue(chunks)
    fetched = fresh.fetch(fresh.peer(shared=shared))
    assert fetched.tokens == BLOCKS * 32
    assert fetched.content == BLOCKS * fresh.takes.engine.kv_block_bytes
    assert fetched.shared == shared
    assert fresh.known() == BLOCKS
    before = fresh.decode.get_stats()["prefix_hit_tokens"]
    fresh.check_answer()
    assert fresh.decode.get_stats()["prefix_hit_tokens"] == before + BLOCKS * 32
    again = fresh.fetch(fresh.peer(shared=shared))
    assert (again.tokens, again.content) == (BLOCKS * 32, 0)


def test_a_prompt_that_nobody_computed_has_no_prefix(fresh: Pair) -> None:
    ticket = fresh.server.tickets.issue(Promise(fresh.sends, np.arange(100, dtype=np.int32), ""))
    assert fresh.fetch(ticket=ticket).tokens == 0
    ticket = fresh.server.tickets.issue(Promise(fresh.sends, np.asarray(PROMPT, np.int32), "another salt"))
    assert fresh.fetch(ticket=ticket).tokens == 0


def test_prefixes_come_while_requests_run(fresh: Pair, small_chunks: None) -> None:
    running = fresh.decode.generate_async(
        {"prompt_token_ids": [3, 4, 5]}, SamplingParams(max_tokens=400, ignore_eos=True, seed=1, detokenize=False)
    )
    assert fresh.fetch().tokens == BLOCKS * 32
    fresh.check_answer()
    running.result()


def strike(fresh: Pair, fault: str, **at: int) -> None:
    """Fetches over a wire with a fault: nothing may be remembered, and the answer must be computed. A length that was
    altered makes an end wait for bytes that nobody sends, until it gives the other up."""
    with wire(fresh.server.port, fault, **at) as faulty, pytest.raises(TransferError):
        fresh.fetch(fresh.peer(faulty.port, idle=1))
    assert fresh.takes.imports() == 0
    assert fresh.known() == 0
    wait_until(lambda: fresh.server.open == 0)


def lengths(fresh: Pair) -> dict[str, int]:
    """How many bytes a transfer takes in each direction."""
    with wire(fresh.server.port, "cut") as sound:
        fresh.fetch(fresh.peer(sound.port))
        wait_until(lambda: fresh.server.open == 0)
        passed = dict(sound.passed)
    fresh.forget()
    return passed


@pytest.mark.parametrize("fault", ["cut", "alter"])
def test_a_fault_at_any_stage_leaves_nothing_behind(fresh: Pair, small_chunks: None, fault: str) -> None:
    """In every frame of both directions: in the greeting, the offer, in the midst of blocks, and before the end."""
    whole = lengths(fresh)
    # The last frame of a client, a credit, is 20 bytes; the server's end does not depend on the bytes that end it.
    for direction in ("server", "client"):
        last = whole[direction] - (20 if direction == "client" else 0)
        for place in sorted({*np.linspace(0, last - 1, 24).astype(int).tolist(), 1, 10, 30, 60, 70, 100, last - 10}):
            strike(fresh, fault, **{f"from_{direction}": place})
    fresh.check_answer()


def test_every_byte_of_a_block_is_checked(fresh: Pair) -> None:
    whole = lengths(fresh)
    for place in np.linspace(whole["server"] - BLOCKS * 16000, whole["server"] - 100, 12).astype(int).tolist():
        strike(fresh, "alter", from_server=place)
    fresh.check_answer()


@pytest.mark.parametrize("direction", ["server", "client"])
def test_a_peer_that_sends_nothing_more_is_given_up(fresh: Pair, small_chunks: None, direction: str) -> None:
    whole = lengths(fresh)
    for place in (0, 200, whole[direction] // 2):
        with (
            wire(fresh.server.port, "hold", **{f"from_{direction}": place}) as held,
            pytest.raises(TransferError, match="in time"),
        ):
            fresh.fetch(fresh.peer(held.port, idle=0.2))
        assert fresh.known() == 0
        wait_until(lambda: fresh.server.open == 0)
    fresh.check_answer()


def test_a_peer_that_only_listens_is_given_up(fresh: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(TransferError, match="in time"):
            fresh.fetch(fresh.peer(silent.getsockname()[1], idle=0.1))
        port = silent.getsockname()[1]
    with pytest.raises(TransferError, match="must send prefixes at"):
        fresh.fetch(fresh.peer(port))


def test_a_peer_that_trickles_is_given_up_at_the_deadline(fresh: Pair) -> None:
    """Each byte comes in time, and all of them do not."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        over = threading.Event()

        def trickle() -> None:
            connection, _ = slow.accept()
            with connection:
                while not over.wait(0.01):
                    try:
                        connection.sendall(b"T")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(TransferError):
            fresh.fetch(fresh.peer(slow.getsockname()[1], timeout=0.15))
        over.set()
        thread.join()


def test_a_slow_receiver_holds_a_window_and_no_more(fresh: Pair, small_chunks: None) -> None:
    """The sender reads no block of its cache before there is a credit for it."""
    reads: list[int] = []

    class Counting(PrefixStore):
        def read(self, tokens, salt, pieces, out):  # type: ignore[no-untyped-def]
            reads.append(len(pieces))
            super().read(tokens, salt, pieces, out)

    ticket = fresh.server.tickets.issue(Promise(Counting(fresh.prefill), np.asarray(PROMPT, np.int32), ""))
    with Channel(socket.create_connection(("127.0.0.1", fresh.server.port)), time.monotonic() + 60, 60) as channel:
        enter(channel, TOKEN)
        fields = {"ticket": ticket, "identity": fresh.takes.identity.as_fields(), "window": 3, "ring": None}
        channel.send(Kind.FETCH, to_json(fields))
        channel.receive(Kind.OFFER, max_data=1 << 20)
        wanted = np.asarray([(0, i) for i in range(BLOCKS)], "<i4").tobytes()
        channel.send(Kind.WANT, to_json({"state": False}), wanted)
        for taken in range(BLOCKS):
            wait_until(lambda taken=taken: len(reads) == min(BLOCKS, taken + 3))
            channel.receive(Kind.CHUNK, max_data=1 << 20)
            assert len(reads) == min(BLOCKS, taken + 3)
            channel.send(Kind.CREDIT)
        channel.receive(Kind.END)


class Peering:
    """A sender of the test's own, which speaks as it likes after the handshake."""

    def __init__(self, speak: Callable[[Channel], None]):
        from tensorwright.runtime.transfer.handshake import greet

        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

        def serve() -> None:
            connection, _ = self._server.accept()
            with Channel(connection, time.monotonic() + 60, 60) as channel:
                try:
                    greet(channel, TOKEN)
                    channel.receive(Kind.FETCH)
                    speak(channel)
                    channel.receive(Kind.ERROR)  # the peer says why it gives up
                except TransferError:
                    return

        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        self._server.close()


def offer(blocks: int, tokens: bytes, **fields: object) -> Callable[[Channel], None]:
    def speak(channel: Channel) -> None:
        channel.send(Kind.OFFER, to_json({"blocks": blocks, "state": False, "ring": False, **fields}), tokens)
        if channel.receive(Kind.WANT, Kind.ERROR, max_data=1 << 20).kind is Kind.WANT:
            channel.send(Kind.CHUNK, b"\x00" * 12, b"")

    return speak


TOKENS = np.asarray(PROMPT[:320], "<i4")
WRONG_OFFERS: dict[str, tuple[Callable[[Channel], None], str]] = {
    "too few tokens": (offer(10, TOKENS[:-1].tobytes()), "must come with 32 tokens each"),
    "negative": (offer(-1, b""), "must come with 32 tokens each"),
    "a bool for a number": (offer(True, TOKENS[:32].tobytes()), "must have blocks as int"),
    "no token": (offer(1, np.full(32, 300, "<i4").tobytes()), "of the engine's vocabulary"),
    "states of a model without": (offer(10, TOKENS.tobytes(), state=True), "recurrent layers"),
    "a ring that was not offered": (offer(10, TOKENS.tobytes(), ring=True), "only if it is offered"),
    "more than fits": (offer(64, np.zeros(64 * 32, "<i4").tobytes()), "below 2048"),
    "an empty chunk": (offer(10, TOKENS.tobytes()), "got 0 of them"),
    "another frame": (lambda channel: channel.send(Kind.END), "must send OFFER now, got END"),
    "no JSON": (lambda channel: channel.send(Kind.OFFER, b"{"), "is not JSON"),
    "a list": (lambda channel: channel.send(Kind.OFFER, b"[]"), "must be an object"),
    "too much": (
        lambda channel: channel.send(Kind.OFFER, to_json({"blocks": 0}), bytes(1 << 20)), "8192 of data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_OFFERS)
def test_what_no_engine_of_ours_says_is_refused(fresh: Pair, name: str) -> None:
    speak, message = WRONG_OFFERS[name]
    peering = Peering(speak)
    with pytest.raises(TransferError, match=message):
        fresh.fetch(fresh.peer(peering.port), ticket="0" * 32)
    peering.close()
    assert fresh.known() == 0


def test_blocks_of_other_tokens_are_refused_by_their_keys(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that confuses two prompts sends sound bytes under the keys of the other."""
    from tensorwright.runtime.transfer import sender

    real = sender.block_keys
    monkeypatch.setattr(sender, "block_keys", lambda tokens, *rest: real(tokens + 1, *rest))
    with pytest.raises(TransferError, match="its key says that it is not"):
        fresh.fetch()
    assert fresh.known() == 0


def test_another_engine_is_refused_by_name(fresh: Pair, tmp_path: Path) -> None:
    other = write_toy_engine(tmp_path / "other", make_toy(max_seq_len=2048, seed=3))
    with LLM(other, kv_cache_memory="2MiB", threads=1) as llm, pytest.raises(TransferError, match="differ in fing"):
        fetch_prefix(PrefixStore(llm), fresh.peer(), fresh.ticket(), "")
    fewer = write_toy_engine(tmp_path / "fewer", make_toy(max_seq_len=2048, block_size=64))
    with LLM(fewer, kv_cache_memory="2MiB", threads=1) as llm, pytest.raises(TransferError, match="must be the same"):
        fetch_prefix(PrefixStore(llm), fresh.peer(), fresh.ticket(), "")


def test_kernels_of_other_bits_are_refused(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh.takes, "identity", replace(fresh.takes.identity, kernels="0" * 64))
    with pytest.raises(TransferError, match="differ in kernels"):
        fresh.fetch()


def test_a_peer_without_the_token_gets_nothing(fresh: Pair) -> None:
    with pytest.raises(TransferError, match=r"closed the connection|broke"):
        fresh.fetch(replace(fresh.peer(), token="another-token-of-many"))
    impostor = TransferServer("another-token-of-many")
    with pytest.raises(TransferError, match=r"closed the connection|broke"):
        fresh.fetch(fresh.peer(impostor.port))
    impostor.close()


def test_a_ticket_is_good_once_and_for_a_while(fresh: Pair) -> None:
    from tensorwright.runtime.transfer import tickets

    ticket = fresh.ticket()
    fresh.fetch(ticket=ticket)
    with pytest.raises(TransferError, match="gave up: a ticket"):
        fresh.fetch(ticket=ticket)
    now = [0.0]
    open_tickets = tickets.Tickets(lambda: now[0])
    promise = Promise(fresh.sends, np.asarray(PROMPT, np.int32), "")
    first = open_tickets.issue(promise)
    now[0] = tickets.LIFETIME
    with pytest.raises(TransferError):
        open_tickets.redeem(first)
    for _ in range(tickets.MAX_TICKETS + 5):
        last = open_tickets.issue(promise)
    assert len(open_tickets) == tickets.MAX_TICKETS
    assert open_tickets.redeem(last) is promise


def test_connections_beyond_the_most_are_closed(fresh: Pair) -> None:
    server = TransferServer(TOKEN, most=2)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    wait_until(lambda: server.open == 2)
    with pytest.raises(TransferError):
        fresh.fetch(fresh.peer(server.port))
    for each in idle:
        each.close()
    wait_until(lambda: server.open == 0)
    server.close()


def test_a_server_that_closes_ends_its_transfers(fresh: Pair) -> None:
    server = TransferServer(TOKEN)
    waiting = socket.create_connection(("127.0.0.1", server.port))
    wait_until(lambda: server.open == 1)
    server.close()
    server.close()
    assert server.open == 0
    waiting.close()
    with pytest.raises(InvalidOptionError, match="transfers must listen"):
        TransferServer(TOKEN, port=fresh.server.port)


def test_an_engine_that_stopped_takes_and_sends_nothing(fresh: Pair, toy: Path) -> None:
    llm = LLM(toy, kv_cache_memory="2MiB", threads=1)
    store = PrefixStore(llm)
    ticket = fresh.server.tickets.issue(Promise(store, np.asarray(PROMPT, np.int32), ""))
    llm.shutdown()
    with pytest.raises(EngineStoppedError):
        fetch_prefix(store, fresh.peer(), fresh.ticket(), "")
    with pytest.raises(TransferError, match="sends no prefix now"):
        fresh.fetch(ticket=ticket)


def test_a_prefix_without_room_is_not_taken(fresh: Pair, toy: Path) -> None:
    with LLM(toy, kv_cache_memory="190KiB", threads=1, max_batch_size=1, max_num_tokens=32) as small:
        store = PrefixStore(small)
        with pytest.raises(TransferError, match="requests need the blocks"):
            fetch_prefix(store, fresh.peer(), fresh.ticket(), "")
        assert store.imports() == 0
        assert small.get_stats()["free_blocks"] == small.get_stats()["total_blocks"]


def test_engines_that_cannot_exchange_prefixes_are_refused(toy: Path) -> None:
    with (
        LLM(toy, kv_cache_memory="2MiB", threads=1, enable_prefix_caching=False) as llm,
        pytest.raises(InvalidOptionError, match="enable_prefix_caching"),
    ):
        PrefixStore(llm)


def test_a_model_whose_states_are_not_kept_is_refused(tmp_path: Path) -> None:
    engine = write_toy_engine(tmp_path / "states", states=(64, 128))
    with (
        LLM(engine, kv_cache_memory="2MiB", threads=1, state_snapshots=0, enable_prefix_caching=True) as llm,
        pytest.raises(InvalidOptionError, match="state_snapshots"),
    ):
        PrefixStore(llm)


@pytest.mark.parametrize("name", ["../etc/passwd", "tensorwright-", "tensorwright-" + "0" * 31, ""])
def test_a_ring_is_opened_by_no_other_name(name: str) -> None:
    with pytest.raises(TransferError, match="must have a name"):
        SharedRing.open(name, 1, 4096)


def test_a_ring_is_of_the_size_that_was_said() -> None:
    ring = SharedRing.make(WINDOW, 4096)
    assert ring.name is not None
    with pytest.raises(TransferError, match="of the size"):
        SharedRing.open(ring.name, WINDOW, 8192)
    opened = SharedRing.open(ring.name, WINDOW, 4096)
    assert opened is not None
    opened.slot(5, 3)[:] = b"abc"
    assert bytes(ring.slot(5 - WINDOW, 3)) == b"abc"
    with pytest.raises(TransferError, match="at most 4096"):
        ring.slot(0, 4097)
    opened.close()
    name = ring.name
    ring.close()
    assert SharedRing.open(name, WINDOW, 4096) is None
