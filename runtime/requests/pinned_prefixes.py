"""Keeps the table of pinned prefixes: which there are, who pinned them, and what a later engine must pin again.

A prefix is pinned in two steps: a request computes it, and then its blocks, which the prefix cache remembers, are held
(runtime/core/engine/prefix_pins.h). With a prefix cache on disk the table is a file beside it, so that the prefixes are
pinned again after a restart: their blocks come from the disk, or are computed once more.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidRequestError, TensorwrightError, UnknownPrefixError, reason
from tensorwright.json_text import read_json
from tensorwright.runtime.requests.sampling_params import SamplingParams

log = logging.getLogger(__name__)
MAX_PINS = 1024
"""The most prefixes that an engine pins."""
MAX_PINNED_TOKENS = 1 << 21
"""The most tokens of all pinned prefixes together. Prefixes that share blocks count each: the table and its file hold
the tokens of every one."""
TRIES = 3
"""How often a prefix is computed whose blocks are evicted before they can be held."""
VERSION = 1
_KEPT = ("name", "created", "owner", "salt", "token_ids")
"""The fields of a prefix that its file has."""


@dataclass(frozen=True)
class PinnedPrefix:
    """A pinned prefix.

    name: what its owner calls it. tokens: the number of tokens that are pinned, whole blocks. created: Unix time.
    pinned: False while an engine that has just started computes the prefix again, and if it has no room for it; the log
    says so. owner: who may see and unpin it, "" in one's own program. salt: the cache_salt of the requests that find
    it, "" for none. number: the engine's name for it. token_ids: the pinned tokens.
    """

    name: str
    tokens: int
    created: int
    pinned: bool
    owner: str
    salt: str
    number: int
    token_ids: tuple[int, ...]


def computing_prefix(params: SamplingParams) -> SamplingParams:
    """Returns the parameters with which a prompt is computed alone: one token is drawn, and nobody reads it. What says
    whose turn the request takes, when it must end, and who finds the prefix is that of `params`."""
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        priority=params.priority,
        tenant=params.tenant,
        tenant_weight=params.tenant_weight,
        deadline=params.deadline,
        timeout=params.timeout,
        cache_salt=params.cache_salt,
        truncate_prompt_tokens=params.truncate_prompt_tokens,
    )


class PinTable:
    """The pinned prefixes of one engine. It is thread-safe.

    hold: pins the tokens of a salt under a number, and returns how many blocks of them the engine has; fewer than all
    mean that nothing is pinned. let_go: unpins a number. block_size: tokens of a block. room: the blocks that may be
    pinned; 0 means that the engine pins nothing. file: where the table is kept; None keeps it nowhere.
    """

    def __init__(
        self,
        hold: Callable[[int, Sequence[int], str], int],
        let_go: Callable[[int], None],
        block_size: int,
        room: int,
        file: Path | None = None,
    ):
        self._hold, self._let_go = hold, let_go
        self._block_size = block_size
        self.room = room
        self._file = file
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the table; no engine is asked and no file is written under it
        self._changing = threading.Lock()  # one prefix at a time is pinned or unpinned, and the file is written
        self._pins: dict[tuple[str, str], PinnedPrefix] = {}
        if room > 0 and file is not None:
            self._pins = {(pin.owner, pin.name): pin for pin in _read(file, block_size)}

    def of(self, owner: str = "") -> list[PinnedPrefix]:
        """Returns the prefixes of an owner, in the order in which they were pinned."""
        with self._lock:
            return [pin for pin in self._pins.values() if pin.owner == owner]

    def check(self, name: str, owner: str = "", most: int = MAX_PINS) -> None:
        """Raises InvalidRequestError if the owner cannot pin another prefix of this name. most: how many it may
        have."""
        if self.room == 0:
            raise InvalidRequestError("this engine pins no prefixes; start it with pinned_prefix_memory")
        if not name:
            raise InvalidRequestError("the name of a pinned prefix must have at least one character, got none")
        with self._lock:
            there = len(self._pins) - ((owner, name) in self._pins)
        others = sum(pin.name != name for pin in self.of(owner))
        if others >= most or there >= MAX_PINS:
            bound = f"{most} here" if others >= most else f"{MAX_PINS} in all"
            raise InvalidRequestError(f"at most {bound} prefixes may be pinned; unpin another one first")

    def hold(
        self, name: str, token_ids: Sequence[int], salt: str = "", owner: str = "", most: int = MAX_PINS
    ) -> PinnedPrefix | None:
        """Pins the full blocks of tokens that a request has just computed, in place of an older prefix of this name.
        Returns None if some are evicted already: compute them again. most: as in check(), which holds here too, for
        others may have pinned meanwhile. Raises InvalidRequestError for less than a block, and if there is no room;
        then nothing has changed."""
        blocks = len(token_ids) // self._block_size
        if blocks == 0:
            raise InvalidRequestError(
                f"a prefix is pinned in whole blocks of {self._block_size} tokens, and must have one at least, got "
                f"{len(token_ids)} tokens"
            )
        ids = tuple(token_ids[: blocks * self._block_size])
        with self._changing:
            self.check(name, owner, most)
            self._check_tokens(name, owner, len(ids))
            number = next(self._numbers)
            if self._hold(number, ids, salt) < blocks:
                return None
            pin = PinnedPrefix(name, len(ids), int(time.time()), True, owner, salt, number, ids)
            with self._lock:
                old = self._pins.pop((owner, name), None)
                self._pins[owner, name] = pin
            self._write()
            if old is not None:
                self._let_go(old.number)
        return pin

    def unpin(self, name: str, owner: str = "") -> None:
        """Lets a prefix be evicted again. Raises UnknownPrefixError."""
        with self._changing:
            with self._lock:
                if (owner, name) not in self._pins:
                    raise UnknownPrefixError(f"no prefix {name!r:.100} is pinned")
                pin = self._pins.pop((owner, name))
            self._write()
            self._let_go(pin.number)

    def _check_tokens(self, name: str, owner: str, tokens: int) -> None:
        with self._lock:
            others = sum(pin.tokens for key, pin in self._pins.items() if key != (owner, name))
        if others + tokens > MAX_PINNED_TOKENS:
            raise InvalidRequestError(
                f"pinned prefixes must have at most {MAX_PINNED_TOKENS} tokens together, got {others + tokens} with "
                "this one; unpin another one first"
            )

    def lose_all(self) -> list[PinnedPrefix]:
        """Notes that the engine holds none of them any more, and returns them."""
        with self._lock:
            self._pins = {key: replace(pin, pinned=False) for key, pin in self._pins.items()}
            return list(self._pins.values())

    def restore(self, compute: Callable[[PinnedPrefix], None]) -> None:
        """Pins again what is in the table and not pinned. compute: computes the tokens of a prefix. What cannot be
        pinned stays in the table, and the log says why."""
        with self._lock:
            lost = [pin for pin in self._pins.values() if not pin.pinned]
        for pin in lost:
            try:
                held = any(self._hold_again(pin, compute) for _ in range(TRIES))
            except TensorwrightError as error:
                log.warning("a prefix could not be pinned again: %s", error, extra={"facts": {"prefix": pin.name}})
            else:
                if not held:
                    log.warning("a prefix was evicted while it was pinned again", extra={"facts": {"prefix": pin.name}})

    def _hold_again(self, pin: PinnedPrefix, compute: Callable[[PinnedPrefix], None]) -> bool:
        compute(pin)
        with self._changing:
            with self._lock:
                if self._pins.get((pin.owner, pin.name)) is not pin:
                    return True  # It was unpinned or replaced meanwhile.
            number = next(self._numbers)
            if self._hold(number, pin.token_ids, pin.salt) * self._block_size < pin.tokens:
                return False
            with self._lock:
                self._pins[pin.owner, pin.name] = replace(pin, number=number, pinned=True)
        return True

    def _write(self) -> None:
        """Writes the table, under `_changing`. If that fails, the prefixes are pinned until the engine ends, and the
        log says so."""
        if self._file is None:
            return
        with self._lock:
            all_pins = list(self._pins.values())
        pins = [{name: getattr(pin, name) for name in _KEPT} for pin in all_pins]
        part = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, "pins": pins}, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._file)
        except OSError as error:
            part.unlink(missing_ok=True)
            log.warning("pinned prefixes are not kept for a restart: %s cannot be written (%s)", self._file, error)


def _read(file: Path, block_size: int) -> list[PinnedPrefix]:
    """Returns what a file says is pinned. What is damaged is told to the log, and nothing of it is pinned."""
    if not file.exists():
        return []
    try:
        found = read_json(file.read_bytes())
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']!r}, and must be {VERSION}")
        return [_read_pin(entry, block_size) for entry in found["pins"][:MAX_PINS]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        log.warning("%s is damaged, and its prefixes are not pinned: %s", file, why)
        return []


def _read_pin(entry: dict[str, Any], block_size: int) -> PinnedPrefix:
    texts, ids = [entry[name] for name in ("name", "owner", "salt")], entry["token_ids"]
    if not all(isinstance(text, str) for text in texts) or not all(type(token) is int for token in ids):
        raise ValueError("an entry has no names or no tokens")
    tokens = tuple(ids[: len(ids) // block_size * block_size])
    if not tokens or type(entry["created"]) is not int:
        raise ValueError("an entry has less than a block, or no time")
    name, owner, salt = texts
    return PinnedPrefix(name, len(tokens), entry["created"], False, owner, salt, 0, tokens)
