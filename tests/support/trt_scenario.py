"""Many requests through the C++ engine on a made-up TensorRT engine: what every mistake of the bookkeeping spoils."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.made_trt_engine import Stand
from support.paged_network import continuation, next_token
from support.toy_executor import collect, sampling
from tensorwright.errors import DeviceError
from tensorwright.runtime import _runtime

BLOCKS = 80


def start(executor: Any, blocks: int = BLOCKS, **changes: Any) -> Any:
    made = _runtime.EngineOptions()
    made.kv_cache_bytes = blocks * sum(executor.facts()["block_bytes"])
    made.max_batch_size, made.max_num_tokens, made.max_prompt_rows = 6, 16, 5
    for name, value in changes.items():
        setattr(made, name, value)
    return _runtime.Engine(executor, made)


def prompts(vocab: int, count: int = 10) -> list[list[int]]:
    """Some begin alike, so that blocks are shared."""
    rng = np.random.default_rng(5)
    stem = rng.integers(vocab, size=24).tolist()
    return [stem[: [0, 9, 24][i % 3]] + rng.integers(vocab, size=1 + 3 * i % 17).tolist() for i in range(count)]


def run_scenario(stand: Stand, executor: Any, **changes: Any) -> dict[str, Any]:
    """Asserts every token, and that nothing was at fault and all is given back; the engine's statistics. The engine
    makes its steps when all requests are there, so that these are the same on every machine; and in another thread than
    the executor was made in, as its own loop does."""
    engine = start(executor, debug_stepped=True, **changes)
    try:
        asked = prompts(stand.manifest.vocab_size)
        for i, prompt in enumerate(asked):
            engine.submit(i, prompt, sampling(5 + i, n=2 if i == 4 else 1))
        loop = threading.Thread(target=lambda: all(iter(engine.turn, False)))
        loop.start()
        loop.join()
        tokens, last = collect(engine, len(asked) + 1)
        stats = engine.stats()
    finally:
        engine.shutdown(False)
        executor.close()
    for name, event in last.items():
        assert event.finish == "length", f"request {name}: {event.error}"
        assert tokens[name] == continuation(asked[name[0]], 5 + name[0], stand.manifest), f"request {name}"
    assert not stand.cuda.faults
    assert stand.cuda.is_clean()
    for profile, counts in stand.trt.ran:
        assert profile == int(set(counts) == {1}), f"profile {profile} for {counts} tokens"
    assert {step["block_tables.0"][1] for step in stand.trt.network.steps} <= {8, 16}
    return stats


def made_step(starts: list[int], lens: list[int], tables: list[list[list[int]]], rows: list[int] | None = None) -> Any:
    """Like a `_runtime.Step`: sequence s has tokens starts[s] to starts[s + 1], which end its context of lens[s]."""
    counts = np.diff(starts)
    positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lens, counts, strict=True)])
    owner = np.repeat(np.arange(len(lens)), counts)
    wide = [np.array(table, np.int32) for table in tables]
    slots = [(t[owner, positions // 4] * 4 + positions % 4).astype(np.int32) for t in wide]
    return SimpleNamespace(
        token_ids=(positions % 7).astype(np.int32),
        positions=positions.astype(np.int32),
        seq_starts=np.array(starts, np.int32),
        context_lens=np.array(lens, np.int32),
        logit_rows=np.array([end - 1 for end in starts[1:]] if rows is None else rows, np.int32),
        block_tables=lambda group: wide[group],
        slots=lambda group: slots[group],
    )


def expected(step: Any, manifest: Any) -> list[int]:
    """Tokens that follow each logit row, for sequences whose token at position p is p % 7."""
    return [next_token([at % 7 for at in range(step.positions[row] + 1)], manifest) for row in step.logit_rows]


def check_block_copies(stand: Stand, executor: Any) -> None:
    """A block is copied in every layer of its group and in no other."""
    executor.allocate([20, 20], 16, 8, 4)
    executor.run(made_step([0, 4], [4], [[[5]], [[5]]]))
    executor.copy_block(0, 5, 3)
    moved = made_step([0, 1], [5], [[[3, 8]], [[5, 8]]])
    assert executor.run(moved).argmax(1).tolist() == expected(moved, stand.manifest)
    wrong = made_step([0, 1], [5], [[[3, 8]], [[3, 8]]])  # group 1 was not copied
    assert executor.run(wrong).argmax(1).tolist() != expected(wrong, stand.manifest)
    executor.close()


def check_padding(stand: Stand, executor: Any) -> None:
    """What a table is widened by names no block, also where a wider table stood before."""
    executor.allocate([20, 20], 16, 8, 4)
    for length in (40, 3):
        table = list(range(-(-length // 4)))
        executor.run(made_step([0, 1], [length], [[table], [table]]))
    for array in stand.trt.network.tables.values():
        assert array.tolist() == [[0] + [-1] * 7]
    executor.close()


def check_refusals(stand: Stand, executor: Any) -> None:
    """What TensorRT refuses in a step is an error of that step; the next one runs."""
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, 1], [1], [[[5]]] * 2)
    for method in ("set_input_shape", "set_tensor_address", "execute_async_v3"):
        stand.trt.refuse = {method: 3 + stand.cuda.names().count(method) if method[0] == "s" else 1}
        with pytest.raises(DeviceError, match=r"TensorRT refuses .*told to refuse"):
            executor.run(step)
        assert not any(stand.cuda.streams.values()), "work is left that reads the buffers"
    assert executor.run(step).argmax(1).tolist() == expected(step, stand.manifest)
    executor.close()


def check_rows(stand: Stand, executor: Any) -> None:
    """A chunk without logits returns none, and still writes its positions."""
    executor.allocate([20, 20], 16, 8, 4)
    tables = [[[5, 9]], [[1, 2]]]
    assert executor.run(made_step([0, 5], [5], tables, rows=[])).shape == (0, 11)
    assert stand.trt.network.steps[-1]["logit_rows"] == (1,)  # the least that the profile takes
    last = made_step([0, 1], [6], tables)
    assert executor.run(last).argmax(1).tolist() == expected(last, stand.manifest)
    executor.close()


CHECKS = (check_block_copies, check_padding, check_refusals, check_rows)
"""Of a fresh executor of make_manifest(), which each closes."""
