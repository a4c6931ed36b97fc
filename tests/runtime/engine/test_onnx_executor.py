"""Engines of target onnx: steps cut into calls, the slot cache, and the whole runtime on top of ONNX Runtime."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from support.isa_levels import PRESENT
from support.onnx_engine import MAX_SEQ_LEN, SLOT_BYTES, VOCAB, OnnxModel, seal, write_onnx_engine
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.engine_format.file_names import ONNX_IO
from tensorwright.errors import EngineError, InvalidOptionError, MissingDependencyError, OutOfMemoryError
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.onnx.calls import MAX_IDLE, split
from tensorwright.runtime.engine.onnx.device_cache import Copier
from tensorwright.runtime.engine.onnx.executor import OnnxExecutor

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return OnnxModel()


@pytest.fixture(scope="module")
def engine(model: OnnxModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_onnx_engine(tmp_path_factory.mktemp("onnx") / "engine", model)


@pytest.fixture(scope="module")
def llm(engine: Path) -> Iterator[LLM]:
    with LLM(engine, threads=1, kv_cache_memory=8 * SLOT_BYTES, max_batch_size=8, max_num_tokens=64) as llm:
        yield llm


def step(*sequences: tuple[int, list[int], int], rows: list[int] | None = None) -> Any:
    """(slot, tokens, past) of each; logits of the last token of each unless rows says otherwise."""
    starts = np.cumsum([0, *(len(tokens) for _, tokens, _ in sequences)])
    table = np.array([[slot] for slot, _, _ in sequences], np.int32).reshape(-1, 1)
    return SimpleNamespace(
        token_ids=np.array([token for _, tokens, _ in sequences for token in tokens], np.int32),
        seq_starts=starts.astype(np.int32),
        context_lens=np.array([past + len(tokens) for _, tokens, past in sequences], np.int32),
        logit_rows=np.array(starts[1:] - 1 if rows is None else rows, np.int32),
        block_tables=lambda group: table,
    )


def test_prompts_are_calls_of_their_own_and_decodes_go_together() -> None:
    held = np.array([0, 9, 4, 7, 0, 0])
    calls = split(step((3, [11], 7), (1, [12], 9), (4, [13, 14, 15], 2), (2, [16], 4)), held, 64)
    assert [(call.first_slot, call.batch, call.seq) for call in calls] == [(1, 3, 1), (4, 1, 3)]
    decode, prompt = calls
    assert (prompt.tokens, prompt.past, prompt.wanted, prompt.rows) == ((2, 3, 4), (2,), (2,), (2,))
    assert (decode.tokens, decode.past, decode.wanted, decode.rows) == ((1, 5, 0), (9, 4, 7), (2, 0, 1), (0, 1, 3))
    assert decode.total == 10
    assert decode.seqlens_k().tolist() == [9, 4, 7]
    assert decode.positions().tolist() == [[9], [4], [7]]


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([5], [(5, 1)]),
        ([0, 2], [(0, 3)]),
        ([0, MAX_IDLE + 1], [(0, MAX_IDLE + 2)]),
        ([0, MAX_IDLE + 2], [(0, 1), (MAX_IDLE + 2, 1)]),
        ([6, 8], [(6, 1), (8, 1)]),  # slot 7 is full: it has no room for an idle row
    ],
)
def test_small_gaps_are_bridged_by_idle_rows(slots: list[int], runs: list[tuple[int, int]]) -> None:
    held = np.full(12, 3)
    held[7] = 64
    calls = split(step(*((slot, [10 + slot], 3) for slot in slots)), held, 64)
    assert [(call.first_slot, call.batch) for call in calls] == runs
    token_ids = np.array([10 + slot for slot in slots], np.int32)
    for call in calls:
        mine = [slot in slots for slot in range(call.first_slot, call.first_slot + call.batch)]
        assert call.token_ids(token_ids)[:, 0].tolist() == [
            10 + call.first_slot + at if there else 0 for at, there in enumerate(mine)
        ]
        assert len(call.wanted) == sum(mine)


def test_logits_of_several_positions_or_none() -> None:
    held = np.zeros(2, np.int64)
    one, prompt = split(step((0, [1, 2, 3], 0), (1, [4], 0), rows=[0, 2, 2, 3]), held, 64)
    assert [(call.wanted, call.rows) for call in (prompt, one)] == [((0, 2, 2), (0, 1, 2)), ((0,), (3,))]
    (none,) = split(step((0, [1, 2], 0), rows=[]), held, 64)
    assert (none.wanted, none.rows) == ((), ())


@pytest.fixture
def executor(engine: Path) -> Iterator[OnnxExecutor]:
    executor = OnnxExecutor(open_engine(engine), threads=1)
    executor.allocate([8], 64, 64, 8)
    yield executor
    executor.close()


def test_each_slot_keeps_its_own_sequence(executor: OnnxExecutor, model: OnnxModel) -> None:
    """Chunks, decode rows side by side and apart, idle rows over a slot in use, a copied slot, a slot used anew."""
    texts = {slot: [(7 * slot + 3 * at) % VOCAB for at in range(30)] for slot in range(8)}

    def check(*parts: tuple[int, int, int]) -> None:  # (slot, first, end)
        given = step(*((slot, texts[slot][first:end], first) for slot, first, end in parts))
        logits = executor.run(given)
        expected = np.stack([model.forward(texts[slot][:end])[-1] for slot, _, end in parts])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)

    check((5, 0, 4), (1, 0, 9), (2, 0, 1))
    check((1, 9, 10), (5, 4, 5), (2, 1, 6))  # 2, 3 and 4 lie between
    check((5, 5, 6), (1, 10, 11))
    check((2, 6, 7), (1, 11, 20), (5, 6, 7))  # what the idle row wrote into slot 2 was not read
    executor.copy_block(0, 1, 7)
    texts[7] = [*texts[1][:20], 5, 6]
    check((1, 20, 21), (7, 20, 21), (2, 7, 8))
    texts[5] = [9, 8, 7, 6]
    check((5, 0, 2), (1, 21, 22), (7, 21, 22))
    check((5, 2, 3), (1, 22, 23))
    assert executor.run(step((0, [1, 2, 3], 0), rows=[])).shape == (0, VOCAB)
    np.testing.assert_allclose(
        executor.run(step((3, [4, 5, 6], 0), rows=[0, 1, 2])), model.forward([4, 5, 6]), rtol=0, atol=1e-4
    )


def test_tokens_are_the_models_whatever_the_company(llm: LLM, model: OnnxModel) -> None:
    prompts = [[(31 * i + 5 * at * at) % VOCAB for at in range(1 + 5 * i % 23)] for i in range(12)]
    params = [SamplingParams(max_tokens=6 + i, temperature=0, ignore_eos=True) for i in range(12)]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for i, output in enumerate(outputs):
        assert output.outputs[0].token_ids == model.generate(prompts[i], 6 + i), f"prompt {i}"
    stats = llm.get_stats()
    assert (stats["total_blocks"], stats["block_size"], stats["used_blocks"]) == (8, MAX_SEQ_LEN, 0)
    assert stats["prefix_hit_tokens"] == 0


def test_completions_fork_and_prompts_are_scored(llm: LLM, model: OnnxModel) -> None:
    prompt = [3, 1, 4, 1, 5]
    params = SamplingParams(n=3, max_tokens=8, temperature=1.0, seed=2, ignore_eos=True, prompt_logprobs=0, logprobs=0)
    output = llm.generate({"prompt_token_ids": prompt}, params)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1

    def logprob(context: list[int], token: int) -> float:
        logits = model.forward(context)[-1]
        return float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))

    for at, table in enumerate(output.prompt_logprobs[1:], 1):
        assert table[prompt[at]].logprob == pytest.approx(logprob(prompt[:at], prompt[at]), abs=1e-4)
    for completion in output.outputs:
        for at, (token, table) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            context = [*prompt, *completion.token_ids[:at]]
            assert table[token].logprob == pytest.approx(logprob(context, token), abs=1e-4)


def test_fewer_slots_than_requests_wait_and_aborts_free_one(engine: Path, model: OnnxModel) -> None:
    with LLM(engine, threads=1, kv_cache_memory=2 * SLOT_BYTES, max_batch_size=4, max_prefill_chunk=3) as llm:
        # The first step does not end before the third request, which waits for a slot, is aborted.
        aborted = threading.Event()
        held = [lambda ids, row: aborted.wait(PATIENCE) and None]
        forever = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        params = [replace(forever, logits_processors=held), *[forever] * 4]
        handles = [llm.generate_async({"prompt_token_ids": [i, 2, 3, 4]}, params[i]) for i in range(5)]
        assert handles[2].abort()
        aborted.set()
        for i in (0, 1, 3, 4):
            assert handles[i].result().outputs[0].token_ids[:20] == model.generate([i, 2, 3, 4], 20)
        assert handles[2].result().outputs[0].finish_reason == "abort"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"load": "copy"}, "load='copy': only engines of target cpu"),
        ({"numa": "interleave"}, "numa='interleave' needs an engine of target cpu"),
        ({"enable_prefix_caching": True}, "each sequence has a cache of its own"),
        ({"dtype": "float16"}, "is an engine built as float32"),
    ],
)
def test_options_that_do_not_apply_are_refused(engine: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        LLM(engine, **options)


def test_what_does_not_apply_is_refused(llm: LLM, engine: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="only an engine of target cpu measures its instructions"):
        llm.profile(True)
    text = tmp_path / "text"
    text.write_text("some words")
    for command in (["eval", str(engine), str(text)],):
        done = CliRunner().invoke(cli, command)
        assert isinstance(done.exception, InvalidOptionError)
        assert "tensorwright eval needs an engine of target cpu" in str(done.exception)
    with pytest.raises(OutOfMemoryError, match=f"at least one block of {SLOT_BYTES} bytes.*smaller --max-seq-len"):
        LLM(engine, kv_cache_memory=SLOT_BYTES - 1)


def test_commands_work_on_it(engine: Path) -> None:
    facts = json.loads(CliRunner().invoke(cli, ["inspect", str(engine), "--json"], catch_exceptions=False).stdout)
    assert (facts["target"], facts["kernels"]) == ("onnx", [])
    assert "Kernels" not in CliRunner().invoke(cli, ["inspect", str(engine)], catch_exceptions=False).stdout
    load = ["--input-len", "8", "--output-len", "4", "--requests", "2", "--threads", "1", "--json"]
    if "avx2" in PRESENT:  # bench measures the processor's ceilings, which takes that
        bench = CliRunner().invoke(cli, ["bench", "latency", str(engine), *load], catch_exceptions=False)
        assert json.loads(bench.stdout)["phases"] == {}
    ran = CliRunner().invoke(
        cli, ["run", str(engine), "--prompt", "ab", "--max-tokens", "3", "--temperature", "0"],
        catch_exceptions=False,
    )  # fmt: skip
    assert ran.exit_code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2, this tensorwright reads 1"),
        ({"inputs": {}}, "'token_ids' is missing or of the wrong type"),
        ({"cache": []}, "kv_block_bytes is 16384, but 0 in onnx/io.json: files of two builds"),
        ({"vocab_size": 256}, "vocab_size is 257, but 256 in onnx/io.json: files of two builds"),
        ({"dtype": "float16"}, "dtype is float32, but float16 in onnx/io.json: files of two builds"),
        ({"positions_shape": "[rows]"}, r"'positions_shape' \('\[rows\]'\) is missing or of the wrong type"),
    ],
)
def test_a_wrong_manifest_is_refused(model: OnnxModel, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    root = write_onnx_engine(tmp_path / "engine", model)
    io = root / "onnx/io.json"
    io.write_text(json.dumps(json.loads(io.read_text()) | change))
    seal(root)
    with pytest.raises(EngineError, match=said):
        LLM(root)


def test_a_model_of_another_build_is_refused(model: OnnxModel, tmp_path: Path) -> None:
    root = write_onnx_engine(tmp_path / "engine", model)
    io = root / "onnx/io.json"
    whole = io.read_text()
    io.write_text(json.dumps(json.loads(whole) | {"vocab_size": 256}))
    seal(root)
    opened = open_engine(root)
    fewer = replace(opened, config=replace(opened.config, model=replace(opened.model, vocab_size=256)))
    with pytest.raises(EngineError, match=r"model\.onnx: a row of logits has 257 values, but vocab_size is 256"):
        OnnxExecutor(fewer, threads=1)
    io.write_text(whole)
    io.write_text(io.read_text().replace("past_k.1", "past_k.9"))
    seal(root)
    with pytest.raises(EngineError, match=r"model\.onnx: has no past_k\.9, as io\.json says: two builds are mixed"):
        LLM(root)


def test_a_model_that_does_not_load_is_an_engine_error(model: OnnxModel, tmp_path: Path) -> None:
    root = write_onnx_engine(tmp_path / "engine", model)
    (root / "onnx/model.onnx").write_bytes(b"not a model")
    seal(root)
    with pytest.raises(EngineError, match=r"model.onnx: onnxruntime .* does not load it"):
        LLM(root)


def test_providers_and_packages_are_named(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ONNX_PROVIDER", "abacus")
    with pytest.raises(InvalidOptionError, match="must be one of cpu, cuda, got 'abacus'"):
        LLM(engine)
    monkeypatch.setenv("TENSORWRIGHT_ONNX_PROVIDER", "cuda")
    with pytest.raises(InvalidOptionError, match=r"built as float32, but .* on GPUs is float16 alone"):
        LLM(engine)
    if "CUDAExecutionProvider" not in importlib.import_module("onnxruntime").get_available_providers():
        opened = open_engine(engine)
        io = json.dumps(opened.read_json(ONNX_IO) | {"dtype": "float16"}).encode()
        other = replace(opened.config, dtype="float16")
        opened = replace(opened, config=other, texts={**opened.texts, ONNX_IO: io})
        with pytest.raises(MissingDependencyError, match="pip install onnxruntime-gpu"):
            OnnxExecutor(opened, threads=1, provider="cuda")
    monkeypatch.delenv("TENSORWRIGHT_ONNX_PROVIDER")
    monkeypatch.setitem(importlib.import_module("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '.\[onnx\]'"):
        LLM(engine)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_copier_of_device_memory_copies(dtype: str) -> None:
    """Here on the processor's memory, with the model that runs on a GPU."""
    numbers = np.arange(60, dtype=dtype)
    copier = Copier(importlib.import_module("onnxruntime"), dtype, "cpu")
    size = numbers.itemsize
    copier.copy(numbers.ctypes.data + 3 * size, numbers.ctypes.data + 40 * size, 10 * size)
    assert numbers[38:52].tolist() == [38, 39, *range(3, 13), 50, 51]


def test_device_memory_must_be_asked_for(executor: OnnxExecutor) -> None:
    executor._provider = "cuda"
    sizes = {"max_batch_size": 8, "max_num_tokens": 64, "max_rows": 64}
    with pytest.raises(InvalidOptionError, match=f"kv_cache_memory must be given .* multiple of {SLOT_BYTES} bytes"):
        executor.kv_cache_bytes(None, **sizes)
    assert executor.kv_cache_bytes(3 * SLOT_BYTES, **sizes) == 3 * SLOT_BYTES
