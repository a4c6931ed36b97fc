"""Does by NCCL what the ranks of a parallel engine do together on their GPUs: `Communicators`.

There is one communicator of all ranks, through which stages send and receive, and one of each stage for sums and joins;
an engine of one stage has one for both. A call goes into the stream of the step, and nothing waits for it but the
stream. A thread of its own watches while a step runs: where another rank has failed, or does not come in time, it
aborts the communicators, so that the kernels of NCCL on this GPU end, and the step with them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from tensorwright.errors import RankError
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.tensorrt.nccl import DTYPES, ID_BYTES, IN_PROGRESS, SUCCESS, SUM, Nccl

LOOK_S = 0.05
"""How often the watching thread looks whether a step runs, and runs too long."""
NAP_S = 0.0005
"""How long a rank sleeps while it waits for a communicator."""
GRACE_S = 2.0
"""How long an abort waits for a call that another thread is in."""
CONNECT = ("NCCL_RUNTIME_CONNECT", "0")
"""A setting of NCCL: ranks connect when a communicator is made, before the KV cache takes the memory that is left, and
not in the first step. It is set unless somebody has set it."""
ALGORITHM = ("NCCL_ALGO", "Ring")
"""The same for more than two ranks: NCCL chooses by the size of a message else, so the order of a sum would differ from
one step to another. Two numbers have one sum."""


class Prepared(NamedTuple):
    """A function of NCCL and its arguments but for the stream; the last one is the communicator."""

    name: str
    function: Callable[..., int]
    arguments: tuple[int, ...]


class Communicators:
    """The communicators of one rank; a plugins.gpu.collective_call.Collectives. `connect` comes first, with the device
    of the rank current."""

    def __init__(self, nccl: Nccl, group: RankGroup):
        self._nccl, self._group = nccl, group
        self._world = self._stage = 0  # handles; 0 for none
        self._lock = threading.RLock()  # of calls of NCCL, for none may use a communicator that another thread aborts
        self._end: float | None = None  # when the step that runs must have ended
        self._closed = threading.Event()
        self._failure = ""
        self._watching: threading.Thread | None = None

    def connect(self) -> None:
        """Makes the communicators, together with all other ranks. Raises RankError, on every rank."""
        group = self._group
        for name, value in (CONNECT, ALGORITHM) if group.tensor > 2 else (CONNECT,):
            os.environ.setdefault(name, value)
        own = self._nccl.unique_id() if group.rank == 0 else b""
        shared = group.ranks.share(own, ID_BYTES)
        patience_s = group.ranks.OPENING * group.timeout_s
        code, self._world = self._nccl.begin(group.size, shared, group.rank)
        self._finish("ncclCommInitRankConfig", code, self._world, patience_s)
        if group.stages == 1:
            self._stage = self._world
        elif group.tensor > 1:
            code, part = self._nccl.begin_split(self._world, group.stage, group.number)
            self._finish("ncclCommSplit", code, self._world, patience_s)
            self._stage = part.value or 0
            self._finish("ncclCommSplit", SUCCESS, self._stage, patience_s)
        self._watching = threading.Thread(target=self._watch, name="tensorwright-nccl", daemon=True)
        self._watching.start()

    # What plugins call.

    def prepare(self, call: Any) -> Prepared:
        """Prepares a CollectiveCall. Raises ValueError for one of another kind."""
        tensor = call.source if call.source is not None else call.target
        count, dtype, group = prod(tensor.shape), DTYPES[tensor.dtype], self._group
        if call.kind == "all_reduce":
            return self._prepared("ncclAllReduce", tensor.address, call.target.address, count, dtype, SUM, self._stage)
        if call.kind == "all_gather":
            return self._prepared("ncclAllGather", tensor.address, call.target.address, count, dtype, self._stage)
        if call.kind == "send":
            return self._prepared("ncclSend", tensor.address, count, dtype, group.rank + group.tensor, self._world)
        if call.kind == "receive":
            return self._prepared("ncclRecv", tensor.address, count, dtype, group.rank - group.tensor, self._world)
        raise ValueError(f"ranks do not know {call.kind!r}")

    def _prepared(self, name: str, *arguments: int) -> Prepared:
        return Prepared(name, getattr(self._nccl, name), arguments)

    def start(self, prepared: Prepared, stream: int) -> None:
        """Puts a call into the stream. Raises RankError."""
        with self._lock:
            self._require_whole()
            code = prepared.function(*prepared.arguments, stream)
        if code != SUCCESS:
            self._finish(prepared.name, code, prepared.arguments[-1], self._group.timeout_s)

    # What the executor calls.

    @property
    def failed(self) -> bool:
        """Whether the ranks can compute no further step together."""
        return bool(self._failure)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watches over what runs inside. Raises RankError if the ranks failed meanwhile, whatever else was raised."""
        self._end = time.monotonic() + self._group.timeout_s
        try:
            yield
        except Exception:
            self._require_whole()
            raise
        finally:
            self._end = None
        self._require_whole()

    def fail(self, why: str) -> None:
        """Ends what all ranks do together, with this text for all. The first text stays."""
        self._failure = self._failure or why
        # A call inside the library may wait for a queue of launches that is full, which only an abort empties.
        mine = self._lock.acquire(timeout=GRACE_S)
        try:
            self._abort()
        finally:
            if mine:
                self._lock.release()
        self._group.ranks.fail(self._failure)

    def close(self) -> None:
        """Frees the communicators. It waits for no other rank; nothing of the ranks may run on the device."""
        self._closed.set()
        if self._watching is not None:
            self._watching.join()
        with self._lock:
            self._failure = self._failure or "[ranks] the engine is closed"
            self._abort()

    def _abort(self) -> None:
        world, stage, self._world, self._stage = self._world, self._stage, 0, 0
        for handle in {stage, world} - {0}:
            self._nccl.abort(handle)

    def _require_whole(self) -> None:
        if self._failure:
            raise RankError(self._failure)

    def _finish(self, what: str, code: int, handle: int, patience_s: float) -> None:
        """Waits until a call has ended that began with this code. Raises RankError if that is by an error, or not in
        time."""
        end = time.monotonic() + patience_s
        while code == IN_PROGRESS or (code == SUCCESS and handle):
            with self._lock:
                self._require_whole()
                code = self._nccl.async_error(handle)
            if code == SUCCESS:
                return
            if code != IN_PROGRESS:
                break
            why = self._group.ranks.failure
            if not why and time.monotonic() > end:
                why = (
                    f"[ranks] rank {self._group.rank}: {what} has not ended in {patience_s:g} seconds, for another "
                    "rank does not take part"
                )
            if why:
                self.fail(why)
                raise RankError(self._failure)
            time.sleep(NAP_S)
        if code != SUCCESS:
            self.fail(f"[ranks] rank {self._group.rank}: NCCL: {what} answers {self._nccl.explain(code)}")
            raise RankError(self._failure)

    def _watch(self) -> None:
        """Looks after the step that runs, until the communicators are closed or have failed."""
        while not self._closed.wait(LOOK_S):
            end = self._end
            why = self._fault(end) if end is not None else ""
            if why and self._end == end:  # the step still runs
                self.fail(why)
                return

    def _fault(self, end: float) -> str:
        """Returns why the step that runs cannot end; empty where nothing says so."""
        group = self._group
        if why := group.ranks.failure:
            return str(why)
        if self._lock.acquire(timeout=LOOK_S):  # else a call is in the library
            try:
                codes = {self._nccl.async_error(handle) for handle in {self._world, self._stage} - {0}}
            finally:
                self._lock.release()
            for code in codes - {SUCCESS, IN_PROGRESS}:
                return f"[ranks] rank {group.rank}: NCCL says {self._nccl.explain(code)}"
        if time.monotonic() > end:
            return f"[ranks] rank {group.rank} waited for others for {group.timeout_s:g} seconds in a step"
        return ""
