"""Engines of several ranks, run as processes of this machine: whose bits they have, and what a lost rank does."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from support.rank_processes import alive, ask_until_no_rank_is_lost, rank_files, rank_pids
from support.tiny_models import make_variant
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import EngineError, InvalidOptionError, RankError
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.ranks.identity import fingerprint, threads_of_rank

PROMPTS = [
    {"prompt_token_ids": [(7 * i + k) % 90 + 3 for i in range(length)]} for k, length in enumerate((3, 40, 17, 70))
]
SAMPLED = SamplingParams(max_tokens=12, temperature=0.9, seed=11, logprobs=2, ignore_eos=True)
LIMITS = {"kv_cache_memory": "8MiB", "threads": 1}


@pytest.fixture(autouse=True)
def _no_ranks_of_other_tests():
    """They end soon after their engine, and what is counted here is this test's own."""
    wait_until(lambda: not rank_pids(), "the end of the ranks of another test")


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory):
    """Builds an engine of a tiny model with so many ranks, once."""
    made: dict[tuple, Path] = {}

    def get(variant: str, tensor: int, stages: int, **options) -> Path:
        key = (variant, tensor, stages, *sorted(options.items()))
        if key not in made:
            root = tmp_path_factory.mktemp("ranks")
            make_variant(root / "model", variant, seed=3)
            build(
                root / "model", root / "engine", accuracy="none", max_seq_len=128, tensor_parallel=tensor,
                pipeline_parallel=stages, **options,
            )  # fmt: skip
            made[key] = root / "engine"
        return made[key]

    return get


def answers(path: Path, prompts=PROMPTS, sampling=SAMPLED, **options):
    """Tokens and logprobs of each prompt, all submitted at once."""
    with LLM(path, **LIMITS, **options) as llm:
        return told(llm.generate(prompts, sampling))


@pytest.fixture(scope="module")
def plain_answers():
    """Returns a function from an engine to its `answers`, which are computed once."""
    return cache(answers)


def told(outputs):
    """Tokens and logprobs of each output."""
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("variant", ["llama", "gemma3", "jamba"])
def test_stages_have_the_bits_of_one_rank(engine_of, variant) -> None:
    """The states of jamba's layers live in their stage."""
    assert answers(engine_of(variant, 1, 2)) == answers(engine_of(variant, 1, 1))


@pytest.mark.parametrize("variant", ["mamba", "bamba", "recurrent_gemma"])
def test_two_ranks_answer_as_one(engine_of, variant) -> None:
    """Each has some channels or heads of every recurrence, and their states."""
    one, two = (answers(engine_of(variant, ranks, 1)) for ranks in (1, 2))
    assert [tokens for tokens, _ in one] == [tokens for tokens, _ in two]


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("llama", {}),
        ("llama", {"quantize": "int4:g32"}),
        ("llama", {"kv_cache_dtype": "int8"}),
        ("olmo_hybrid", {}),
        ("minimax", {"expert_parallel": True}),
    ],
)
def test_bits_do_not_depend_on_company_chunks_or_prefixes(engine_of, plain_answers, variant, options) -> None:
    """Of an engine with two ranks in each of two stages: alone or together, in chunks of any size, and with a part of
    the prompt remembered. Stages change nothing either. The last two have states, norms that ranks cut, and experts
    that one rank has whole."""
    path = engine_of(variant, 2, 2, **options)
    with LLM(path, **LIMITS, enable_prefix_caching=False) as llm:
        together = told(llm.generate(PROMPTS, SAMPLED))
        assert together == [told(llm.generate([prompt], SAMPLED))[0] for prompt in PROMPTS]
    with LLM(path, **LIMITS, max_num_tokens=9, max_batch_size=3) as llm:
        assert together == told(llm.generate(PROMPTS, SAMPLED))
        again = llm.generate([*PROMPTS, *PROMPTS], SAMPLED)
        assert together * 2 == told(again)
        assert any(output.metrics.cached_tokens for output in again)
    assert together == plain_answers(engine_of(variant, 2, 1, **options))


def test_a_step_of_many_tokens_is_cut_into_microbatches(engine_of) -> None:
    """A prompt of 70 tokens goes through two stages in two parts: more than 32 tokens each."""
    path = engine_of("llama", 1, 2)
    assert answers(path, [PROMPTS[3]]) == answers(path, [PROMPTS[3]], max_num_tokens=20, max_batch_size=4)


def test_proposals_are_verified_by_all_ranks(engine_of, plain_answers) -> None:
    """Stages change no bit, so what two ranks answer without proposals is what four must answer with them."""
    assert answers(engine_of("llama", 2, 2), speculative="ngram") == plain_answers(engine_of("llama", 2, 1))


