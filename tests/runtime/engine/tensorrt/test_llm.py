"""The whole of LLM over TensorRtExecutor, with a real model behind the stand-in: the cpu target's tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.fake_gpu import FakeCuda
from support.fake_tensorrt import FakePlugins, FakeTensorRt
from support.graph_network import GraphNetwork, manifest_of, to_tensorrt
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.ir.parse import parse_graph
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.tensorrt import executor, library

MAX_SEQ_LEN = 96
PROMPTS = [{"prompt_token_ids": ids} for ids in ([3, 5, 7], list(range(2, 42)), [9] * 33, [3, 5, 7, 11, 13])]
SPEED = {"max_batch_size": 4, "max_num_tokens": 32, "max_prompt_logprob_rows": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(checkpoint, its cached graph, its cpu engine, its tokens there); its window is 16 positions."""
    folder = tmp_path_factory.mktemp("mistral")
    path = make_variant(folder / "model", "mistral")
    build(path, folder / "cpu", dtype="float32", max_seq_len=MAX_SEQ_LEN, accuracy="none")
    checkpoint = open_checkpoint(path)
    graph = parse_graph((folder / "cpu" / "graph.txt").read_text(encoding="utf-8"))
    with LLM(folder / "cpu", **SPEED) as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, greedy())]
    return checkpoint, graph, folder / "cpu", tokens


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, **changes)


@pytest.fixture
def served(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(engine directory, the stand-in of CUDA): opened by whoever opens it as any engine is."""
    checkpoint, graph, cpu, _ = model
    manifest = manifest_of(graph, MAX_SEQ_LEN)
    shutil.copytree(cpu, tmp_path / "engine")
    to_tensorrt(tmp_path / "engine", manifest, b"plan")
    cuda = FakeCuda()
    trt = FakeTensorRt(cuda, manifest, GraphNetwork(graph, checkpoint, manifest))
    monkeypatch.setattr(executor, "load_bindings", lambda flavour: trt)
    monkeypatch.setattr(executor, "load_driver", lambda extra: cuda)
    monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
    return tmp_path / "engine", cuda


def test_the_tokens_are_those_of_the_cpu_target(model: Any, served: Any) -> None:
    path, cuda = served
    with LLM(path, **SPEED) as llm:
        outputs = llm.generate(PROMPTS, greedy())
        again = llm.generate(PROMPTS[1], greedy(n=2))  # its beginning is in the cache
        scored = llm.generate(PROMPTS[2], greedy(prompt_logprobs=0))
        assert llm.get_stats()["prefix_hit_tokens"] > 0
    assert [output.outputs[0].token_ids for output in outputs] == model[3]
    assert [one.token_ids for one in again.outputs] == [model[3][1]] * 2
    assert scored.outputs[0].token_ids == model[3][2]
    assert len(scored.prompt_logprobs) == 33
    assert not cuda.faults
    assert cuda.is_clean()


def test_limits_that_are_not_given_are_at_most_those_of_the_engine(model: Any, served: Any) -> None:
    """Its manifest has 8 sequences and 64 tokens; LLM alone would take 64 and 512."""
    path, cuda = served
    with LLM(path, max_prompt_logprob_rows=8) as llm:
        assert (llm.options.max_batch_size, llm.options.max_num_tokens, llm.options.max_prefill_chunk) == (8, 64, 64)
        assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, greedy())] == model[3]
    with LLM(path, max_num_tokens=10, max_prompt_logprob_rows=2) as llm:  # 10 are less than 64 sequences
        assert (llm.options.max_batch_size, llm.options.max_num_tokens) == (8, 10)
    with LLM(path, max_num_tokens=4, max_prompt_logprob_rows=2) as llm:  # fewer than the engine's 8 sequences
        assert (llm.options.max_batch_size, llm.options.max_num_tokens) == (4, 4)
    with pytest.raises(InvalidOptionError, match=r"max_num_tokens must be at least max_batch_size \(8\).* got 4"):
        LLM(path, max_num_tokens=4, max_batch_size=8)
    assert cuda.is_clean()


def test_what_the_engine_was_not_built_for_is_refused_by_option(served: Any) -> None:
    path, cuda = served
    with pytest.raises(InvalidOptionError, match="max_batch_size asks for steps of 9 seqs, but the engine was built"):
        LLM(path, max_batch_size=9, max_num_tokens=32)
    assert cuda.is_clean()


def test_a_gpu_can_be_chosen(served: Any) -> None:
    path, cuda = served
    cuda.devices = 3
    with LLM(path, **SPEED, devices="2"):
        assert [args for name, *args in cuda.calls if name == "cuDeviceGet"] == [[2]]
    with pytest.raises(MissingDependencyError, match="was to run on GPU 3, but this machine has 3"):
        LLM(path, **SPEED, devices="3")
    with pytest.raises(InvalidOptionError, match="names 2 GPUs, and on this machine run one rank"):
        LLM(path, **SPEED, devices="0,1")


@pytest.mark.parametrize(("name", "value"), [("devices", "0"), ("gpu_memory", 0.5)])
def test_targets_without_gpus_refuse_their_options(model: Any, name: str, value: Any) -> None:
    with pytest.raises(
        InvalidOptionError, match=f"{name}={value!r}: only engines of the targets tensorrt, tensorrt-rtx, cuda"
    ):
        LLM(model[2], **SPEED, **{name: value})


def test_the_cache_takes_the_share_of_a_gpu_that_was_asked_for(served: Any) -> None:
    """The GPU has half of what a full batch can use, so that the share and not the batch is the bound."""
    path, cuda = served
    with LLM(path, **SPEED) as llm:
        useful = llm.options.kv_cache_bytes
        cuda.total = cuda.used() - useful // 2
    taken = []
    for share in (1.0, 0.5):
        with LLM(path, **SPEED, gpu_memory=share) as llm:
            taken.append(llm.options.kv_cache_bytes)
    assert 0 < taken[0] < useful
    assert taken[1] == taken[0] // 2
    with pytest.raises(
        InvalidOptionError, match="gpu_memory is the share of memory where kv_cache_memory says no size"
    ):
        LLM(path, **SPEED, gpu_memory=0.5, kv_cache_memory="1MiB")
    for wrong in (0, 1.5, True):
        with pytest.raises(InvalidOptionError, match="gpu_memory must be above 0, up to 1"):
            LLM(path, **SPEED, gpu_memory=wrong)


def test_steps_are_as_large_as_the_engine_was_built_for(served: Any) -> None:
    path, _ = served
    manifest = executor.read_manifest(open_engine(path))
    with LLM(path) as llm:
        assert llm.options.max_batch_size == manifest.limit("seqs")
        assert llm.options.max_num_tokens == manifest.limit("tokens")


def test_without_a_driver_LLM_says_so(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cuda = served
    cuda.devices = 0
    with pytest.raises(MissingDependencyError, match="there is no NVIDIA driver here"):
        LLM(path, **SPEED)
