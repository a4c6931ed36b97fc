"""Engines of target onnx on ONNX Runtime's CUDA provider: the cache on the device, and the processor's answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tensorwright import LLM, SamplingParams, build

PROMPTS = ["import os", "def main(", "for i in range(", "class Foo:\n    def __init__(self, x):\n"]
HALF_ERROR = 0.05  # of a logprob: float16 keeps 11 bits of logits of up to 32, through 8 layers on either side


def _provider_is_there() -> bool:
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers() and Path("/proc/driver/nvidia").exists()


pytestmark = pytest.mark.skipif(not _provider_is_there(), reason="no NVIDIA driver, or no onnxruntime-gpu")


def test_the_gpu_says_what_the_processor_says(
    pico_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks, decodes in gaps, forks: what each provider thinks of the same text."""
    build(pico_model, tmp_path / "engine", target="onnx", dtype="float16", accuracy="none")
    params = SamplingParams(max_tokens=16, temperature=0, prompt_logprobs=0)
    with LLM(tmp_path / "engine", threads=2, kv_cache_memory="128MiB", max_prefill_chunk=5) as llm:
        texts = [PROMPTS[i] + output.outputs[0].text for i, output in enumerate(llm.generate(PROMPTS, params))]
        here = llm.generate(texts, params)
    monkeypatch.setenv("TENSORWRIGHT_ONNX_PROVIDER", "cuda")
    with LLM(tmp_path / "engine", kv_cache_memory="128MiB", max_prefill_chunk=5, max_batch_size=8) as llm:
        there = llm.generate(texts, params)
        several = llm.generate(PROMPTS[0], SamplingParams(n=4, max_tokens=8, temperature=1.0, seed=1))
    for mine, other in zip(here, there, strict=True):
        assert mine.prompt_token_ids == other.prompt_token_ids
        for token, left, right in zip(
            mine.prompt_token_ids[1:], mine.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True
        ):
            assert left[token].logprob == pytest.approx(right[token].logprob, abs=HALF_ERROR)
    assert len({completion.text for completion in several.outputs}) > 1
