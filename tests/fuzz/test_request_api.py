"""Whatever is asked of an engine: a typed error before anything starts, or a finished output. Never a crash or a hang.

The parameters are those that SamplingParams has today, so that a new one is tried the day it appears.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.toy_engine import MAX_SEQ_LEN, VOCAB, write_toy_engine
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.requests.outputs import RequestOutput

EXAMPLES = int(os.environ.get("TENSORWRIGHT_FUZZ_COUNT", "300"))
NAMES = [field.name for field in dataclasses.fields(SamplingParams)]

integers = st.one_of(st.integers(-2, 300), st.sampled_from([2**31 - 1, 2**31, 2**63, 2**64 - 1, 2**64, -(2**63)]))
numbers = st.one_of(integers, st.floats(width=64), st.floats(0, 2), st.booleans(), st.just(np.int64(3)))
texts = st.one_of(st.text(max_size=5), st.sampled_from(["", "\ud800", "\0", "a"]))
atoms = st.one_of(st.none(), numbers, texts, st.binary(max_size=3))
values = st.one_of(
    atoms,
    st.lists(atoms, max_size=4),
    st.lists(st.integers(0, VOCAB), max_size=4),
    st.dictionaries(st.one_of(integers, texts), atoms, max_size=3),
)
parameters = st.dictionaries(st.sampled_from(NAMES), values, max_size=4)
plausible = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 8)},
    optional={
        "temperature": st.floats(0, 3), "top_k": st.integers(-1, 300), "top_p": st.floats(0, 1), "seed": integers,
        "logprobs": st.integers(0, VOCAB), "prompt_logprobs": st.integers(0, VOCAB),
        "stop_token_ids": st.lists(st.integers(0, VOCAB), max_size=3),
    },
)  # fmt: skip
prompts = st.one_of(
    st.text(max_size=150),
    st.builds(lambda ids: {"prompt_token_ids": ids}, st.lists(st.integers(0, VOCAB), max_size=MAX_SEQ_LEN + 2)),
    st.builds(lambda ids: {"prompt_token_ids": ids}, values),
    st.dictionaries(st.sampled_from(["prompt", "prompt_token_ids", "promt"]), values, max_size=2),
    values,
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    engine = write_toy_engine(tmp_path_factory.mktemp("toy") / "engine")
    with LLM(engine, kv_cache_memory="1MiB", threads=1, max_batch_size=4) as llm:
        yield llm


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts, st.one_of(plausible, parameters))
@example("a", {"temperature": 5e-324, "max_tokens": 2})
@example("a", {"temperature": 1e308, "max_tokens": 2})
@example("a", {"top_p": 5e-324, "max_tokens": 2})
@example("a", {"stop_token_ids": [VOCAB]})
@example({"prompt_token_ids": np.array([1, 2], np.int32)}, {"max_tokens": 1})
@example({"prompt_token_ids": np.array([[1, 2]])}, {"max_tokens": 1})
@example({"prompt_token_ids": {1: 2}}, {"max_tokens": 1})
def test_any_request_is_refused_or_finishes(llm: LLM, prompt: Any, params: dict[str, Any]) -> None:
    with suppress(InvalidRequestError, InvalidOptionError):
        check(llm.generate_async(prompt, SamplingParams(**params)).result(timeout=PATIENCE), params)
    # An answer that a stop string ends is there before the engine has heard of it.
    wait_until(lambda: not any(map(llm.get_stats().get, ("running", "waiting", "used_blocks"))), "an idle engine")
    assert llm.get_stats()["requests_failed"] == 0


def check(output: RequestOutput, params: dict[str, Any]) -> None:
    assert output.finished
    scored = None if output.prompt_logprobs is None else len(output.prompt_logprobs)
    assert scored == (None if params.get("prompt_logprobs") is None else len(output.prompt_token_ids))
    for completion in output.outputs:
        ends = ("stop", "length") if params.get("timeout") is None else ("stop", "length", "timeout")
        assert completion.finish_reason in ends
        assert len(completion.token_ids) <= (params.get("max_tokens", 16) or MAX_SEQ_LEN)
        assert all(0 <= token < VOCAB for token in completion.token_ids)


def test_most_plausible_requests_run(llm: LLM) -> None:
    """The strategies above are no test if everything is refused at the first check."""
    finished = 0

    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60), plausible)
    def run(ids: list[int], params: dict[str, Any]) -> None:
        nonlocal finished
        with suppress(InvalidRequestError):
            llm.generate({"prompt_token_ids": ids}, SamplingParams(**params))
            finished += 1

    run()
    assert finished > 10