def lost(llm: LLM, signum: int) -> list[int]:
    """Stops the other ranks, so that a request must wait for them, and sends them a signal. Returns their processes."""
    others = rank_pids()
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    handle = llm.generate_async(PROMPTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
    for pid in others:
        os.kill(pid, signum)
    with pytest.raises(RankError, match="rank 1"):
        handle.result()
    return others


@pytest.mark.parametrize(("signum", "timeout"), [(signal.SIGKILL, PATIENCE), (signal.SIGSTOP, 3.0)])
def test_a_lost_rank_ends_the_step_and_all_start_again(engine_of, plain_answers, signum, timeout) -> None:
    path = engine_of("llama", 2, 1)
    wanted = plain_answers(path)
    with LLM(path, **LIMITS, rank_timeout=timeout) as llm:
        gone = lost(llm, signum)
        # A rank that a busy machine holds for as long is lost as well.
        again = ask_until_no_rank_is_lost(lambda: llm.generate(PROMPTS, SAMPLED), timeout == PATIENCE)
        assert told(again) == wanted
        wait_until(lambda: not any(map(alive, gone)), "the end of the ranks, also of one that hung")
    wait_until(lambda: not rank_pids(), "the end of all ranks")
    assert not rank_files()


def processors_of_threads(pid: int) -> set[frozenset[int]]:
    """Where the threads of a process may run."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found.add(frozenset(os.sched_getaffinity(int(task.name))))
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need a processor each")
def test_ranks_have_processors_of_their_own(engine_of, plain_answers) -> None:
    path = engine_of("llama", 2, 1)
    usable = os.sched_getaffinity(0)
    with LLM(path, **LIMITS | {"threads": 2}, numa="split") as llm:
        [other] = rank_pids()
        assert told(llm.generate(PROMPTS, SAMPLED)) == plain_answers(path)
        # Threads that a library of linear algebra has are where the system places them, unless OMP_NUM_THREADS is 1.
        [theirs] = processors_of_threads(other) - {frozenset(usable)}
        ours = processors_of_threads(os.getpid()) - {frozenset(usable)}
    assert theirs < usable
    assert ours
    assert not any(own & theirs for own in ours)
    with pytest.raises(InvalidOptionError, match="numa='interleave' is for an engine of one rank"):
        LLM(path, **LIMITS, numa="interleave")


def test_a_rank_that_cannot_open_its_files_says_so(engine_of, tmp_path) -> None:
    path = tmp_path / "engine"
    for file in (source := engine_of("llama", 2, 1)).rglob("*"):
        if file.is_file():
            (path / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (path / file.relative_to(source)).write_bytes(file.read_bytes())
    weights = path / "rank1" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(EngineError, match=r"rank1/weights\.bin"):
        LLM(path, **LIMITS)
    weights.unlink()
    assert open_engine(path, rank=0).plan == path / "rank0" / "plan.bin"  # a machine of rank 0 needs no more
    with pytest.raises(EngineError, match=r"rank1/weights\.bin"):
        open_engine(path, rank=1)
    with pytest.raises(EngineError, match="has 2 ranks, and none of number 2"):
        open_engine(path, rank=2)


def test_ranks_end_with_the_engine(engine_of) -> None:
    """Not when Python drops it, which may be much later."""
    llm = LLM(engine_of("llama", 2, 1), **LIMITS)
    [other] = rank_pids()
    llm.shutdown()
    wait_until(lambda: not alive(other), "the end of the rank")
    del llm


def test_ranks_start_inside_another_program(engine_of, plain_answers, monkeypatch) -> None:
    """Triton's Python backend is such a program: what sys.executable names is no Python."""
    path = engine_of("llama", 2, 1)
    wanted = plain_answers(path)
    monkeypatch.setattr(sys, "executable", "/opt/tritonserver/backends/python/triton_python_backend_stub")
    assert answers(path) == wanted


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ({}, "expert_parallel shares the experts of a layer among the ranks of tensor_parallel, and that is 1"),
        ({"pipeline_parallel": 2}, "of tensor_parallel, and that is 1"),
        ({"tensor_parallel": 2}, "expert_parallel is for a model with a mixture of experts, and this one has none"),
    ],
)
def test_whole_experts_need_ranks_and_experts(engine_of, tmp_path, ranks, why) -> None:
    model = engine_of("llama", 2, 1).parent / "model"
    with pytest.raises(InvalidOptionError, match=why):
        build(model, tmp_path / "engine", accuracy="none", max_seq_len=128, expert_parallel=True, **ranks)


def test_options(engine_of) -> None:
    with pytest.raises(InvalidOptionError, match="rank_timeout must be a number of seconds above 0"):
        LLM(engine_of("llama", 2, 1), **LIMITS, rank_timeout=0)
    assert [threads_of_rank(threads, 4) for threads in (1, 4, 9)] == [1, 1, 2]


def test_engines_have_fingerprints_of_their_own(engine_of) -> None:
    paths = [engine_of("llama", 2, 1), engine_of("llama", 2, 2), engine_of("gemma3", 1, 2)]
    assert len({fingerprint(open_engine(path)) for path in paths}) == 3
    assert fingerprint(open_engine(paths[0], rank=1)) == fingerprint(open_engine(paths[0]))
