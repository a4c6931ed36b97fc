"""Speculation changes no token and no bit of a logprob: greedy or sampled, alone or in company, under every option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.toy_engine import make_toy, write_toy_engine
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import EngineError, InvalidOptionError, OutOfMemoryError

REPEATING = (
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return a * b\n\n"
)
PROMPTS = [REPEATING + "def ", 2 * REPEATING, "import os\nimport sys\n\nclass Node:\n", "x = [1, 2, 3, 4, 5, 6, 7,"]
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, logprobs=3)
PARAMS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(max_tokens=48, temperature=0.9, top_p=0.95, seed=3, logprobs=2),
    "several": SamplingParams(max_tokens=32, temperature=0.7, seed=5, n=3, logprobs=1),
    "penalties": SamplingParams(
        max_tokens=48, temperature=0.0, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2, logprobs=1
    ),
    "a chain": SamplingParams(
        max_tokens=48, temperature=0.8, seed=2, typical_p=0.95, xtc_probability=0.3, xtc_threshold=0.05, logprobs=1,
        dry_multiplier=0.8, dry_allowed_length=3, no_repeat_ngram_size=6,
    ),
    "stop string": SamplingParams(max_tokens=64, temperature=0.0, stop=["return"]),
    "ends": SamplingParams(max_tokens=64, temperature=0.0, min_tokens=4, stop_token_ids=list(range(300, 500))),
    "prompt logprobs": SamplingParams(max_tokens=24, temperature=0.0, prompt_logprobs=1, logprobs=1),
    "a bias": SamplingParams(max_tokens=32, temperature=0.0, logit_bias={11: 4.0, 200: -50.0}, logprobs=1),
}  # fmt: skip


def told(llm: LLM, params: Any, prompts: list[str] = PROMPTS) -> list[Any]:
    """Returns for each prompt its completions (token ids, text, reasons, logprobs), and the prompt's logprobs."""
    return [
        ([(c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in o.outputs], o.prompt_logprobs)
        for o in llm.generate(prompts, params)
    ]


@pytest.fixture(scope="module")
def plain(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, kv_cache_memory="64MiB") as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(plain: LLM) -> Callable[[SamplingParams], list[Any]]:
    """Returns a function from parameters to what is told without speculation, which is computed once."""
    known: dict[str, list[Any]] = {}

    def get(params: SamplingParams) -> list[Any]:
        if repr(params) not in known:
            known[repr(params)] = told(plain, params)
        return known[repr(params)]

    return get


FORMS = (
    ("ngram", "ngram,tokens=5", "suffix,tokens=4"), ("draft", "draft,tokens=3"), ("heads", "heads,tokens=3"),
)  # fmt: skip
"""The forms of each way to propose: from the text itself, by a model, by heads. What is proposed is verified in one
way, whatever form proposed it, so the forms of a way share the parameters between them."""
SHARED = sorted((forms[place % len(forms)], name) for forms in FORMS for place, name in enumerate(PARAMS))


@pytest.fixture(scope="module")
def drafting(request: pytest.FixtureRequest, pico_engine: Path, pico_draft_engine: Path) -> Iterator[LLM]:
    form: str = request.param
    speculative = form.replace("draft", f"draft,model={pico_draft_engine}")
    engine = request.getfixturevalue("pico_heads_engine") if form.startswith("heads") else pico_engine
    with LLM(engine, kv_cache_memory="64MiB", speculative=speculative) as llm:
        yield llm


@pytest.mark.parametrize(("drafting", "name"), SHARED, indirect=["drafting"])
def test_the_same_bits_as_without(expected: Callable[[SamplingParams], list[Any]], drafting: LLM, name: str) -> None:
    params, before = PARAMS[name], drafting.get_stats()
    assert told(drafting, params) == expected(params)
    stats = drafting.get_stats()
    if drafting.options.speculation.tokens:
        assert stats["draft_tokens"] > before["draft_tokens"]
    assert sum(stats["accepted_at"]) == stats["accepted_tokens"]
    assert stats["draft_failures"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 1, "threads": 1, "enable_prefix_caching": False},
        {"max_prefill_chunk": 7, "max_num_tokens": 24, "max_batch_size": 3}, {"kv_cache_memory": "3MiB"},
    ],
    ids=["one after the other, with one thread and no prefix cache", "small chunks", "few blocks"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["ngram", "draft", "heads"])
