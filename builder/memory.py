"""How much memory a build takes: sampled, because the kernel keeps no high-water mark of anonymous memory."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_INTERVAL_S = 0.02


class MemoryWatch:
    """A context that watches a process, by default this one. `peaks` is in bytes, empty where there is no /proc.

    anonymous: what the build itself holds; resident: with the pages of mapped files, which the system may drop.
    """

    def __init__(self, process: int | None = None) -> None:
        self.peaks: dict[str, int] = {}
        self._process = process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            for name, value in sample(self._process).items():
                self.peaks[name] = max(value, self.peaks.get(name, 0))


def sample(process: int | None = None) -> dict[str, int]:
    """{"anonymous", "resident"} of a process now, in bytes; {} where there is no /proc, or the process has ended."""
    table = {}
    with suppress(OSError):
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
        table = {words[0]: int(words[1]) * 1024 for words in map(str.split, lines) if words[0] in _FIELDS}
    return {_FIELDS[name]: value for name, value in table.items()}


_FIELDS = {"RssAnon:": "anonymous", "VmRSS:": "resident"}
