"""What a request may ask, over the bundled model's real engine: greedy tokens of generate() in transformers, texts,
priorities and timeouts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams

PROMPTS = ["def read_file(", "import os", "class Node:\n    def __init__("]


@pytest.fixture(scope="module")
def llm(pico_engine_float32: Path) -> Iterator[LLM]:
    with LLM(pico_engine_float32, kv_cache_memory="64MiB", threads=2, max_batch_size=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(pico_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(pico_model, dtype=torch.float32)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),
        ({"bad_words": [[5], [3, 4]]}, {"bad_words_ids": [[5], [3, 4]]}),
        ({"logit_bias": {7: 50.0}}, {"sequence_bias": {(7,): 50.0}}),
    ],
)
def test_greedy_tokens_are_those_of_transformers(
    llm: LLM, model: Any, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    for prompt in PROMPTS:
        output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **ours))
        ids = torch.tensor([output.prompt_token_ids])
        expected = model.generate(ids, do_sample=False, max_new_tokens=24, eos_token_id=None, **theirs)
        assert output.outputs[0].token_ids == expected[0, ids.shape[1] :].tolist()


def test_a_banned_greedy_token_does_not_come(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    tokens = llm.generate(PROMPTS[0], greedy).outputs[0].token_ids
    pair = [tokens[3], tokens[4]]
    banned = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, bad_words=[pair])
    others = llm.generate(PROMPTS[0], banned).outputs[0].token_ids
    assert others[:4] == tokens[:4]
    assert pair not in [others[i : i + 2] for i in range(15)]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_the_greedy_text_wherever_they_are(llm: LLM, include: bool) -> None:
    whole = llm.generate(PROMPTS[2], SamplingParams(temperature=0, max_tokens=40)).outputs[0].text
    for length in (1, 3, 9):
        for at in range(0, len(whole) - length, 13):
            stop = whole[at : at + length]
            params = SamplingParams(temperature=0, max_tokens=40, stop=stop, include_stop_str_in_output=include)
            completion = llm.generate(PROMPTS[2], params).outputs[0]
            first = whole.index(stop)
            assert completion.text == whole[: first + length if include else first]
            assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_priority_starts_first(llm: LLM) -> None:
    """The first step does not end before all of the others wait."""
    all_wait = threading.Event()
    held = [lambda ids, row: all_wait.wait(PATIENCE) and None]
    running = llm.generate_async(PROMPTS[0], SamplingParams(max_tokens=2, ignore_eos=True, logits_processors=held))
    later = [
        llm.generate_async(PROMPTS[1], SamplingParams(max_tokens=60, ignore_eos=True, priority=priority))
        for priority in (0, 0, 1)
    ]
    all_wait.set()
    waits = [handle.result(PATIENCE).metrics.queue_time for handle in later]
    running.result(PATIENCE)
    assert waits[2] < waits[1]


def test_a_timeout_keeps_what_there_is(llm: LLM) -> None:
    done, late = llm.generate([PROMPTS[0]] * 2, [SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, timeout=0)])
    assert done.outputs[0].finish_reason in ("length", "stop")
    assert (late.outputs[0].finish_reason, late.outputs[0].token_ids) == ("timeout", [])
