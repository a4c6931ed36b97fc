"""Chooses which engine computes a prompt: the one that is done first, by what it remembers and what it has to do.

Of each engine the router remembers which beginnings of prompts it was given, as chains of hashes over pieces of text.
What an engine must still compute of a prompt is the part behind the longest beginning that it was given. The work of an
engine is that part and the parts of the prompts under way, in bytes; the least is chosen. The router does not know what
the engines have forgotten; a wrong guess costs time and never an answer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence

PIECE = 256
"""The bytes of a piece: about as many tokens as two blocks of the cache."""
MAX_PIECES = 1 << 16
"""The pieces that are remembered of each engine, 16 MiB of text; those that were used longest ago are forgotten."""
DIGEST = 12


def pieces_of(text: bytes) -> list[bytes]:
    """Returns the key of each full piece of a text; a key stands for the piece and all before it."""
    key, keys = b"", []
    for start in range(0, len(text) - PIECE + 1, PIECE):
        key = hashlib.blake2b(key + text[start : start + PIECE], digest_size=DIGEST).digest()
        keys.append(key)
    return keys


class PrefixChoice:
    """The prompts that engines were given. It belongs to one thread. engines: their names."""

    def __init__(self, engines: Sequence[str], most: int = MAX_PIECES):
        self._most = most
        self._given: dict[str, OrderedDict[bytes, None]] = {name: OrderedDict() for name in engines}
        self._work = dict.fromkeys(engines, 0)
        self._turn = 0

    def choose(self, keys: Sequence[bytes], length: int, among: Collection[str]) -> str:
        """Returns the engine that will have the least to do. keys: those of the text. length: the bytes of the text.
        among: the engines to choose from, at least one. Of equal engines each has its turn."""
        names = [name for name in self._given if name in among]
        self._turn += 1
        start = self._turn % len(names)
        order = names[start:] + names[:start]
        return min(order, key=lambda name: self._work[name] + self.missing(name, keys, length))

    def missing(self, name: str, keys: Sequence[bytes], length: int) -> int:
        """Returns the bytes of a text that an engine was not given yet."""
        given = self._given[name]
        known = next((index for index, key in enumerate(keys) if key not in given), len(keys))
        return length - known * PIECE

    def begin(self, name: str, keys: Sequence[bytes], length: int) -> int:
        """Notes that an engine computes a prompt from now on. Returns the work, for `end`."""
        work = self.missing(name, keys, length)
        given = self._given[name]
        for key in keys:
            given[key] = None
            given.move_to_end(key)
        while len(given) > self._most:
            given.popitem(last=False)
        self._work[name] += work
        return work

    def end(self, name: str, work: int) -> None:
        self._work[name] -= work

    def forget(self, name: str) -> None:
        """Notes that an engine may have lost its cache, because it could not be reached."""
        self._given[name].clear()

    def work(self, name: str) -> int:
        """Returns the bytes that an engine has to compute."""
        return self._work[name]
