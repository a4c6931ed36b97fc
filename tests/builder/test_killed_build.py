"""A real `build-engine --force` that is killed; test_crashes.py kills a writer alone, before each step on the disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fake_runtime import write_engine
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.runtime.engine.engine_dir import open_engine

OLD, NEXT = "a" * 32, "b" * 32
LOOK = 0.0005  # seconds between two looks at the disk
PATIENCE = 300.0  # seconds; a build that takes longer is stuck


def put(out: Path, source: str) -> None:
    """An engine that says where it is from, through the writer of every build."""
    made = write_engine(out.parent.parent / f"made-{source[0]}-{out.parent.name}")
    with EngineWriter(out, overwrite=True) as writer:
        for path in sorted(path for path in made.rglob("*") if path.is_file() and path.name != "checksums.txt"):
            name = str(path.relative_to(made))
            writer.write(name, path.read_bytes().replace(b'"hash": "0"', f'"hash": "{source}"'.encode()))
        writer.commit()


def source_of(out: Path) -> str:
    """Of the whole engine at `out`, every file of which is held against its checksum."""
    return str(open_engine(out).config.source.hash)


@contextmanager
def building(model: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tensorwright.builder.cli", str(model), str(out), "--force", "--accuracy", "none"]
    with (out.parent.parent / f"{out.parent.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], out: Path, name: str) -> None:
    """Until the build has come to the file, or with "" to its folder; or has ended, if nobody looked in time."""
    limit = time.monotonic() + PATIENCE
    while not list(out.parent.glob(f".{out.name}.building-*/{name}".rstrip("/"))):
        if (ended := process.poll()) is not None:
            assert ended == 0, (out.parent.parent / f"{out.parent.name}.log").read_text()[-2000:]
            return
        assert time.monotonic() < limit
        time.sleep(LOOK)


def check_left(out: Path) -> None:
    """The old engine is there if the build had not come to its last file, else that or the new one, whatever the build
    did while nobody looked; and the next build removes what else there is."""
    half_built = list(out.parent.glob(f".{out.name}.building-*"))
    assert sorted(os.listdir(out.parent)) == sorted([out.name, *(path.name for path in half_built)])
    assert len(half_built) <= 1
    found = source_of(out)
    assert found == OLD or all((path / "checksums.txt").exists() for path in half_built)
    put(out, NEXT)
    assert source_of(out) == NEXT
    assert os.listdir(out.parent) == [out.name]


def test_a_killed_build_leaves_the_old_engine_or_the_new_one(pico_model: Path, tmp_path: Path) -> None:
    """At its beginning, in the middle of its files, and as the last of them appears. The one in the middle is stopped
    instead, and what it has on the disk then is taken for what it would leave: so one build is enough for both."""
    begun, middle, last = (tmp_path / name / "engine" for name in ("begun", "middle", "last"))
    for out in (begun, last):
        out.parent.mkdir()
        put(out, OLD)
    with building(pico_model, begun) as process:
        wait_for(process, begun, "")
        process.kill()
        process.wait()
    check_left(begun)
    with building(pico_model, last) as process:
        wait_for(process, last, "graph.txt")
        process.send_signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        shutil.copytree(last.parent, middle.parent)
        process.send_signal(signal.SIGCONT)
        check_left(middle)
        wait_for(process, last, "checksums.txt")
        process.kill()
        process.wait()
    check_left(last)
