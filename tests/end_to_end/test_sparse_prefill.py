"""Sparse prefill: the engine computes the rule of plugins/paged_attention/choice.py, and nobody else's work changes a
bit of it: no company, chunks, threads, preemption, and no block that was computed in another way."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.asked_loads import bits, room
from support.harness import EngineSteps, worst
from support.tiny_models import make_variant
from tensorwright import LLM, GuidedDecodingParams, SamplingParams, build
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.rebuild import read_graph
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.runtime.engine.engine_dir import open_engine

BUDGET, LENGTH = 128, 512
KINDS = {
    "float32": ("llama", {"dtype": "float32", "accuracy_tokens": LENGTH}),
    "int8": ("qwen2", {"dtype": "bfloat16", "kv_cache_dtype": "int8", "accuracy": "none"}),
}
"""A variant of tiny_models, and how its engine with sparse prefill is built."""
BOTH = pytest.mark.parametrize("root", list(KINDS), indirect=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder with a random model, and its engines with full attention and with sparse prefill."""

    @cache
    def make(kind: str) -> Path:
        root = tmp_path_factory.mktemp(kind)
        variant, options = KINDS[kind]
        make_variant(root / "model", variant, seed=3, max_position_embeddings=LENGTH)
        for file in (root / "model").glob("tokenizer*"):
            file.unlink()  # it knows few words of a text, and what is measured is then random tokens
        build(root / "model", root / "engine", sparse_prefill=BUDGET, **options)
        dense = {name: value for name, value in options.items() if name != "accuracy_tokens"}
        build(root / "model", root / "dense", **{**dense, "accuracy": "none"})
        return root

    return make


@pytest.fixture
def root(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Path:
    return made(getattr(request, "param", "float32"))


def ids_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 97, length).tolist()


def prompt(seed: int, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": ids_of(seed, length)}


def params(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, **more}, max_tokens=tokens, ignore_eos=True, logprobs=1, detokenize=False
    )


def test_logits_are_those_of_the_rule(root: Path) -> None:
    """Those of the engine's graph, interpreted, in which each whole block of the prompt chooses as the definition says.
    The dense engine is as far from the interpreted dense graph, and the two are far apart."""
    ids = ids_of(1, 300)
    weights = checkpoint_weights(open_checkpoint(root / "model"))
    ours, wanted = {}, {}
    for name, length in (("dense", None), ("engine", len(ids))):
        (logits,) = interpret_ragged(read_graph(root / name), [ids], weights, block_size=32)
        wanted[name] = logits.double().numpy()
        ours[name] = EngineSteps(root / name).logits(ids, prompt=length)
    noise, apart = worst(ours["dense"], wanted["dense"]), worst(wanted["engine"], wanted["dense"])
    assert apart > 1000 * noise
    assert worst(ours["engine"], wanted["engine"]) <= 4 * noise
    np.testing.assert_array_equal(ours["engine"][:BUDGET], ours["dense"][:BUDGET])


@BOTH
def test_rows_see_everything_unless_a_prompt_is_told(root: Path) -> None:
    """What is generated, and a prompt that is no longer than the budget, have the bits of full attention."""
    ids = ids_of(2, 200)
    dense, sparse = (EngineSteps(root / name) for name in ("dense", "engine"))
    whole = dense.logits(ids)
    for length in (None, 1, 159):
        np.testing.assert_array_equal(sparse.logits(ids, prompt=length), whole)
    assert (sparse.logits(ids, prompt=160)[BUDGET:160] != whole[BUDGET:160]).any()


@BOTH
def test_steps_hold_whole_blocks(root: Path) -> None:
    ids = ids_of(3, 230)
    steps = EngineSteps(root / "engine")
    whole = steps.logits(ids, prompt=len(ids))
    for chunks in ([32] * 7 + [6], [160, 64, 1, 5], [128, 102]):
        np.testing.assert_array_equal(steps.logits(ids, chunks, first_block=5, prompt=len(ids)), whole)
    for chunks in ([150, 80], [128, 32, 10, 60]):
        with pytest.raises(InvalidRequestError, match="a step must hold whole ones"):
            steps.logits(ids, chunks, prompt=len(ids))
    for wrong in (0, LENGTH + 1):
        with pytest.raises(InvalidRequestError, match="prompt_lens"):
            steps.logits(ids, prompt=wrong)
    with pytest.raises(InvalidRequestError, match="prompt_lens must have 0 entries"):
        EngineSteps(root / "dense").logits(ids, prompt=len(ids))


