"""Gives the prefixes in an engine's cache to a transfer, and takes those of another: the engine's side of this room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine.executors import require_cpu
from tensorwright.runtime.transfer.frames import MAX_DATA
from tensorwright.runtime.transfer.identity import Identity, identity_of

Ids = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
MAX_STATES = 1 << 30
"""The most bytes of states that are taken, for they are gathered in memory before the engine gets them."""


@dataclass(frozen=True)
class Extent:
    """What an engine remembers of a prompt: full blocks, and whether the states behind them."""

    blocks: int
    state: bool


@dataclass(frozen=True)
class Import:
    """A prefix that an engine is taking.

    number: the engine's. pieces: [n, 2], group and block of what is wanted, in the order in which it must come. state:
    whether states are wanted.
    """

    number: int
    pieces: Ids
    state: bool


class PrefixStore:
    """The prefixes of one engine. wait: the seconds that a call may wait for the engine to be between two steps.

    Raises InvalidOptionError for an engine that cannot exchange prefixes. Every method raises TransferError if the
    engine does not do it, QueueFullError if too many wait, and EngineStoppedError.
    """

    def __init__(self, llm: LLM, wait: float = 5.0):
        require_cpu(llm.engine, "exchanging prefixes of the KV cache")
        if llm.engine.config.ranks > 1:
            raise InvalidOptionError(
                f"exchanging prefixes of the KV cache needs an engine of one rank, {llm.engine.path} has "
                f"{llm.engine.config.ranks}, each with a part of every block: build it without them"
            )
        if not llm.options.enable_prefix_caching:
            raise InvalidOptionError(
                "exchanging prefixes of the KV cache needs enable_prefix_caching, which is off: leave it out"
            )
        if llm.engine.kv_budget is not None:
            raise InvalidOptionError(
                f"exchanging prefixes of the KV cache: {llm.engine.path} was built with a kv_budget, and which blocks "
                "stand behind a prefix depends on scores that are not exchanged: build it without"
            )
        if llm.engine.state_bytes and not llm.options.state_snapshots:
            raise InvalidOptionError(
                f"exchanging prefixes of {llm.engine.path} needs state_snapshots, for its recurrent layers have states "
                "that go with a prefix, and it keeps none: raise state_snapshots or kv_cache_memory"
            )
        self.engine = llm.engine
        self._native = llm.prefix_transfers()
        self._wait = wait
        self.identity: Identity = identity_of(llm.engine, self._native.layout())
        largest = max(self.identity.block_bytes, default=0)
        if largest > MAX_DATA or self.identity.state_bytes > MAX_STATES:
            raise InvalidOptionError(
                f"exchanging prefixes of {llm.engine.path}: a block must have at most {MAX_DATA} bytes and states "
                f"{MAX_STATES}, they have {largest} and {self.identity.state_bytes}; build with a smaller block size"
            )

    def sizes(self, pieces: Ids) -> list[int]:
        """Returns the bytes of each piece. The blocks of a model without attention have none."""
        table = self.identity.block_bytes
        return [table[group] if group < len(table) else 0 for group in pieces[:, 0].tolist()]

    def extent(self, prompt: Ids, salt: str) -> Extent:
        return Extent(*self._native.extent(prompt, salt, self._wait))

    def read(self, tokens: Ids, salt: str, pieces: Ids, out: Bytes) -> None:
        self._native.read(tokens, salt, pieces, out, self._wait)

    def read_states(self, tokens: Ids, salt: str) -> Bytes:
        states = np.empty(self.identity.state_bytes, np.uint8)
        self._native.read_state(tokens, salt, states, self._wait)
        return states

    def begin(self, tokens: Ids, salt: str) -> Import:
        """Begins to take a prefix of full blocks. Whoever begins must call `finish` or `drop`."""
        return Import(*self._native.begin(tokens, salt, self._wait))

    def write(self, taking: Import, pieces: Ids, content: Bytes) -> None:
        self._native.write(taking.number, pieces, content, self._wait)

    def finish(self, taking: Import, states: Bytes) -> None:
        self._native.finish(taking.number, states, self._wait)

    def drop(self, taking: Import) -> None:
        self._native.drop(taking.number, self._wait)

    def imports(self) -> int:
        """Returns the number of imports under way."""
        found: Any = self._native.imports(self._wait)
        return int(found)
