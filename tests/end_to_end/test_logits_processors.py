"""Logits processors in Python: they change what is drawn and nothing else, in any company, and fail alone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.waiting import wait_until
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError, LogitsProcessorError

PROMPT = "def read_file("
BASE = SamplingParams(max_tokens=40, temperature=0.8, seed=3, logprobs=1, ignore_eos=True)
GREEDY = replace(BASE, temperature=0.0)


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, kv_cache_memory="64MiB", max_batch_size=8) as llm:
        yield llm


def prefer_after(token_ids: Any, row: Any) -> None:
    """A processor of all tokens so far: which tokens gain depends on them."""
    row[int(token_ids.sum()) % 7 :: 7] += 3


def halved(token_ids: Any, row: Any) -> Any:
    return row / 2


class Watching:
    """Notes what it was called with."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.threads: set[int] = set()
        self.kinds: set[tuple[Any, ...]] = set()

    def __call__(self, token_ids: Any, row: Any) -> None:
        self.seen.append(token_ids.tolist())
        self.threads.add(threading.get_ident())
        self.kinds.add((token_ids.dtype, row.dtype, row.shape, token_ids.flags.writeable, row.flags.writeable))


def answers(llm: LLM, params: Any) -> list[Any]:
    return [output.outputs for output in llm.generate([PROMPT] * len(params), params)]


def test_it_sees_prompt_output_and_logits(llm: LLM) -> None:
    watching = Watching()
    output = llm.generate(PROMPT, replace(GREEDY, logits_processors=[watching]))
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    assert watching.seen == [ids[:end] for end in range(len(output.prompt_token_ids), len(ids))]
    assert watching.kinds == {(np.dtype(np.int32), np.dtype(np.float32), (llm.engine.vocab_size,), False, True)}
    assert output.outputs == llm.generate(PROMPT, GREEDY).outputs


def test_what_it_changes_is_drawn_and_logprobs_are_the_models(llm: LLM) -> None:
    token = llm.generate(PROMPT, GREEDY).outputs[0].token_ids[0]

    def forbid(token_ids: Any, row: Any) -> None:
        row[token] = -np.inf

    output = llm.generate(PROMPT, replace(GREEDY, logits_processors=[forbid])).outputs[0]
    banned = llm.generate(PROMPT, replace(GREEDY, logit_bias={token: -np.inf})).outputs[0]
    assert output == banned
    assert output.logprobs is not None
    assert output.logprobs[0][output.token_ids[0]].rank > 1
    in_place = llm.generate(PROMPT, replace(BASE, logits_processors=[prefer_after, halved])).outputs[0]
    assert in_place == llm.generate(PROMPT, replace(BASE, logits_processors=[prefer_after, halved])).outputs[0]
    assert in_place != llm.generate(PROMPT, replace(BASE, logits_processors=[halved, prefer_after])).outputs[0]


ALL = [
    replace(BASE, logits_processors=[prefer_after], n=2),
    replace(GREEDY, logits_processors=[prefer_after, halved], repetition_penalty=1.2),
    replace(GREEDY, logits_processors=[prefer_after], guided_decoding=GuidedDecodingParams(regex="[a-z (,)]{60}")),
    replace(BASE, typical_p=0.9, xtc_probability=0.5, dry_multiplier=0.8, no_repeat_ngram_size=4),
    BASE,
]


@pytest.mark.parametrize("speculative", [None, "ngram,tokens=4"])
def test_company_preemption_and_proposals_change_nothing(llm: LLM, pico_engine: Path, speculative: str | None) -> None:
    alone = [answers(llm, [params])[0] for params in ALL]
    assert answers(llm, ALL) == alone
    memory = 8 * llm.engine.kv_block_bytes  # too little for all of them
    options: dict[str, Any] = {"max_prefill_chunk": 2, "threads": 1, "speculative": speculative}
    with LLM(pico_engine, kv_cache_memory=memory, max_batch_size=8, **options) as small:

        def preempted() -> bool:
            assert answers(small, ALL) == alone
            return bool(small.get_stats()["preemptions"])

        wait_until(preempted, "a preemption")  # on a busy machine requests may come one after the other
        assert (small.get_stats()["draft_tokens"] > 0) == (speculative is not None)


def raises(token_ids: Any, row: Any) -> None:
    if len(token_ids) > 8:
        raise KeyError("no such rule")


class Exits:
    def __call__(self, token_ids: Any, row: Any) -> None:
        raise SystemExit


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (raises, r"test_logits_processors\.raises failed after 9 tokens .*KeyError: 'no such rule' \(.*\.py:\d+\)"),
        (Exits(), r"test_logits_processors\.Exits failed after \d tokens .*SystemExit"),
        (lambda ids, row: row[:3], r"<lambda> failed .* return None or numbers of shape .*, got float32 of shape \(3,"),
        (lambda ids, row: "a", "must return None or numbers of shape"),
        (lambda ids, row: row.fill(np.nan), "must be finite or -inf, got NaN or inf"),
        (lambda ids, row: row.fill(np.inf), "must be finite or -inf, got NaN or inf"),
        (lambda ids, row: row.fill(-np.inf), "must leave a token to sample"),
    ],
)  # fmt: skip
def test_one_that_fails_ends_its_request_alone(llm: LLM, processor: Any, message: str) -> None:
    good = [llm.generate_async(PROMPT, params) for params in ALL]
    bad = llm.generate_async(PROMPT, replace(GREEDY, n=2, logits_processors=[halved, processor]))
    with pytest.raises(LogitsProcessorError, match=message):
        bad.result(60)
    assert [handle.result(60).outputs for handle in good] == [answers(llm, [params])[0] for params in ALL]


def test_it_is_released_with_its_request(llm: LLM) -> None:
    watching = Watching()
    released = weakref.ref(watching)
    llm.generate(PROMPT, replace(GREEDY, max_tokens=2, logits_processors=[watching]))
    del watching
    wait_until(lambda: gc.collect() >= 0 and released() is None)


def test_what_is_refused() -> None:
    for wrong in (3, [3], ["a"], prefer_after):
        with pytest.raises(InvalidRequestError, match="logits_processors must be a list of functions"):
            SamplingParams(logits_processors=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="logits_processors must be left out with a beam_width above 1"):
        SamplingParams(beam_width=2, logits_processors=[halved])
    with pytest.raises(InvalidRequestError, match="at most 16 functions, got 17"):
        SamplingParams(logits_processors=[halved] * 17)
