"""The engines that a server has, by the name that clients call them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tensorwright.errors import UnknownModelError

if TYPE_CHECKING:
    from tensorwright.runtime.api.llm import LLM


class EngineRegistry(Mapping[str, "LLM"]):
    """Name -> LLM; the order is that of the command line. started: Unix time at which they were there."""

    def __init__(self, engines: Mapping[str, LLM]):
        self._engines = dict(engines)
        self.started = int(time.time())

    def find(self, name: str) -> LLM:
        """Raises UnknownModelError, which clients see as 404."""
        if name not in self._engines:
            raise UnknownModelError(f"there is no model {name!r} here; there are {', '.join(self._engines)}")
        return self._engines[name]

    def __getitem__(self, name: str) -> LLM:
        return self._engines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)
