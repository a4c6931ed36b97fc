"""The parent survives all that the building process can do; with made-up children, no TensorRT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.tensorrt_jobs import make_job
from support.waiting import PATIENCE, wait_until
from tensorwright.builder import process
from tensorwright.builder.emit.tensorrt.job import Job
from tensorwright.builder.emit.tensorrt.library import FLAVOURS, Library
from tensorwright.builder.emit.tensorrt.run_child import run_child
from tensorwright.errors import BuildError, InvalidOptionError, OutOfMemoryError

JOB = make_job(Path("/nowhere/model.onnx"))
LIBRARY = Library(FLAVOURS["tensorrt-rtx"])


def run(code: str, *, patience_s: float = PATIENCE, advance=lambda done, total: None):
    """A child that runs `code` after it read its job."""
    text = f"import sys, os, json, time\njob = sys.stdin.readline()\n{code}"
    return run_child(JOB, LIBRARY, advance, command=(sys.executable, "-c", text), patience_s=patience_s)


def test_a_job_arrives_as_it_was_sent():
    done = run("print(json.dumps({'done': {'job': job}}))")
    assert Job.from_line(done["job"]) == JOB


def test_progress_and_the_result_are_told():
    told = []
    lines = ['{"progress": [1, 4]}', '{"progress": [4, 4]}', '{"done": {"plan_bytes": 7}}']
    done = run(f"print(*{lines!r}, sep=chr(10))", advance=lambda *progress: told.append(progress))
    assert told == [(1, 4), (4, 4)]
    assert done["plan_bytes"] == 7


def test_peak_memory_of_the_child_is_known(tmp_path, monkeypatch):
    """The child keeps its memory until a sample has seen it."""
    seen, one_sample, enough = [], process.sample, tmp_path / "enough"

    def sample(number):
        found = one_sample(number)
        seen.append(found.get("anonymous", 0))
        return found

    def advance(done, total):
        wait_until(lambda: max(seen, default=0) > 50e6, "a sample of the child's memory")
        enough.touch()

    monkeypatch.setattr(process, "sample", sample)
    hold = "held = b'x' * 50_000_000; print('{\"progress\": [0, 1]}', flush=True)"
    wait = f"while not os.path.exists({str(enough)!r}): time.sleep(0.01)"
    done = run(f"{hold}\n{wait}\nprint('{{\"done\": {{}}}}')", advance=advance)
    assert 50e6 < done["peak_memory_bytes"]["anonymous"] < 150e6


def test_a_typed_error_of_the_child_is_raised_here():
    with pytest.raises(InvalidOptionError, match=r"^say otherwise$"):
        run("print(json.dumps({'failed': 'InvalidOptionError', 'text': 'say otherwise'}))")


def test_a_class_that_is_no_error_becomes_a_build_error():
    with pytest.raises(BuildError, match=r"^text$"):
        run("print(json.dumps({'failed': 'os', 'text': 'text'}))")


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (
            "sys.stderr.write('terminate called'); sys.stderr.flush(); os.abort()",
            BuildError,
            "aborted.*terminate called",
        ),
        ("sys.exit(134)", BuildError, "aborted its process"),
        ("os.kill(os.getpid(), 11)", BuildError, "ended by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", OutOfMemoryError, "killed.*for want of memory"),
        ("raise ValueError('a fault of ours')", BuildError, "(?s)status 1 and no answer.*a fault of ours"),
        ("sys.exit(0)", BuildError, "status 0 and no answer"),
        ("print('{\"done\": {}}', flush=True); os.abort()", BuildError, "aborted"),
    ],
)
def test_every_way_to_end_has_its_error(code, error, text):
    with pytest.raises(error, match=text):
        run(code)


def test_a_child_that_dies_before_it_reads_is_an_error():
    with pytest.raises(BuildError, match="status 3"):
        run_child(JOB, LIBRARY, lambda *_: None, command=(sys.executable, "-c", "import os; os._exit(3)"))


def test_silence_ends_the_child(monkeypatch):
    begun, start = [], subprocess.Popen

    def popen(*arguments, **options):
        begun.append(start(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(BuildError, match=r"said nothing for 0.5 seconds"):
        run("time.sleep(600)", patience_s=0.5)
    (child,) = begun
    assert not is_alive(child.pid)


@pytest.mark.usefixtures("hears_interrupts")
def test_ctrl_c_ends_the_child_and_comes_through(tmp_path):
    path = tmp_path / "pid"

    def interrupt() -> None:
        wait_until(lambda: path.exists() and path.read_text(), "the child's number")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(f"open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    assert not is_alive(int(path.read_text()))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
