"""Writes and reads an engine's checksums.txt, and checks every file against it.

Text files are read once: the bytes that were hashed are the bytes that are used. The executor maps large files. Their
marks tell whether the mapped file is the hashed file. build-report.json is not listed.

<xxh3_128 hex>  <bytes>  <relative path>     one line per file, sorted by path
<xxh3_128 hex>  <bytes>  .                   the last line covers the text of the lines above
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import xxhash

from tensorwright.engine_format.file_names import CHECKSUMS
from tensorwright.errors import EngineError, reason

REMEDY = "build the engine again, or copy it again from where it came"
TEXTS = (".json", ".jinja")
"""The ends of the names of files that the runtime reads as a whole."""
_READ_BYTES = 8 << 20
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_LINE = re.compile(r"([0-9a-f]{32})  (0|[1-9][0-9]{0,18})  (\S.*)")


class FileSum(NamedTuple):
    digest: str
    size: int


class FileMark(NamedTuple):
    """The facts of a file that change when it is replaced or written to."""

    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileMark:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def checksum_text(sums: Mapping[str, FileSum]) -> str:
    """Returns the text of checksums.txt. sums: the sum of each file, by relative path."""
    body = "".join(f"{digest}  {size}  {name}\n" for name, (digest, size) in sorted(sums.items()))
    return body + _last_line(body) + "\n"


def _last_line(body: str) -> str:
    """Returns the line that covers the lines above it."""
    return f"{xxhash.xxh3_128_hexdigest(body.encode())}  {len(body.encode())}  ."


def read_sum(path: Path) -> FileSum:
    """Returns the sum of a file, read piece by piece. Raises OSError."""
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileSum(digest.hexdigest(), size)


def read_checksums(root: Path) -> dict[str, FileSum]:
    """Returns the listed files by relative path. Raises EngineError if the list is missing, malformed or altered."""
    path = root / CHECKSUMS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EngineError(f"{path}: missing; {REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: cannot be read ({reason(error)}); {REMEDY}") from error
    *lines, last = [line for line in text.split("\n") if line] or [""]
    body = "".join(line + "\n" for line in lines)
    if last != _last_line(body):
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


def verify_file(root: Path, name: str, expected: FileSum, texts: dict[str, bytes], marks: dict[str, FileMark]) -> None:
    """Checks the size and the content of one file, as `verify_files` does."""
    _check_sizes(root, {name: expected}, texts)
    _check_content(root, name, expected, texts, marks)


def verify_files(
    root: Path,
    files: Mapping[str, FileSum],
    weights: str,
    texts: dict[str, bytes],
    marks: dict[str, FileMark],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Checks all sizes first, so that a truncated engine fails at once, and then the contents. Raises EngineError.

    weights: the name of the largest file, which a thread of its own hashes. texts: takes the bytes of text files by
    relative path; a text that is there already is not read again. marks: takes the marks of all other files.
    meanwhile: called while the largest file is hashed; all others are checked by then.
    """
    _check_sizes(root, files, texts)
    for name, expected in files.items():
        if name != weights:
            _check_content(root, name, expected, texts, marks)
    faults: list[BaseException] = []
    largest = [name for name in files if name == weights]

    def hash_largest() -> None:
        try:
            for name in largest:
                _check_content(root, name, files[name], texts, marks)
        except BaseException as error:  # It is raised where the thread is joined: an unchecked file must not be run.
            faults.append(error)

    thread = threading.Thread(target=hash_largest)
    thread.start()
    try:
        if meanwhile is not None:
            meanwhile()
    finally:
        thread.join()
        if faults:
            raise faults[0]


def check_unchanged(root: Path, names: Iterable[str], marks: Mapping[str, FileMark]) -> None:
    """Raises EngineError if a file is not the file that was hashed. Call it when the files are mapped or read."""
    for name in names:
        try:
            same = FileMark.of((root / name).stat()) == marks[name]
        except OSError:
            same = False
        if not same:
            raise EngineError(
                f"{root / name}: was changed or replaced while the engine was opened; open it again, and put an engine "
                "in the place of another by renaming folders, as build-engine --force does"
            )


def _check_sizes(root: Path, files: Mapping[str, FileSum], texts: Mapping[str, bytes]) -> None:
    for name, expected in files.items():
        size = len(texts[name]) if name in texts else _size_of(root / name)
        if size != expected.size:
            raise EngineError(f"{root / name}: {_size_fault(size, expected.size)}; {REMEDY}")


def _size_of(path: Path) -> int:
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    except ValueError:  # No file can have this name.
        pass
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise _unreadable(path, error) from error
    raise EngineError(f"{path}: missing; {REMEDY}")


def _check_content(
    root: Path, name: str, expected: FileSum, texts: dict[str, bytes], marks: dict[str, FileMark]
) -> None:
    """Hashes one file and keeps its text or its mark. Raises EngineError if it is not the file of checksums.txt."""
    path = root / name
    if name.endswith(TEXTS):
        if name not in texts:
            texts[name] = read_whole(path)
        digest = xxhash.xxh3_128_hexdigest(texts[name])
    else:
        digest, marks[name] = hash_file(path)
    if digest != expected.digest:
        raise EngineError(f"{path}: altered, its checksum does not match {CHECKSUMS}; {REMEDY}")


def _size_fault(size: int, expected: int) -> str:
    return f"{'truncated' if size < expected else 'altered'}, it has {size} bytes and must have {expected}"


def read_whole(path: Path) -> bytes:
    """Reads a file. Raises EngineError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def hash_file(path: Path) -> tuple[str, FileMark]:
    """Returns the xxh3_128 of a file in hex, and the mark of the file that was hashed. Raises EngineError.

    The file is mapped, which is three times as fast as reading, and leaves the pages warm for serving.
    """
    try:
        with path.open("rb") as file:
            mark = FileMark.of(os.fstat(file.fileno()))
            if mark.size == 0:
                return xxhash.xxh3_128_hexdigest(b""), mark  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_SEQUENTIAL)
                digest = xxhash.xxh3_128()
                digest.update(data)  # One call hashes all, and the interpreter's lock is free meanwhile.
                return digest.hexdigest(), mark
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> EngineError:
    return EngineError(f"{path}: cannot be read ({reason(error)}); check its permissions")