@BOTH
def test_company_chunks_preemption_and_prefixes_keep_the_bits(root: Path) -> None:
    """Prompts share beginnings, and some are no longer than the budget; some report logprobs, some have two answers."""
    stem = ids_of(9, 256)
    prompts = [{"prompt_token_ids": stem[: 64 * (i % 5)] + ids_of(i, 20 + 23 * (i % 7))} for i in range(14)]
    more = [{"prompt_logprobs": 1} if i % 5 == 4 else {} for i in range(len(prompts))]
    asked = [
        params(12 + 25 * (i % 4), seed=i, temperature=i % 2, n=1 + (i % 6 == 5), **scores)
        for i, scores in enumerate(more)
    ]
    with LLM(root / "engine", threads=1, kv_cache_memory="8MiB", max_batch_size=2, enable_prefix_caching=False) as llm:
        alone = [bits(llm.generate(p, param)) for p, param in zip(prompts, asked, strict=True)]
    for tokens in (40, 200):
        with LLM(
            root / "engine", threads=2, kv_cache_memory=room(root / "engine", 24), max_batch_size=6,
            max_num_tokens=tokens,
        ) as llm:  # fmt: skip
            for _ in range(2):
                assert [bits(output) for output in llm.generate(prompts, asked)] == alone
            # On a busy machine requests may come one after the other.
            while not (stats := llm.get_stats())["preemptions"]:
                assert [bits(output) for output in llm.generate(prompts, asked)] == alone
        assert stats["prefix_hit_tokens"] > 0
        for group in stats["groups"]:
            assert group["used_blocks"] == 0


