"""checksums.txt of an engine: what every file must be, and the check that it is.

<xxh3_128 hex>  <bytes>  <relative path>     one line per file, sorted by path
<xxh3_128 hex>  <bytes>  .                   last: over the text of the lines above
"""

from __future__ import annotations

import mmap
import re
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import xxhash

from tensorwright.errors import EngineError, reason

CHECKSUMS = "checksums.txt"
REMEDY = "build the engine again, or copy it again from where it came"
_LINE = re.compile(r"([0-9a-f]{32})  (0|[1-9][0-9]{0,18})  (\S.*)")


class FileSum(NamedTuple):
    digest: str
    size: int


def read_checksums(root: Path) -> dict[str, FileSum]:
    """The listed files by relative path. EngineError if the list itself is missing, malformed or altered."""
    path = root / CHECKSUMS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EngineError(f"{path}: missing; {REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: cannot be read ({reason(error)}); {REMEDY}") from error
    *lines, last = [line for line in text.split("\n") if line] or [""]
    body = "".join(line + "\n" for line in lines)
    if last != f"{xxhash.xxh3_128_hexdigest(body.encode())}  {len(body.encode())}  .":
        raise EngineError(f"{path}: truncated or altered (its last line must cover the lines above); {REMEDY}")
    return dict(_parse(path, line) for line in lines)


def _parse(path: Path, line: str) -> tuple[str, FileSum]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise EngineError(f"{path}: {line!r} is not '<xxh3_128>  <bytes>  <path>'; {REMEDY}")
    digest, size, name = match.groups()
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise EngineError(f"{path}: {name!r} leads out of the engine directory; {REMEDY}")
    return name, FileSum(digest, int(size))


def verify_files(
    root: Path, files: dict[str, FileSum], weights: str, meanwhile: Callable[[], None] | None = None
) -> None:
    """Sizes of all first, so that a truncated engine fails at once, then contents.

    meanwhile: called while `weights`, the largest, are hashed on a thread of their own; all others are checked by then.
    """
    for name, expected in files.items():
        path = root / name
        if not path.is_file():
            raise EngineError(f"{path}: missing; {REMEDY}")
        size = path.stat().st_size
        if size != expected.size:
            raise EngineError(f"{path}: {_size_fault(size, expected.size)}; {REMEDY}")
    for name, expected in files.items():
        if name != weights:
            _check_content(root / name, expected)
    largest = [(root / name, expected) for name, expected in files.items() if name == weights]
    faults: list[BaseException] = []
    thread = threading.Thread(target=_collect_faults, args=(largest, faults))
    thread.start()
    try:
        if meanwhile is not None:
            meanwhile()
    finally:
        thread.join()
        if faults:
            raise faults[0]


def _collect_faults(files: list[tuple[Path, FileSum]], faults: list[BaseException]) -> None:
    try:
        for path, expected in files:
            _check_content(path, expected)
    except BaseException as error:  # raised where the thread is joined: what was not checked must not run
        faults.append(error)


def _check_content(path: Path, expected: FileSum) -> None:
    if file_digest(path) != expected.digest:
        raise EngineError(f"{path}: altered, its checksum does not match {CHECKSUMS}; {REMEDY}")


def _size_fault(size: int, expected: int) -> str:
    return f"{'truncated' if size < expected else 'altered'}, it has {size} bytes and must have {expected}"


def file_digest(path: Path) -> str:
    """xxh3_128 of a file in hex. Mapped, which is three times as fast as reading and leaves the pages warm to serve."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return xxhash.xxh3_128_hexdigest(b"")  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_SEQUENTIAL)
                digest = xxhash.xxh3_128()
                digest.update(data)  # once: the interpreter is free all the while
                return digest.hexdigest()
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({reason(error)}); check its permissions") from error
