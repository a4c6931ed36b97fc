"""The collector of cycles pauses inside, and is afterwards as it was before."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tensorwright.builder.build import build
from tensorwright.builder.process import paused_collector
from tensorwright.builder.trace import export
from tensorwright.errors import TraceError


@paused_collector()
def fail() -> None:
    raise TraceError("on" if gc.isenabled() else "off")


def test_it_is_on_again_after_an_error() -> None:
    for _ in range(2):
        assert gc.isenabled()
        with pytest.raises(TraceError, match="off"):
            fail()
    assert gc.isenabled()


def test_who_had_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_build_traces_without_it(pico_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **how: object) -> None:
        raise TraceError("on" if gc.isenabled() else "off")

    monkeypatch.setattr(export, "trace_for_engine", stop)
    with pytest.raises(TraceError, match="off"):
        build(pico_model, tmp_path / "engine", accuracy="none")
    assert gc.isenabled()