@pytest.fixture(scope="module")
def sparse_pico(pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, whose answers repeat what prompts say, and whose tokenizer grammars can read."""
    folder = tmp_path_factory.mktemp("pico")
    return build(pico_model, folder / "engine", dtype="bfloat16", sparse_prefill=BUDGET, accuracy="none").path


REPEATING = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n"
FORCED = GuidedDecodingParams(regex="(01234){4}[a-z ]{300}")
ASKED = [
    (8 * REPEATING + "def ", SamplingParams(max_tokens=40, temperature=0, logprobs=1)),
    (9 * REPEATING, SamplingParams(max_tokens=24, temperature=0.8, seed=2, n=2, logprobs=1)),
    (7 * REPEATING + "x = ", SamplingParams(max_tokens=40, temperature=1, seed=3, logprobs=1, guided_decoding=FORCED)),
    (10 * REPEATING, SamplingParams(max_tokens=20, temperature=0, prompt_logprobs=1, logprobs=1)),
    ("import os\n", SamplingParams(max_tokens=30, temperature=0, logprobs=1)),
]


def told(outputs: list[Any]) -> list[Any]:
    return [([(c.token_ids, c.logprobs) for c in o.outputs], o.prompt_logprobs) for o in outputs]


@pytest.fixture(scope="module")
def answers_alone(sparse_pico: Path) -> list[Any]:
    pytest.importorskip("llguidance")
    with LLM(sparse_pico, threads=1, kv_cache_memory="16MiB", enable_prefix_caching=False, jump_forward=False) as llm:
        outputs = [llm.generate(*asked) for asked in ASKED]
    assert min(len(output.prompt_token_ids) for output in outputs[:4]) > BUDGET + 32
    return told(outputs)


@pytest.mark.parametrize(
    ("options", "counters"),
    [
        ({"speculative": "ngram,tokens=4", "jump_forward": False}, ["accepted_tokens"]),
        ({}, ["forced_tokens"]),
        ({"itl_goal": 1e-5, "jump_forward": False}, ["steps_over_itl_goal"]),
        (
            {"speculative": "ngram,tokens=4", "itl_goal": 1e-5},
            ["accepted_tokens", "forced_tokens", "steps_over_itl_goal"],
        ),
    ],
    ids=["ngram", "jump forward", "itl_goal", "all of them"],
)
def test_proposals_forced_tokens_and_pace_keep_the_bits(
    sparse_pico: Path, answers_alone: list[Any], options: dict[str, Any], counters: list[str]
) -> None:
    """They cut prompts and answers into other steps than those of each request alone."""
    prompts, params = zip(*ASKED, strict=True)
    memory = room(sparse_pico, 64)
    with LLM(
        sparse_pico, threads=2, kv_cache_memory=memory, max_batch_size=4, max_num_tokens=100, **options
    ) as llm:  # fmt: skip
        for _ in range(2):
            assert told(llm.generate(list(prompts), list(params))) == answers_alone
        stats = llm.get_stats()
    assert [name for name in counters if not stats[name]] == []
    assert stats["prefix_hit_tokens"] > 0


def test_what_was_generated_is_no_prefix_of_a_prompt(root: Path) -> None:
    """An answer sees everything. A prompt that goes on behind it computes the answer's blocks anew, as it would alone,
    but takes those of the first prompt."""
    first = ids_of(11, 200)
    with LLM(root / "engine", threads=1, kv_cache_memory="8MiB", max_batch_size=2) as llm:
        answer = llm.generate({"prompt_token_ids": first}, params(120)).outputs[0].token_ids
        longer = {"prompt_token_ids": first + answer}
        hits = llm.get_stats()["prefix_hit_tokens"]
        after = bits(llm.generate(longer, params(8)))
        assert llm.get_stats()["prefix_hit_tokens"] - hits == 192
        again = llm.generate({"prompt_token_ids": first}, params(120)).outputs[0].token_ids
        assert again == answer, "a longer prompt's blocks are none of the answer's"
    with LLM(root / "engine", threads=1, kv_cache_memory="8MiB", enable_prefix_caching=False) as llm:
        assert bits(llm.generate(longer, params(8))) == after


def test_answers_within_the_budget_are_prefixes(root: Path) -> None:
    """There every row sees everything, in an answer as in a prompt."""
    with LLM(root / "engine", threads=1, kv_cache_memory="8MiB") as llm:
        first = ids_of(12, 40)
        answer = llm.generate({"prompt_token_ids": first}, params(100)).outputs[0].token_ids
        hits = llm.get_stats()["prefix_hit_tokens"]
        llm.generate({"prompt_token_ids": first + answer}, params(2))
        assert llm.get_stats()["prefix_hit_tokens"] - hits == BUDGET


def test_a_pinned_prefix_of_whole_blocks(root: Path) -> None:
    with LLM(root / "engine", threads=1, kv_cache_memory="8MiB", pinned_prefix_memory=room(root / "engine", 12)) as llm:
        assert llm.pin_prefix("p", prompt(13, 256)).tokens == 256


def test_steps_too_short_for_a_block_are_refused(root: Path) -> None:
    with pytest.raises(InvalidOptionError, match="max_num_tokens must be at least 35"):
        LLM(root / "engine", threads=1, kv_cache_memory="8MiB", max_batch_size=4, max_num_tokens=34)


def test_an_engine_with_sparse_prefill_proposes_to_nobody(root: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be a draft model: it has sparse prefill"):
        LLM(
            root / "dense",
            threads=1,
            kv_cache_memory="8MiB",
            speculative={"method": "draft", "model": str(root / "engine")},
        )


def test_the_engine_tells_of_it(root: Path) -> None:
    config: EngineConfig = open_engine(root / "engine").config
    assert config.build_options["sparse_prefill"] == BUDGET
    assert config.passes["sparsify_prefill"] > 0
    assert "sparse_prefill" not in open_engine(root / "dense").config.build_options
    with pytest.raises(InvalidOptionError, match="is an engine with sparse prefill 128"):
        LLM(root / "engine", sparse_prefill=256)


def test_what_it_costs_is_measured(root: Path) -> None:
    """On sequences that are longer than the budget, or nothing would be lost."""
    accuracy = open_engine(root / "engine").config.to_dict()["accuracy"]
    assert accuracy["tokens"] == LENGTH
    assert accuracy["kl_divergence"] > 1e-3
