"""Guided decoding by the bundled model, with all else that a request may ask for, alone and among others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import hostile_grammars as hostile
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, CompletionOutput, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError

PROMPT = "Once upon a time"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 200}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SUMS = 'root ::= sum "="\nsum ::= [1-9] [0-9]? ("+" sum)?'
AMBIGUOUS = "root ::= expr\nexpr ::= expr expr | expr expr expr | [a-z ]"


@pytest.fixture(scope="module")
def pico(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, kv_cache_memory="128MiB", max_batch_size=16, threads=1) as llm:
        yield llm


def guided(asked: dict[str, Any], **changes: Any) -> SamplingParams:
    rest = {"max_tokens": 40, "temperature": 0, **changes}
    return SamplingParams(guided_decoding=GuidedDecodingParams(**asked), **rest)


def same(first: CompletionOutput, second: CompletionOutput) -> bool:
    return replace(first, index=0) == replace(second, index=0)


MIXED = [
    guided({"json": PERSON}, max_tokens=60, logprobs=2),
    guided({"json": PERSON}, max_tokens=60, temperature=1, seed=4),
    guided({"regex": "[A-Z][a-z]{3,20}"}, temperature=1, seed=5, top_p=0.9, repetition_penalty=1.2),
    guided({"grammar": SUMS}, temperature=1, seed=6, logprobs=0),
    guided(
        {"choice": ["yes", "no"], "frame": 'start: think "!" @form\nthink[max_tokens=9]: /[a-z ]*/'},
        temperature=1,
        seed=9,
    ),
    guided({"choice": ["the cat", "the dog", "a bird"]}, temperature=2, seed=7),
    SamplingParams(max_tokens=30, temperature=1, seed=8),
    SamplingParams(max_tokens=30, temperature=0),
]


def test_alone_and_in_a_batch(pico: LLM) -> None:
    alone = [pico.generate(PROMPT, params).outputs[0] for params in MIXED]
    crowd = pico.generate([PROMPT] * 2 * len(MIXED), MIXED * 2)
    assert [output.outputs[0] for output in crowd] == alone * 2


def test_forced_tokens_cost_no_step_and_change_no_bit(pico: LLM, pico_engine: Path) -> None:
    """Alone, in company, in small chunks, preempted, and beside proposals: masks come when they come."""
    schema = {"type": "object", "properties": {"registered_name": {"enum": ["abcdefghij", "zyxwvutsrq"]}}}
    schema |= {"required": ["registered_name"], "additionalProperties": False}
    forcing = [
        *(guided({"regex": "(01234){4}[a-z ]{300}"}, max_tokens=60, temperature=1, seed=seed) for seed in range(8)),
        *MIXED,
        guided({"json": schema, "whitespace_pattern": ""}, temperature=1, seed=2, logprobs=2, n=2),
        guided({"regex": r"(0123456789){6}|x"}, temperature=0, logprobs=1),
        guided({"regex": r"(0123456789){6}|x"}, max_tokens=13, temperature=0, ignore_eos=True),
        guided({"choice": ["ΑΒΓΔΕΖΗΘ", "ΑΒΓΔΕΖΗΙ"]}, temperature=1, seed=1, stop=["Θ", "Γ"]),
    ]
    with LLM(pico_engine, kv_cache_memory="128MiB", max_batch_size=16, threads=1, jump_forward=False) as plain:
        expected = [plain.generate(PROMPT, params).outputs for params in forcing]
        assert plain.get_stats()["forced_tokens"] == 0
    memory = 14 * pico.engine.kv_block_bytes  # each of the first eight takes 3 in the end
    before = pico.get_stats()["forced_tokens"]
    assert [pico.generate(PROMPT, params).outputs for params in forcing] == expected
    assert [output.outputs for output in pico.generate([PROMPT] * len(forcing), forcing)] == expected
    assert pico.get_stats()["forced_tokens"] > before
    for options in ({"max_prefill_chunk": 3, "threads": 2}, {"speculative": "ngram,tokens=3", "threads": 1}):
        with LLM(pico_engine, kv_cache_memory=memory, max_batch_size=8, **options) as small:
            preempted(small, forcing, expected)
            assert small.get_stats()["forced_tokens"] > 0


def preempted(llm: LLM, params: list[SamplingParams], expected: list[Any]) -> None:
    """Asks until the engine has preempted a request: on a busy machine they may come one after the other."""

    def ask() -> bool:
        assert [output.outputs for output in llm.generate([PROMPT] * len(params), params)] == expected
        return bool(llm.get_stats()["preemptions"])

    wait_until(ask, "a preemption")


def test_preempted_and_not(pico: LLM, pico_engine: Path) -> None:
    long = [guided({"regex": "[a-z ]{300}"}, max_tokens=60, temperature=1, seed=seed) for seed in range(8)]
    expected = [output.outputs for output in pico.generate([PROMPT] * 8, long)]
    blocks = 14  # each of the eight takes 3 in the end
    with LLM(pico_engine, kv_cache_memory=blocks * pico.engine.kv_block_bytes, max_batch_size=8, threads=1) as small:
        preempted(small, long, expected)


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"regex": r"(\+|-)?[0-9]{1,5}\.[0-9]{2}"}, r"(\+|-)?[0-9]{1,5}\.[0-9]{2}"),
        ({"regex": "[A-Z][a-zß]{2,8}( [ivx]{1,3})?"}, "[A-Z][a-zß]{2,8}( [ivx]{1,3})?"),
        ({"choice": ["the cat", "the dog", "größe", "a"]}, "the cat|the dog|größe|a"),
        ({"grammar": SUMS}, r"[1-9][0-9]?(\+[1-9][0-9]?)*="),
        ({"grammar": 'start: WORD ("," WORD){0,3} "."\nWORD: /[a-z]{1,6}/'}, r"[a-z]{1,6}(,[a-z]{1,6}){0,3}\."),
        ({"grammar": SUMS, "frame": 'start: "It is " @form'}, r"It is [1-9][0-9]?(\+[1-9][0-9]?)*="),
        ({"choice": ["a", "b", "c", "d"], "frame": 'start: "It is " @form "."'}, r"It is [a-d]\."),
        (
            {"json": {"type": "integer", "minimum": 1, "maximum": 50}, "frame": 'start: @form | "none"'},
            "none|[1-9]|[1-4][0-9]|50",
        ),
        ({"regex": "[ab]{3}", "frame": "start: /[xy]{2}/ @form"}, "[xy]{2}[ab]{3}"),
    ],
    ids=str,
)
def test_sampled_texts_match(pico: LLM, asked: dict[str, Any], pattern: str) -> None:
    params = [guided(asked, temperature=1, seed=seed) for seed in range(12)] + [guided(asked)]
    outputs = [output.outputs[0] for output in pico.generate([PROMPT] * 13, params)]
    whole = [output for output in outputs if output.finish_reason == "stop"]
    assert len(whole) > 6
    assert [output.text for output in whole if not re.fullmatch(pattern, output.text)] == []
    assert len({output.text for output in whole}) > 2
    assert all(output.token_ids[-1] in pico.engine.eos_token_ids for output in whole)


def test_completions_are_those_of_their_seeds(pico: LLM) -> None:
    params = guided({"json": PERSON}, n=3, temperature=1, seed=3)
    together = pico.generate(PROMPT, params).outputs
    for index, output in enumerate(together):
        assert same(output, pico.generate(PROMPT, replace(params, n=1, seed=params.completion_seed(index))).outputs[0])
    assert len({output.text for output in together}) == 3


def test_logprobs_are_those_of_the_model(pico: LLM) -> None:
    """Of the logits as they were before the grammar forbade any, as scoring the text afterwards gives them."""
    answer = pico.generate(PROMPT, guided({"grammar": SUMS}, logprobs=0))
    output = answer.outputs[0]
    ids = answer.prompt_token_ids + output.token_ids
    scores = pico.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=0)).prompt_logprobs
    assert output.logprobs == scores[-len(output.token_ids) :]
    assert min(table[token].rank for table, token in zip(output.logprobs, output.token_ids, strict=True)) >= 1
    assert max(table[token].rank for table, token in zip(output.logprobs, output.token_ids, strict=True)) > 1


def test_min_tokens_holds(pico: LLM) -> None:
    likely_end = dict.fromkeys(pico.engine.eos_token_ids, 50.0)
    short = guided({"regex": "[a-z]{1,60}"}, temperature=1, seed=1, logit_bias=likely_end)
    assert len(pico.generate(PROMPT, short).outputs[0].token_ids) == 2
    assert len(pico.generate(PROMPT, replace(short, min_tokens=9)).outputs[0].token_ids) == 10


def test_bad_words_hold(pico: LLM) -> None:
    params = guided({"choice": ["a", "b"]})
    likelier = pico.generate(PROMPT, params).outputs[0].text
    other = {"a": "b", "b": "a"}[likelier]
    assert pico.generate(PROMPT, replace(params, bad_words=[likelier])).outputs[0].text == other
    with pytest.raises(InvalidRequestError):
        pico.generate(PROMPT, replace(params, bad_words=["a", "b"]))


def test_stop_strings_and_stop_tokens(pico: LLM) -> None:
    params = guided({"regex": "[a-z ]{60}"})
    free = pico.generate(PROMPT, params).outputs[0]
    stop = free.text[7:10]
    output = pico.generate(PROMPT, replace(params, stop=stop)).outputs[0]
    assert (output.text, output.stop_reason) == (free.text[: free.text.index(stop)], stop)
    token = free.token_ids[3]
    output = pico.generate(PROMPT, replace(params, stop_token_ids=[token])).outputs[0]
    assert output.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", token)


def test_ignoring_the_end_token(pico: LLM) -> None:
    params = guided({"json": PERSON}, max_tokens=100, n=2, temperature=1, seed=1, ignore_eos=True)
    outputs = pico.generate(PROMPT, params).outputs
    assert [output.finish_reason for output in outputs] == ["stop", "stop"]
    assert all(output.text.endswith("}") for output in outputs)
    assert not any(set(pico.engine.eos_token_ids) & set(output.token_ids) for output in outputs)


def test_those_that_fail_end_alone(pico: LLM) -> None:
    """Those whose matchers give up, one that no token is left to: the others keep their bits."""
    alone = [pico.generate(PROMPT, params).outputs[0] for params in MIXED]
    handles = [pico.generate_async(PROMPT, params) for params in MIXED]
    complex_ones = [
        pico.generate_async(PROMPT, guided({"grammar": text}, max_tokens=900, n=2, temperature=1, seed=1))
        for text in (hostile.AMBIGUOUS["grammar"], hostile.SLOWLY_AMBIGUOUS["grammar"], AMBIGUOUS)
    ]
    cornered = pico.generate_async(PROMPT, guided({"choice": ["on", "off"]}, min_tokens=20))
    for complex_one in complex_ones:
        with pytest.raises(InvalidRequestError, match="guided_decoding: grammar could not be followed after"):
            complex_one.result(PATIENCE)
    with pytest.raises(InvalidRequestError, match="token"):
        cornered.result(PATIENCE)
    assert [handle.result(PATIENCE).outputs[0] for handle in handles] == alone
    wait_until(lambda: pico.get_stats()["running"] == 0)  # a handle can tell of its end before the engine acts on it
