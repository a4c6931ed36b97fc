"""Runs the building process from the parent's side: starts it, listens, and turns each possible end into an answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import tensorwright
from tensorwright import errors
from tensorwright.builder.emit.tensorrt.job import Job
from tensorwright.builder.emit.tensorrt.library import Library, cured_environment
from tensorwright.builder.process import MemoryWatch
from tensorwright.errors import BuildError, OutOfMemoryError, TensorwrightError

COMMAND = (sys.executable, "-P", "-m", "tensorwright.builder.emit.tensorrt.fixed_addresses")
KEPT = ("HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CACHE_HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "LANG")
"""Environment variables that the child keeps."""
PATIENCE_S = 1800.0
"""The longest silence of the child, in seconds. TensorRT reports every step, and no step takes minutes."""
LAST_WORDS = 2000
"""The most characters of the child's stderr that an error quotes."""

Advance = Callable[[int, int], None]


def run_child(
    job: Job,
    library: Library,
    advance: Advance,
    *,
    folder: Path | None = None,
    command: Sequence[str] = COMMAND,
    patience_s: float = PATIENCE_S,
) -> dict[str, Any]:
    """Returns the child's "done" message with its "peak_memory_bytes". folder: the child's directory, base of paths.

    Raises the child's error; BuildError for an abort, a crash or silence; OutOfMemoryError where the system killed it.
    However this ends, by Ctrl-C too, the child has ended afterwards.
    """
    with cured_environment(library) as environment, tempfile.TemporaryFile() as words:
        environment = _same_environment(environment)
        # The child has a session of its own, so Ctrl-C reaches only the parent, which ends the child.
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environment,
            start_new_session=True,
        )
        try:
            with MemoryWatch(child.pid) as memory:
                done = _listen(child, job, advance, patience_s)
                status = child.wait()
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                _close(pipe)
        if status != 0 or done is None:
            raise _explain(status, _last_words(words), memory.peaks)
    return {**done, "peak_memory_bytes": memory.peaks}


def _same_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Keeps what the child needs of the environment, without values that differ between builds (fixed_addresses.py)."""
    kept = {name: value for name, value in given.items() if name in KEPT or name.startswith("TRITON_")}
    home, rest = str(Path(tensorwright.__file__).parent.parent), kept.get("PYTHONPATH")
    path = f"{home}{os.pathsep}{rest}" if rest else home
    return {**kept, "PATH": os.defpath, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


def _listen(child: subprocess.Popen[bytes], job: Job, advance: Advance, patience_s: float) -> dict[str, Any] | None:
    """Reads messages until the child closes its side. Returns None if the child never said that it was done."""
    assert child.stdin is not None
    try:
        child.stdin.write(job.to_line().encode())
        child.stdin.flush()
    except BrokenPipeError:
        return None
    done = None
    for message in _messages(child, patience_s):
        if "progress" in message:
            advance(*message["progress"])
        elif "failed" in message:
            raise _error_class(message["failed"])(message["text"])
        else:
            done = message["done"]
    return done


def _messages(child: subprocess.Popen[bytes], patience_s: float) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    waiting = b""
    while True:
        if not select.select([child.stdout], [], [], patience_s)[0]:
            raise BuildError(
                f"TensorRT has said nothing for {patience_s:g} seconds and was stopped; "
                "build again, for fewer SMs or on a machine that is less busy"
            )
        data = os.read(child.stdout.fileno(), 1 << 16)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        yield from map(json.loads, lines)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):  # nobody reads what was not sent
            pipe.close()


def _error_class(name: str) -> type[TensorwrightError]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, TensorwrightError) else BuildError


def _last_words(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
    return file.read().decode(errors="replace").strip()


def _explain(status: int, words: str, peaks: dict[str, int]) -> TensorwrightError:
    """Returns the error for a child that ended without an answer."""
    said = f"; its last words: {words}" if words else ""
    held = f" with {peaks['resident'] / 1e6:.0f} MB in memory" if "resident" in peaks else ""
    number = -status if status < 0 else status - 128 if status > 128 else 0
    if number == signal.SIGKILL:
        return OutOfMemoryError(
            f"the process that builds the TensorRT engine was killed{held}, most likely by the system for want of "
            f"memory; free some, or build for fewer SMs{said}"
        )
    if number == signal.SIGABRT:
        return BuildError(f"the TensorRT library aborted its process{held}; nothing was written{said}")
    if number:
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        return BuildError(f"the process that builds the TensorRT engine ended by {name}{held}{said}")
    return BuildError(f"the process that builds the TensorRT engine ended with status {status} and no answer{said}")
