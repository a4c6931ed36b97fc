"""Engines of target onnx give the tokens of target cpu in float32, through the same API and commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.runtime.commands.cli import cli

pytest.importorskip("onnxruntime")

PROMPTS = [
    "import os", "def main(", "class Foo:\n    def __init__(self", "for i in range(", "return", "x = np.zeros((",
    "from pathlib import Path\n\n\ndef read(path: Path) -> str:\n    return", "if __name__ ==", "#",
    "    raise ValueError(f",
]  # fmt: skip
GREEDY = SamplingParams(max_tokens=24, temperature=0)


def ids(seed: int, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [(seed * i * i + 5 * i + 1) % 97 for i in range(length)]}


@pytest.fixture(scope="module")
def expected(pico_engine_float32: Path) -> list[list[int]]:
    with LLM(pico_engine_float32, threads=1, kv_cache_memory="64MiB") as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def test_pico_gives_the_cpu_targets_tokens(pico_engine_onnx: Path, expected: list[list[int]]) -> None:
    """Three slots for ten requests, prompts in chunks, another prompt aborted: sequences come and go in all slots."""
    with LLM(pico_engine_onnx, threads=1, kv_cache_memory="60MiB", max_batch_size=4, max_prefill_chunk=5) as llm:
        assert llm.get_stats()["total_blocks"] == 3
        handles = [llm.generate_async(prompt, GREEDY) for prompt in PROMPTS[:5]]
        lost = llm.generate_async(PROMPTS[0], SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True))
        handles += [llm.generate_async(prompt, GREEDY) for prompt in PROMPTS[5:]]
        assert [handle.result().outputs[0].token_ids for handle in handles] == expected
        lost.abort()
        assert lost.result().outputs[0].finish_reason == "abort"
        assert llm.get_stats()["used_blocks"] == 0


def test_completions_share_a_prompt(pico_engine_onnx: Path, pico_engine_float32: Path) -> None:
    params = SamplingParams(n=3, max_tokens=12, temperature=0.8, seed=3)
    texts = []
    for engine in (pico_engine_float32, pico_engine_onnx):
        with LLM(engine, threads=1, kv_cache_memory="80MiB", max_batch_size=4) as llm:
            texts.append([each.text for each in llm.generate(PROMPTS[6], params).outputs])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_the_command_runs_it(pico_engine_onnx: Path, pico_engine_float32: Path) -> None:
    def run(engine: Path) -> str:
        options = ["--prompt", "import os", "--max-tokens", "12", "--temperature", "0", "--kv-cache-memory", "32MiB"]
        return CliRunner().invoke(cli, ["run", str(engine), *options], catch_exceptions=False).stdout

    assert run(pico_engine_onnx) == run(pico_engine_float32)


@pytest.mark.parametrize("variant", ["gemma2", "flint", "stablelm", "gpt2"])
def test_families_with_something_special(variant: str, tmp_path: Path) -> None:
    """Windows, capped scores, sinks, partly rotated heads, learned positions; longer than every window."""
    make_variant(tmp_path / "model", variant)
    tokens = []
    for target in ("cpu", "onnx"):
        build(tmp_path / "model", tmp_path / target, target=target, dtype="float32", accuracy="none")
        with LLM(tmp_path / target, threads=1, kv_cache_memory="16MiB", max_batch_size=3, max_num_tokens=24) as llm:
            params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, detokenize=False)
            outputs = llm.generate([ids(seed, 3 + 9 * seed) for seed in range(1, 5)], params)
            tokens.append([output.outputs[0].token_ids for output in outputs])
    assert tokens[0] == tokens[1]
