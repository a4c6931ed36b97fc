"""On a GPU: a TensorRT-RTX engine that was built without naming an SM deserializes and computes what the model does.

NVIDIA says that such engines run on SM 80, 86, 89, 120 "and later"; of Hopper (SM 90), not named, nothing is known:
opening one measures it: the first test's output says that it works, or the reason of the skips why it does not.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.nvidia import REASON, no_driver
from tensorwright.errors import EngineError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(no_driver(), reason=REASON)]

DOCUMENTED = (80, 86, 89, 120)
IDS = [(7 * i * i + 11 * i + 3) % 4000 + 10 for i in range(100)]
CHUNK = 16  # tokens of a prefill step, all of whose logits are asked for
LIMITS = {"max_batch_size": CHUNK, "max_num_tokens": 512}


@pytest.fixture(scope="module", params=[("float16", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8")])
def engine(request: pytest.FixtureRequest, pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(engine directory, dtype, dtype of its cache)"""
    from tensorwright import build

    pytest.importorskip("tensorrt_rtx")
    dtype, kv = request.param
    path = tmp_path_factory.mktemp(f"rtx-{dtype}-{kv}") / "engine"
    build(pico_model, path, target="tensorrt-rtx", dtype=dtype, kv_cache_dtype=kv, accuracy="none", **LIMITS)
    return path, dtype, kv


@pytest.fixture(scope="module")
def executor(engine: Any) -> Any:
    from tensorwright.runtime.engine.engine_dir import open_engine
    from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor

    try:
        opened = TensorRtExecutor(open_engine(engine[0]))
    except EngineError as error:
        if _sm() in DOCUMENTED:
            raise
        pytest.skip(f"a default engine does not run on SM {_sm()}: {error}")
    opened.allocate([32] * opened.manifest.groups, CHUNK, CHUNK, CHUNK)
    yield opened
    opened.close()


def _sm() -> int:
    from cuda.bindings import driver

    from tensorwright.runtime.engine.tensorrt.cuda import Cuda

    cuda = Cuda(driver)
    try:
        return cuda.sm
    finally:
        cuda.close()


def made_step(ids: list[list[int]], done: list[int], tables: np.ndarray, block: int) -> Any:
    """The next tokens ids[s] of sequences of which done[s] are in the cache; logits of all. One cache group."""
    counts = [len(part) for part in ids]
    positions = np.concatenate([np.arange(d, d + c) for d, c in zip(done, counts, strict=True)])
    owner = np.repeat(np.arange(len(ids)), counts)
    slots = tables[owner, positions // block] * block + positions % block
    arrays = {
        "token_ids": np.concatenate(ids),
        "positions": positions,
        "seq_starts": np.cumsum([0, *counts]),
        "context_lens": np.add(done, counts),
        "logit_rows": np.arange(len(positions)),
    }
    shared = {name: np.asarray(array, np.int32) for name, array in arrays.items()}
    return SimpleNamespace(
        **shared, block_tables=lambda g: tables.astype(np.int32), slots=lambda g: slots.astype(np.int32)
    )


@pytest.fixture(scope="module")
def logits(executor: Any) -> np.ndarray:
    """[len(IDS), vocab]: most of it in chunks of a prompt, the last four tokens one by one as a decode does."""
    block = executor.manifest.block_size
    table = np.array([[3 * i % 31 for i in range(-(-len(IDS) // block))]])
    sizes = [CHUNK] * (len(IDS) // CHUNK) + [1] * (len(IDS) % CHUNK)
    rows, done = [], 0
    for size in sizes:
        rows.append(executor.run(made_step([IDS[done : done + size]], [done], table, block)).copy())
        done += size
    return np.concatenate(rows)


def test_a_default_engine_deserializes_on_this_gpu(executor: Any, record_property: Any) -> None:
    record_property("default engine runs on SM", _sm())
    print(f"a default TensorRT-RTX engine deserializes on SM {_sm()}")
    assert executor.manifest.sms == ()
    assert executor.facts()["vocab_size"] == executor.manifest.vocab_size


def rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(difference, dtype=np.float64))))


def test_its_logits_are_no_further_off_than_transformers_are(engine: Any, logits: np.ndarray, pico_model: Path) -> None:
    import torch

    from support.harness import reference_logits

    _, dtype, kv = engine
    exact = reference_logits(pico_model, IDS, torch.float32)
    theirs = rms(reference_logits(pico_model, IDS, getattr(torch, dtype)) - exact)
    # Both round every activation to the same type, in another order; an int8 cache rounds keys and values once more,
    # to 8 bits where bfloat16 has 8 as well.
    assert rms(logits - exact) <= (3.0 if kv == "int8" else 2.0) * theirs


def test_a_sequence_in_company_computes_what_it_does_alone(executor: Any, logits: np.ndarray) -> None:
    """To the rounding of another batch shape: TensorRT may choose other kernels for it."""
    from tolerances import chain_tolerance

    block, width = executor.manifest.block_size, 4
    tables = np.arange(8 * width).reshape(8, width) % 32
    executor.run(made_step([IDS[:1]] * 8, [0] * 8, tables, block))
    second = executor.run(made_step([IDS[1:2]] * 8, [1] * 8, tables, block)).copy()
    allowed = chain_tolerance(executor.manifest.dtype, 1024, 8, float(np.abs(logits).max()))
    assert np.abs(second - logits[1]).max() <= allowed
    assert np.abs(second - second[0]).max() <= allowed


def test_a_copied_block_is_read_like_its_original(executor: Any) -> None:
    block = executor.manifest.block_size
    first, other = np.array([[5, 6, 7, 8]]), np.array([[9, 6, 7, 8]])
    executor.run(made_step([IDS[:CHUNK]], [0], first, block))
    expected = executor.run(made_step([IDS[CHUNK : CHUNK + 1]], [CHUNK], first, block)).copy()
    for group in range(executor.manifest.groups):
        executor.copy_block(group, 5, 9)
    again = executor.run(made_step([IDS[CHUNK : CHUNK + 1]], [CHUNK], other, block))
    assert np.array_equal(again, expected)


def test_the_whole_of_LLM_answers_as_the_model_would(engine: Any, executor: Any, pico_model: Path) -> None:
    """Every token it picks is, in float32 too, the best or as good as the best to the type's own error."""
    import torch

    from support.harness import reference_logits, worst
    from tensorwright import LLM, SamplingParams

    path, dtype, _ = engine
    prompts = [{"prompt_token_ids": IDS[: 5 + 9 * i]} for i in range(8)]
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    with LLM(path, max_batch_size=8, max_num_tokens=64, max_prompt_logprob_rows=1) as llm:
        outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids, answer = prompt["prompt_token_ids"], list(output.outputs[0].token_ids)
        assert len(answer) == 24
        exact = reference_logits(pico_model, ids + answer, torch.float32)[len(ids) - 1 : -1]
        theirs = reference_logits(pico_model, ids + answer, getattr(torch, dtype)).astype(np.float32)
        slack = 6 * worst(theirs[len(ids) - 1 : -1], exact)  # both logits of a comparison may be off, by 3 times that
        assert (exact.max(1) - exact[np.arange(24), answer] <= slack).all()
