"""Blocks that fell out of a sliding window are freed: memory stays flat however long a request is, and the bits the
same. Mistral has a window in every layer, Gemma 2 in every other. Llama 4 has chunks in every other: the blocks of a
chunk are freed at its end. Llama has no window itself, and is built with one and sink tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.harness import load_reference, reference_choices
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import PromptTooLongError
from tensorwright.runtime.requests.outputs import CompletionOutput

LONG = 480
WINDOW = 16
SINKS = 5


def bits(completion: CompletionOutput) -> Any:
    return completion.token_ids, [
        {t: lp.logprob.hex() for t, lp in table.items()} for table in completion.logprobs or []
    ]


@pytest.fixture(scope="module", params=["mistral", "gemma2", "llama4_text_some", "llama"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp(request.param)
    make_variant(root / "model", request.param, seed=3, max_position_embeddings=512)
    bounds = {"attention_window": WINDOW, "sink_tokens": SINKS} if request.param == "llama" else {}
    build(root / "model", root / "engine", dtype="float32", accuracy="none", **bounds)
    return request.param, root


EVERY_LAYER = ("mistral", "llama")
"""The families all of whose layers have a window here."""


def choices(root: Path, name: str, asked: list[int], answer: list[int], sinks: int = SINKS) -> list[int]:
    """What transformers picks, with a mask of our own for a window that is not the model's."""
    reference = load_reference(root / "model", torch.float32)
    if name != "llama":
        return reference_choices(reference, asked, answer)
    ids = asked + answer[:-1]
    query, key = torch.arange(len(ids))[:, None], torch.arange(len(ids))[None]
    seen = (key <= query) & ((key > query - WINDOW) | (key < sinks))
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        logits = reference(torch.tensor([ids]), attention_mask=mask).logits[0, len(asked) - 1 :]
    return logits.argmax(-1).tolist()


def prompt(seed: int, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [(seed * i * i + 5 * i) % 97 for i in range(length)]}


def block_bytes(engine: Path) -> int:
    with LLM(engine, kv_cache_memory="4MiB", threads=1) as llm:
        return llm.engine.kv_block_bytes


def test_long_requests_with_few_blocks(family: tuple[str, Path]) -> None:
    """As many blocks as the window needs, and not enough for the whole: flat, and equal to transformers."""
    name, root = family
    greedy = SamplingParams(temperature=0, max_tokens=LONG, ignore_eos=True, logprobs=0, detokenize=False)
    blocks = 10 if name in EVERY_LAYER else 20
    with LLM(
        root / "engine", kv_cache_memory=blocks * block_bytes(root / "engine"), max_batch_size=2, max_num_tokens=32,
        threads=2,
    ) as llm:  # fmt: skip
        output = llm.generate(prompt(1, 20), greedy)
        stats = llm.get_stats()
    assert stats["preemptions"] == 0
    assert sorted(group["window"] for group in stats["groups"]) == ([WINDOW] if name in EVERY_LAYER else [0, WINDOW])
    assert sorted(group["chunked"] for group in stats["groups"])[-1] == (name == "llama4_text_some")
    for group in stats["groups"]:
        assert group["used_blocks"] == 0
        # A full batch of what a chunk of 32 sees from its first position on, and of a block of sink tokens; the request
        # alone has 16 blocks.
        assert group["sink_tokens"] == (SINKS if name == "llama" else 0)
        most = 2 * (-(-(WINDOW + 31) // stats["block_size"]) + 1 + (name == "llama"))
        assert group["total_blocks"] <= most < 16 if group["window"] else group["total_blocks"] >= 16
    answer = output.outputs[0].token_ids
    assert len(answer) == LONG
    assert answer == choices(root, name, output.prompt_token_ids, answer)
    if name == "llama":
        assert answer != choices(root, name, output.prompt_token_ids, answer, sinks=SINKS - 1)


def test_company_prefixes_and_forks_keep_the_bits(family: tuple[str, Path]) -> None:
    name, root = family
    params = [
        SamplingParams(n=1 + i % 3, seed=i, max_tokens=20 + 7 * (i % 9), ignore_eos=True, logprobs=1, detokenize=False)
        for i in range(18)
    ]
    prompts = [prompt(2 + i % 3, 30 + 11 * (i % 6)) for i in range(18)]
    with LLM(root / "engine", threads=1, kv_cache_memory="16MiB", max_batch_size=4, enable_prefix_caching=False) as llm:
        alone = [[bits(c) for c in llm.generate(p, param).outputs] for p, param in zip(prompts, params, strict=True)]
    kv = (16 if name in EVERY_LAYER else 24) * block_bytes(root / "engine")
    # Parts of prompts that a step takes end anywhere in a window.
    with LLM(root / "engine", threads=2, kv_cache_memory=kv, max_batch_size=6, max_num_tokens=45) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, params)
            assert [[bits(c) for c in output.outputs] for output in outputs] == alone
        stats = llm.get_stats()
        assert stats["prefix_hit_tokens"] > 0
        assert stats["evictions"] > 0
        for group in stats["groups"]:
            assert group["used_blocks"] == 0
            assert group["free_blocks"] + group["cached_blocks"] == group["total_blocks"]


def test_what_the_windows_cannot_hold_is_refused(family: tuple[str, Path]) -> None:
    name, root = family
    with LLM(root / "engine", threads=1, kv_cache_memory=4 * block_bytes(root / "engine"), max_batch_size=4) as llm:
        long = SamplingParams(max_tokens=400, detokenize=False, n=3 if name in EVERY_LAYER else 1)
        with pytest.raises(PromptTooLongError, match="KV cache"):
            llm.generate(prompt(1, 20), long)
