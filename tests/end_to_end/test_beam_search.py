"""Beam search: the answers of transformers on pico, alone and in company, under any limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.beams import transformers_beams
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError

PROMPTS = ["def read_file(", "import os\nimport sys\n\n", "class Node:\n    def __init__(self"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "long ones": {"length_penalty": 2.0},
    "short ones": {"length_penalty": -1.0},
    "early": {"early_stopping": True},
    "never early": {"early_stopping": "never", "length_penalty": 0.0},
    "repetition": {"repetition_penalty": 1.3},
    "ends": {"stop_token_ids": [11, 12, 199, 201, 256, 258, 262]},
    "least": {"min_tokens": 6, "stop_token_ids": [11, 199, 262]},
}


@pytest.fixture(scope="module")
def llm(pico_engine_float32: Path) -> Iterator[LLM]:
    with LLM(pico_engine_float32, kv_cache_memory="64MiB") as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(pico_model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(pico_model, dtype=torch.float32).eval()


def told(llm: LLM, prompts: list[Any], params: SamplingParams) -> list[Any]:
    return [
        [(c.token_ids, c.text, c.finish_reason, c.cumulative_logprob, c.logprobs) for c in output.outputs]
        for output in llm.generate(prompts, params)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_pico_answers_what_transformers_answers(llm: LLM, reference: Any, kind: str) -> None:
    params = SamplingParams(n=3, beam_width=4, max_tokens=16, logprobs=2, **KINDS[kind])
    for output in llm.generate(PROMPTS[:2], params):
        ends = [reference.generation_config.eos_token_id, *params.stop_token_ids]
        expected = transformers_beams(reference, output.prompt_token_ids, params, ends)
        assert [c.token_ids for c in output.outputs] == [tokens for tokens, _ in expected]
        for completion, (tokens, score) in zip(output.outputs, expected, strict=True):
            assert completion.cumulative_logprob is not None
            ours = completion.cumulative_logprob / len(tokens) ** params.length_penalty
            assert ours == pytest.approx(score, rel=1e-4, abs=1e-5)
            assert completion.finish_reason == ("length" if len(tokens) == 16 else "stop")
            assert completion.logprobs is not None
            assert len(completion.logprobs) == len(tokens)


def test_company_and_limits_change_nothing(llm: LLM, pico_engine_float32: Path) -> None:
    params = [SamplingParams(n=2, beam_width=width, max_tokens=24, logprobs=1) for width in (2, 5, 3)]
    alone = [told(llm, [prompt], each)[0] for prompt, each in zip(PROMPTS, params, strict=True)]
    others = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
    for options in (
        {}, {"max_batch_size": 6, "kv_cache_memory": "2MiB"}, {"max_num_tokens": 9, "max_batch_size": 8},
        {"enable_prefix_caching": False}, {"threads": 1}, {"speculative": "ngram,tokens=4"},
    ):  # fmt: skip
        with LLM(pico_engine_float32, **{"kv_cache_memory": "64MiB", **options}) as crowd:
            outputs = crowd.generate([*PROMPTS, *PROMPTS], [*params, others, others, others])
            assert [
                [(c.token_ids, c.text, c.finish_reason, c.cumulative_logprob, c.logprobs) for c in output.outputs]
                for output in outputs[:3]
            ] == alone


def test_beams_share_what_they_have_in_common(llm: LLM) -> None:
    """Their blocks are counted at the end of a long prompt: the prompt's, once, and few for each beam."""
    prompt = {"prompt_token_ids": list(range(300, 1100))}
    handle = llm.generate_async(prompt, SamplingParams(beam_width=8, n=8, max_tokens=64, ignore_eos=True))
    most = 0
    while not handle.done:
        most = max(most, llm.get_stats()["used_blocks"])
    block = llm.engine.block_size
    assert 800 // block < most <= 800 // block + 8 * (64 // block + 2)
    assert handle.result().finished


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"beam_width": 0}, "beam_width must be a positive integer, got 0"),
        ({"beam_width": 2, "n": 3}, "n must be at most beam_width, which is 2, got 3"),
        ({"beam_width": 2, "temperature": 0.7}, "temperature must be left out with a beam_width above 1"),
        ({"beam_width": 2, "top_k": 5}, "top_k must be left out"),
        ({"beam_width": 2, "stop": "x"}, "stop must be left out"),
        ({"beam_width": 2, "guided_decoding": GuidedDecodingParams(regex="a")}, "guided_decoding must be left out"),
        ({"length_penalty": 2.0}, "length_penalty must be left out without a beam_width above 1"),
        ({"early_stopping": True}, "early_stopping must be left out"),
        ({"beam_width": 2, "early_stopping": "soon"}, 'early_stopping must be True, False or "never"'),
        ({"beam_width": 2, "length_penalty": 101}, "length_penalty"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        SamplingParams(**fields)


def test_more_beams_than_places_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="beam_width must be at most max_batch_size"):
        llm.generate("a", SamplingParams(beam_width=10_000))