def test_under_any_limits(
    expected: Callable[[SamplingParams], list[Any]],
    pico_engine: Path,
    pico_draft_engine: Path,
    pico_heads_engine: Path,
    options: dict[str, Any],
    method: str,
) -> None:
    limits = {"kv_cache_memory": "64MiB", **options}
    of_draft = {"model": pico_draft_engine, "kv_cache_memory": "1MiB"} if method == "draft" else {}
    engine = pico_heads_engine if method == "heads" else pico_engine
    with LLM(engine, **limits, speculative={"method": method, "tokens": 6, **of_draft}) as llm:
        assert told(llm, GREEDY) == expected(GREEDY)
        assert llm.get_stats()["accepted_tokens"] > 0


@pytest.mark.parametrize("drafting", [form for form, *_ in FORMS], indirect=True)
def test_guided_answers_are_the_same(plain: LLM, drafting: LLM) -> None:
    pytest.importorskip("llguidance")
    guided = GuidedDecodingParams(regex=r"(\[[0-9, ]{4,9}\]\n){3}")
    params = SamplingParams(max_tokens=40, temperature=0.0, guided_decoding=guided, logprobs=1)
    prompts = ["rows = [[1, 2, 3],\n[1, 2, 3],\n[1, 2, 3],\n[1, 2, 3],\n"]
    assert told(drafting, params, prompts) == told(plain, params, prompts)


def test_a_request_tells_what_became_of_its_drafts(pico_engine: Path) -> None:
    with LLM(pico_engine, kv_cache_memory="64MiB", speculative="ngram,tokens=4") as llm:
        metrics = llm.generate(PROMPTS[1], GREEDY).metrics
        stats = llm.get_stats()
    assert (metrics.draft_tokens, metrics.accepted_tokens) == (stats["draft_tokens"], stats["accepted_tokens"])
    assert 0 < metrics.accepted_tokens <= metrics.draft_tokens
    assert stats["steps"] < 64


def test_what_was_said_before_is_proposed_to_the_same_salt_alone(plain: LLM, pico_engine: Path) -> None:
    prompt = "import re\n\nclass Scanner:\n    def scan("
    mine, other = (
        SamplingParams(max_tokens=60, temperature=0.9, seed=4, cache_salt=salt) for salt in ("mine", "other")
    )
    with LLM(pico_engine, kv_cache_memory="64MiB", speculative="suffix,tokens=8") as llm:
        told_first, strange, again = (llm.generate(prompt, params) for params in (mine, other, mine))
    expected = plain.generate(prompt, mine).outputs[0].token_ids
    for output in (told_first, strange, again):
        assert output.outputs[0].token_ids == expected
    assert strange.metrics.accepted_tokens == told_first.metrics.accepted_tokens
    assert told_first.metrics.accepted_tokens < 40 < again.metrics.accepted_tokens


def test_a_draft_of_other_tokens_is_refused(pico_engine: Path, tmp_path: Path) -> None:
    toy_engine = write_toy_engine(tmp_path / "toy", make_toy())
    with pytest.raises(InvalidOptionError, match=f"{toy_engine} cannot be a draft model of .*: its tokenizer"):
        LLM(pico_engine, speculative={"method": "draft", "model": toy_engine})


def test_a_draft_of_another_target_is_refused(pico_engine: Path, pico_engine_onnx: Path) -> None:
    with pytest.raises(InvalidOptionError, match="a draft model needs an engine of target cpu"):
        LLM(pico_engine, speculative={"method": "draft", "model": pico_engine_onnx})


def test_a_draft_that_is_not_there_is_named(pico_engine: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="absent"):
        LLM(pico_engine, speculative=f"draft,model={tmp_path / 'absent'}")


def test_a_cache_of_the_draft_that_is_too_small_is_refused(pico_engine: Path, pico_draft_engine: Path) -> None:
    speculative = f"draft,model={pico_draft_engine},kv_cache_memory=1KiB"
    with pytest.raises(OutOfMemoryError, match=r"for the draft model .*, kv_cache_memory must hold at least one block"):
        LLM(pico_engine, kv_cache_memory="64MiB", speculative=speculative)
