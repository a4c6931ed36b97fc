"""How much memory a build takes: sampled, because the kernel keeps no high-water mark of anonymous memory."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_INTERVAL_S = 0.02


class MemoryWatch:
    """A context that watches this process. `peaks` is in bytes, and says nothing where /proc has nothing to say.

    anonymous: what the build itself holds; resident: with the pages of mapped files, which the system may drop.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
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
            for name, value in sample().items():
                self.peaks[name] = max(value, self.peaks.get(name, 0))


def sample() -> dict[str, int]:
    """{"anonymous", "resident"} of this process now, in bytes; {} where there is no /proc."""
    if not _STATUS.exists():
        return {}
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    table = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("RssAnon:", "VmRSS:")}
    return {"anonymous": table["RssAnon:"], "resident": table["VmRSS:"]}
