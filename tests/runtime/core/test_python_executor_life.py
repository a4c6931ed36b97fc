"""Executors written in Python come and go: shutdown, the garbage collector, the interpreter's exit, at any moment."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import engine_config, write_engine
from support.places import TESTS
from support.toy_executor import VOCAB, ToyExecutor, options, sampling
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineStoppedError, InvalidRequestError, RequestAbortedError
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.executors import EXECUTORS, ExecutorKind


def test_shutdown_closes_it_while_a_step_runs_and_requests_wait(start: Any) -> None:
    running, go_on = threading.Event(), threading.Event()

    def hold(step: Any) -> None:
        running.set()
        go_on.wait(PATIENCE)

    executor = ToyExecutor(hook=hold)
    engine = start(executor)
    for i in range(3):
        engine.submit(i, [1, 2, 3], sampling(200))
    assert running.wait(PATIENCE)
    stopper = threading.Thread(target=lambda: engine.shutdown(False))
    stopper.start()
    with pytest.raises(EngineStoppedError):
        wait_until(lambda: engine.submit(9, [1], sampling(1)) is not None)
    assert not executor.closed.is_set()
    go_on.set()
    stopper.join(PATIENCE)
    assert not stopper.is_alive()
    assert executor.closed.is_set()
    engine.shutdown(False)  # closes once only: the toy asserts it


def test_its_own_thread_may_neither_stop_the_engine_nor_hang_by_dropping_it() -> None:
    said: list[Exception] = []
    held: list[Any] = []

    def drop(step: Any) -> None:
        assert held[0].called_here
        try:
            held[0].shutdown(False)
        except InvalidRequestError as error:
            said.append(error)
        held.clear()  # the last reference goes in the thread that destroying it must wait for
        gc.collect()

    executor = ToyExecutor(hook=drop)
    held.append(_runtime.Engine(executor, options(executor)))
    assert not held[0].called_here
    held[0].submit(1, [1, 2], sampling(50))
    assert executor.closed.wait(PATIENCE)
    assert "it would wait for itself" in str(said[0])
    assert len(executor.batches) == 1


def test_an_executor_that_refers_to_its_engine_is_collected_with_it() -> None:
    executor: Any = ToyExecutor()
    closed = executor.closed
    executor.engine = _runtime.Engine(executor, options(executor))
    executor.engine.submit(1, [1, 2], sampling(100))
    del executor

    def collected() -> bool:
        gc.collect()  # finds nothing while the engine's own thread is inside a step: its frames hold the executor
        return closed.is_set()

    wait_until(collected)


def test_an_llm_may_be_collected_by_its_engines_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its finalizer closes the engine, which that thread cannot wait for."""
    held: list[Any] = []

    def drop(step: Any) -> None:
        held.clear()
        gc.collect()

    executor = ToyExecutor(block_size=32, max_seq_len=128, hook=drop)
    monkeypatch.setitem(EXECUTORS, "cpu", ExecutorKind(lambda engine, opening: executor))
    monkeypatch.setattr(executor, "kv_cache_bytes", lambda asked, **sizes: 1 << 20, raising=False)
    limits = {"max_seq_len": 128, "block_size": 32, "kv_block_bytes": executor.facts()["block_bytes"][0]}
    model = {**engine_config()["model"], "vocab_size": VOCAB}
    held.append(LLM(write_engine(tmp_path / "engine", engine_config(limits=limits, model=model))))
    held[0].cycle = held[0]  # only the garbage collector sees that nobody has it
    params = SamplingParams(max_tokens=100, ignore_eos=True, detokenize=False)
    handle = held[0].generate_async({"prompt_token_ids": [1, 2]}, params)
    with pytest.raises(RequestAbortedError):
        handle.result()
    assert executor.closed.wait(PATIENCE)


@pytest.mark.parametrize("how", ["in a step", "idle", "dropped by a step"])
def test_the_interpreter_may_exit_with_an_engine_at_work(how: str) -> None:
    program = f"""
import sys, threading, time
sys.path.insert(0, {str(TESTS)!r})
from support.toy_executor import ToyExecutor
from tensorwright.runtime import _runtime
running, held = threading.Event(), []
def hook(step):
    if {how!r} == "dropped by a step":
        held.clear()
    running.set()
    time.sleep(0.05)
executor = ToyExecutor(hook=hook)
options = _runtime.EngineOptions()
options.kv_cache_bytes, options.max_num_tokens = 1 << 20, 64
held.append(_runtime.Engine(executor, options))
sampling = _runtime.Sampling()
sampling.max_tokens = 200
if {how!r} != "idle":
    held[0].submit(1, [1, 2, 3], sampling)
    running.wait()
print("started", end="")
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started", "")
