"""Engines as the builder writes them: io.json drives the executor, over the stand-in, to the cpu target's tokens."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from support.fake_gpu import FakeCuda
from support.fake_tensorrt import FakePlugins, FakeTensorRt
from support.graph_network import GraphNetwork
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.emit.step_limits import make_limits
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, KvLayer
from tensorwright.ir.parse import parse_graph
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.tensorrt import executor, library

profiles = pytest.importorskip("tensorwright.builder.emit.tensorrt.profiles")
pytest.importorskip("tensorwright.builder.target.tensorrt")
pytest.importorskip("tensorrt_rtx")

PROMPTS = [{"prompt_token_ids": ids} for ids in ([3, 5, 7], list(range(2, 42)), [9] * 33, [3, 5, 7, 11, 13])]
LIMITS = {"max_batch_size": 8, "max_num_tokens": 64}
MAX_SEQ_LEN = 96


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model, its engine of target tensorrt-rtx, its tokens on target cpu); its window is 16 positions."""
    folder = tmp_path_factory.mktemp("built")
    model = make_variant(folder / "model", "mistral", head_dim=16)
    shared: dict[str, Any] = {"dtype": "float32", "max_seq_len": MAX_SEQ_LEN, "accuracy": "none"}
    build(model, folder / "cpu", **shared)
    build(model, folder / "rtx", target="tensorrt-rtx", sm=(80,), **shared, **LIMITS)
    with LLM(folder / "cpu") as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, greedy())]
    return model, folder / "rtx", tokens


def greedy() -> SamplingParams:
    return SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def test_its_manifest_drives_the_executor_to_the_cpu_targets_tokens(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path, tokens = built
    manifest = executor.read_manifest(open_engine(path))
    assert (manifest.sms, manifest.kernel_sms, manifest.group_windows) == ((80,), (80,), (16,))
    assert {"PagedAttention", "RotaryKvWrite"} <= set(manifest.plugins)
    graph = parse_graph((path / "graph.txt").read_text(encoding="utf-8"))
    cuda = FakeCuda(sm=80)
    network = GraphNetwork(graph, open_checkpoint(model), manifest)
    trt = FakeTensorRt(cuda, manifest, network, (path / ENGINE_FILE).read_bytes())
    monkeypatch.setattr(executor, "load_bindings", lambda flavour: trt)
    monkeypatch.setattr(executor, "load_driver", lambda extra: cuda)
    monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
    with LLM(path, max_batch_size=4, max_num_tokens=64, max_prompt_logprob_rows=4, kv_cache_memory="1MiB") as llm:
        outputs = llm.generate(PROMPTS, greedy())
    assert [output.outputs[0].token_ids for output in outputs] == tokens
    assert not cuda.faults
    assert cuda.is_clean()


@pytest.mark.parametrize("batch", [None, 64, 128])
def test_an_engine_of_default_limits_takes_an_LLM_of_default_options(batch: int | None) -> None:
    """A step has a row of logits per sequence, and beside them as many as max_prompt_logprob_rows says."""
    parameters = inspect.signature(LLM.__init__).parameters
    asked = {**DEFAULT_LIMITS, "max_prompt_logprob_rows": parameters["max_prompt_logprob_rows"].default}
    seqs, tokens = make_limits(batch, None, TARGETS["tensorrt"].default_step)
    made = profiles.make_profiles([KvLayer(0, 2, 64)], 1, block_size=32, max_seq_len=2048, batch=seqs, tokens=tokens)
    limits = {symbol: max(profile.symbols[symbol].max for profile in made) for symbol in ("tokens", "seqs", "rows")}
    assert limits["seqs"] >= asked["max_batch_size"]
    assert limits["tokens"] >= asked["max_num_tokens"]
    assert limits["rows"] >= min(limits["seqs"] + asked["max_prompt_logprob_rows"], asked["max_num_tokens"])


def test_the_manifest_is_of_the_files_it_lies_beside(built: Any) -> None:
    engine = open_engine(Path(built[1]))
    assert engine.kv_block_bytes == sum(executor.read_manifest(engine).block_bytes)
