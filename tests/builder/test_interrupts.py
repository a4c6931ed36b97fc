"""A signal in the middle of putting an engine in place waits until that is done; at any other time it comes at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tensorwright import durable
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.process import terminate_as_interrupt, uninterrupted

pytestmark = pytest.mark.usefixtures("hears_interrupts")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits(number):
    done = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), terminate_as_interrupt(), uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), number)
        done.append("in place")
    assert done == ["in place"]
    assert signal.getsignal(number) == before


def test_two_signals_are_one_interrupt():
    with pytest.raises(KeyboardInterrupt), uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_an_error_within_is_not_lost():
    with pytest.raises(ValueError, match="first"), uninterrupted():
        raise ValueError("first")


def test_other_threads_leave_the_handlers_alone():
    seen = []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("moment", ["rename", "rmtree", "mkdir"])
def test_an_engine_is_put_in_place_whole(tmp_path, monkeypatch, replace, moment):
    """Ctrl-C in the very call that makes, renames or removes a folder: the engine is there whole, or as it was."""
    out = tmp_path / "engine"
    if replace:
        write(out, b"old")
    rename = (durable, "exchange") if replace else (os, "rename")
    where = {"rename": rename, "mkdir": (os, "mkdir"), "rmtree": (os, "rmdir")}[moment]
    real = getattr(*where)

    def interrupted(*args, **more):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args, **more)

    came = False
    monkeypatch.setattr(*where, interrupted)
    try:
        write(out, b"new")
    except KeyboardInterrupt:
        came = True
    monkeypatch.undo()
    assert came == (moment != "rmtree" or replace)
    assert [path.name for path in tmp_path.iterdir()] in (["engine"], [])
    if out.exists():
        assert (out / "data").read_bytes() in ((b"old", b"new") if replace else (b"new",))
        assert (out / "checksums.txt").exists()


def write(out, data):
    with EngineWriter(out, overwrite=True) as writer:
        writer.write_json("config.json", {"format": "tensorwright-engine"})
        writer.write("data", data)
        writer.commit()
