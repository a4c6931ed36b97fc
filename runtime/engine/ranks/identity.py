"""Says which engine ranks have opened, so that none of them runs another one's files."""

from __future__ import annotations

import xxhash

from tensorwright.runtime.engine.engine_dir import EngineDir


def fingerprint(engine: EngineDir) -> int:
    """Returns a number of 64 bits from the checksums of all files of the engine, of all ranks."""
    lines = "".join(f"{name} {file.digest} {file.size}\n" for name, file in sorted(engine.files.items()))
    return xxhash.xxh3_64_intdigest(lines.encode())


def threads_of_rank(threads: int, ranks: int) -> int:
    """Returns how many threads each of `ranks` ranks on one machine gets of `threads`."""
    return max(1, threads // ranks)
