"""A request's tokens and logprobs are the same bits alone, in any company, however its prompt is cut up.

Also here, because every such run must end so: no block leaks, and waste stays below one block per sequence.
TENSORWRIGHT_LARGE_LOAD=1000 runs the largest load in its full form; the suite runs 48 requests of it. Beside pico,
which is dense, stand small engines of other kinds: with mixtures of experts, with latent attention and mixtures, and
with delta rules.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.asked_loads import Ask, Solo, asks, check, check_until_preempted, room
from tensorwright import LLM
from tensorwright.runtime.engine.engine_dir import open_engine

LARGE_LOAD = int(os.environ.get("TENSORWRIGHT_LARGE_LOAD", "48"))


KINDS = ("qwen3_moe", "deepseek_v2_experts", "qwen3_5_text")
"""Variants of tiny_models: a mixture, a mixture beside latent attention, and a hybrid, whose sequences have states."""


@pytest.fixture(scope="module", params=["pico_engine", "pico_engine_int8_kv", *KINDS])
def engine(request):
    """Pico in bfloat16, and with an int8 cache; then one of each kind, in bfloat16."""
    if request.param in KINDS:
        return request.getfixturevalue("engine_of")(request.param)
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def solo(engine):
    with LLM(str(engine), threads=1, enable_prefix_caching=False, kv_cache_memory="64MiB", max_batch_size=1) as llm:
        yield Solo(llm)


CHUNKS = {1: (2,), 7: (1,), 16: (2,), 512: (2,)}
"""The tokens of a chunk, and with how many threads they are tried."""
ON_SMALLER_PROCESSORS = {(7, 1), (512, 2)}


@pytest.mark.parametrize(
    ("chunk", "threads"),
    [
        pytest.param(
            chunk,
            threads,
            marks=pytest.mark.computes(least="avx2") if (chunk, threads) in ON_SMALLER_PROCESSORS else (),
        )
        for chunk, tried in CHUNKS.items()
        for threads in tried
    ],
)
def test_company_chunks_and_threads(engine, solo, threads, chunk):
    load = asks(6 if chunk == 1 else 12, seed=chunk)
    with LLM(
        str(engine), threads=threads, kv_cache_memory="64MiB", max_batch_size=8, max_num_tokens=520,
        max_prefill_chunk=chunk, enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        check(llm, solo, load)


@pytest.mark.computes(least="avx2")
def test_prefix_hits(engine, solo):
    load = asks(16, seed=5)
    with LLM(str(engine), threads=2, kv_cache_memory="64MiB", max_batch_size=4) as llm:
        check(llm, solo, load)
        check(llm, solo, load)
        assert llm.get_stats()["prefix_hit_tokens"] > 0


@pytest.mark.computes(least="avx2")
def test_forced_preemption(engine, solo):
    if open_engine(engine).state_bytes:
        pytest.skip("a sequence with a state has its blocks from the start: test_recurrent_states.py preempts those")
    load = asks(12, seed=6, longest=100, most_tokens=120)
    with LLM(
        str(engine), threads=2, kv_cache_memory=room(engine, 16), max_batch_size=16,
        enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        check_until_preempted(llm, solo, load)


@pytest.mark.computes(least="avx2")
def test_an_int4_cache_in_company(pico_engine_int4_kv):
    """One load that meets chunks, preemption and prefix hits; the int8 cache, whose code is around it, meets each."""
    load = asks(16, seed=8, longest=100, most_tokens=80)
    with LLM(
        str(pico_engine_int4_kv), threads=1, enable_prefix_caching=False, kv_cache_memory="32MiB", max_batch_size=1
    ) as alone:
        solo = Solo(alone)
        with LLM(
            str(pico_engine_int4_kv), threads=2, kv_cache_memory=room(pico_engine_int4_kv, 16), max_batch_size=16,
            max_num_tokens=64, max_prefill_chunk=7,
        ) as llm:  # fmt: skip
            check(llm, solo, load)
            check_until_preempted(llm, solo, load)
            assert llm.get_stats()["prefix_hit_tokens"] > 0


@pytest.fixture(scope="module")
def crowd(engine):
    """One engine for all of hypothesis's examples, short of blocks so that preemption happens, and with a goal for the
    time between tokens that the clock decides about."""
    with LLM(
        str(engine), threads=2, kv_cache_memory=room(engine, 32, 16), max_batch_size=8, max_num_tokens=64,
        itl_goal="3ms", priority_ageing="20ms",
    ) as llm:  # fmt: skip
        yield llm


@pytest.mark.computes(least="avx2")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            Ask,
            prompt=st.lists(st.integers(0, 8191), min_size=1, max_size=100).map(tuple),
            tokens=st.integers(1, 20),
            temperature=st.sampled_from([0.0, 1.0]),
            seed=st.integers(0, 3),
            abort_after=st.one_of(st.none(), st.none(), st.integers(1, 8)),
            arrives_ms=st.integers(0, 60),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_any_load(crowd, solo, load):
    check(crowd, solo, load)


def test_a_large_load(engine, solo):
    load = asks(LARGE_LOAD, seed=7, longest=100, spread_ms=2 * LARGE_LOAD)
    with LLM(
        str(engine), threads=2, kv_cache_memory=room(engine, 64, 32), max_batch_size=16, max_queue_size=LARGE_LOAD
    ) as llm:
        check(llm, solo, load)
