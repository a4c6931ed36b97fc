"""Writes an engine directory whole or not at all. The files are written beside the directory's final place,
checksummed while they are written, synced, and then renamed. Whenever the process ends or the power fails, the final
place holds the old engine or the new one. The next writer removes what a killed process left beside the place.

checksums.txt has a line "<xxh3_128 hex>  <bytes>  <relative path>" for every file but itself and build-report.json,
sorted by path, and a last line "<hex>  <bytes>  ." over the text of the lines above.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import xxhash

from tensorwright import durable
from tensorwright.builder.process import uninterrupted
from tensorwright.engine_format.checksums import FileSum, checksum_text, read_sum
from tensorwright.engine_format.engine_config import names_engine
from tensorwright.engine_format.file_names import CHECKSUMS, CONFIG, REPORT
from tensorwright.errors import BuildError, OutputExistsError, reason
from tensorwright.json_text import read_json

_BUILDING = ".building-"


class HashingFile:
    """A file that counts and hashes its bytes while they are written."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.bytes = 0
        self._hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> int:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        return len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class EngineWriter:
    """A context in which an engine's files are written; `commit` puts the directory in its final place.

    On exit without a commit, or by any exception, it removes all that was written. OSErrors become BuildErrors.
    """

    def __init__(self, out: str | Path, *, overwrite: bool = False):
        self.out = Path(os.path.abspath(os.path.expanduser(out)))
        self.overwrite = overwrite
        self._sums: dict[str, FileSum] = {}
        self._made: list[Path] = []
        self._committed = False
        self._marks: list[int] = []  # open descriptors: they show other writers that this process is alive
        self.directory = Path()
        """The folder that holds the files until the commit."""

    def __enter__(self) -> EngineWriter:
        with self.os_errors("cannot be read"):
            clean_up_after_killed(self.out)
            check_output(self.out, self.overwrite)
        try:
            with uninterrupted():
                self._make_directory()
        except BaseException:
            self._clean_up()
            raise
        return self

    def _make_directory(self) -> None:
        with self.os_errors("cannot be written to"):
            for parent in reversed([p for p in self.out.parents if not p.exists()]):
                parent.mkdir()
                self._made.append(parent)
            for _ in range(3):  # between the two steps another writer may remove the folder as a dead process's
                self.directory = self.out.parent / f".{self.out.name}{_BUILDING}{secrets.token_hex(4)}"
                self.directory.mkdir()
                if self._mark(self.directory):
                    break

    def _mark(self, folder: Path) -> bool:
        """Marks the folder, whatever its name is, as used by a living process. Returns False where that fails."""
        mark = durable.hold(folder)
        if mark is not None:
            self._marks.append(mark)
        return mark is not None and folder.is_dir()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._clean_up()

    def _clean_up(self) -> None:
        """Removes all that was written, unless the engine was put in place."""
        while self._marks:
            os.close(self._marks.pop())
        if self._committed:
            return
        if self.directory.name:
            shutil.rmtree(self.directory, ignore_errors=True)
        for parent in reversed(self._made):
            with suppress(OSError):  # another process may have put a file there
                parent.rmdir()

    @contextmanager
    def open(self, name: str) -> Iterator[HashingFile]:
        """Opens a new file of the engine, by its relative path. The checksum is taken while the file is written."""
        path = self.directory / name
        with self.os_errors(f"{name} cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                stream = HashingFile(file)
                yield stream
        if name not in (CHECKSUMS, REPORT):
            self._sums[name] = FileSum(stream.digest, stream.bytes)

    def write(self, name: str, data: bytes) -> None:
        with self.open(name) as file:
            file.write(data)

    def adopt(self, name: str, path: Path) -> None:
        """Takes a finished file into the engine: moves it if it is on the same disk, and reads it for its checksum.

        This is for files that another process wrote. `path` is gone afterwards.
        """
        place = self.directory / name
        with self.os_errors(f"{name} cannot be written"):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)
            self._sums[name] = read_sum(place)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the size of every checksummed file so far, in bytes, by path."""
        return {name: entry.size for name, entry in sorted(self._sums.items())}

    def require_space(self, need: int) -> None:
        """Raises BuildError if the file system certainly has less than `need` bytes left."""
        free = shutil.disk_usage(self.directory).free
        if free < need:
            raise BuildError(
                f"{self.out}: the engine needs {need / 1e6:.2f} MB of disk, {free / 1e6:.2f} MB are free; "
                "free some or choose another place"
            )

    def commit(self) -> None:
        """Writes checksums.txt, syncs all files, and puts the directory in its final place."""
        self.write(CHECKSUMS, checksum_text(self._sums).encode())
        with self.os_errors("the finished engine could not be written to the disk"):
            durable.sync_tree(self.directory)
        with self.os_errors("the finished engine could not be put in place"), uninterrupted():
            check_output(self.out, self.overwrite)  # another process may have put a file there
            if self.out.exists():
                self._mark(self.out)
            old = durable.put_in_place(self.directory, self.out)
            self._committed = True
            for parent in self._made:
                durable.sync(parent.parent)
            if old is not None:
                self._remove(old)

    def _remove(self, old: Path) -> None:
        try:
            shutil.rmtree(old)
        except OSError as error:
            raise BuildError(
                f"{self.out}: is built, but the engine it replaces is still at {old} ({reason(error)})"
            ) from error

    @contextmanager
    def os_errors(self, what: str) -> Iterator[None]:
        """Turns an OSError inside into a BuildError that says `what` failed, where, and what to do."""
        try:
            yield
        except OSError as error:
            raise BuildError(
                f"{self.out}: {what} ({reason(error)}); nothing was left behind, free the disk or choose another place"
            ) from error


def clean_up_after_killed(out: Path) -> None:
    """Removes what killed processes left beside `out`. On a disk that cannot exchange two names, a process may have
    been killed between two renames, with nothing at `out`: then the old engine is put back there."""
    for left in durable.abandoned(out.parent, f".{out.name}{durable.REPLACED}"):
        if not os.path.lexists(out):
            left.rename(out)
        else:
            shutil.rmtree(left, ignore_errors=True)
    for left in durable.abandoned(out.parent, f".{out.name}{_BUILDING}"):
        shutil.rmtree(left, ignore_errors=True)


def check_output(out: Path, overwrite: bool) -> None:
    """Raises OutputExistsError unless `out` does not exist, or is an engine and `overwrite` is set."""
    if not os.path.lexists(out):
        return
    there = f"{out}: already exists"
    if out.is_symlink() or not out.is_dir():
        raise OutputExistsError(f"{there} and is no directory, so it is not replaced; choose another place")
    if any(out.iterdir()) and not _is_engine(out):
        raise OutputExistsError(f"{there} and is no engine, so it is not replaced; choose another place")
    if not overwrite:
        raise OutputExistsError(f"{there}; choose another place, or say overwrite (--force) to replace it")


def _is_engine(path: Path) -> bool:
    try:
        return names_engine(read_json((path / CONFIG).read_bytes()))
    except (OSError, ValueError):
        return False
