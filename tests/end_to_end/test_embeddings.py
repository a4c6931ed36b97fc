"""Embeddings and scores: those of transformers, and the same bits in any company, however prompts are cut.

A hidden state may differ as the logits of test_parity_float32.py may, for the final norm is a part of the same sums: by
four times what transformers' own float32 is off, and a rounding. A mean of rows is no further off than its rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from support.harness import reference_logits, worst
from support.made_embedders import NO, PROMPTS, YES, make_embedder, make_reranker
from tensorwright import LLM, build
from tensorwright.builder.pooling import RERANK_INSTRUCTION
from tensorwright.errors import (
    InvalidOptionError,
    InvalidRequestError,
    PromptTooLongError,
    TaskError,
    UnsupportedModelError,
)
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine

LENGTHS = (1, 2, 31, 32, 33, 100)
VOCAB = 101
KINDS = {
    "qwen3-last": ("qwen3", None, "last"),
    "qwen3-mean": ("qwen3", "pooling_mode_mean_tokens", "mean"),
    "mistral-last": ("mistral", "pooling_mode_lasttoken", "last"),  # it has a sliding window
    "mistral-mean": ("mistral", "pooling_mode_mean_tokens", "mean"),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A checkpoint, its engine and the mode of pooling."""
    family, mode, pooling = KINDS[request.param]
    root = tmp_path_factory.mktemp(request.param)
    model = make_embedder(root / "model", family, mode)
    build(model, root / "engine", dtype="float32")
    return model, root / "engine", pooling


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("reranker")
    model = make_reranker(root / "model")
    build(model, root / "engine", dtype="float32", accuracy="none", task="rerank")
    return model, root / "engine"


def prompt_of(length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": np.random.default_rng(length).integers(0, VOCAB, length).tolist()}


PROMPT_LIST = [prompt_of(length) for length in LENGTHS]


def hidden_states(model: Path, ids: list[int], dtype: torch.dtype) -> np.ndarray:
    loaded = AutoModel.from_pretrained(model, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return loaded(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()


@pytest.mark.parametrize("length", LENGTHS)
def test_values_are_those_of_transformers(pair: tuple[Path, Path, str], length: int) -> None:
    model, engine, pooling = pair
    [ids] = prompt_of(length).values()
    exact, theirs = (hidden_states(model, ids, dtype) for dtype in (torch.float64, torch.float32))
    allowed = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    wanted = exact[-1] if pooling == "last" else exact.mean(axis=0)
    with LLM(engine, kv_cache_memory="4MiB", threads=1) as llm:
        raw = llm.embed(prompt_of(length), normalize=False)
        whole, short = llm.embed(prompt_of(length)), llm.embed(prompt_of(length), dimensions=8)
    assert raw.embedding.dtype == np.float32
    assert float(np.abs(raw.embedding - wanted).max()) <= allowed
    for made, part in ((whole, raw.embedding), (short, raw.embedding[:8])):
        wide = part.astype(np.float64)
        np.testing.assert_array_equal(made.embedding, (wide / np.sqrt((wide * wide).sum())).astype(np.float32))


@pytest.fixture(scope="module")
def alone(pair: tuple[Path, Path, str]) -> list[bytes]:
    """The bits of every prompt that is computed alone."""
    with LLM(pair[1], kv_cache_memory="4MiB", threads=1, max_batch_size=1, enable_prefix_caching=False) as llm:
        return [llm.embed(prompt).embedding.tobytes() for prompt in PROMPT_LIST]


def preempt_every(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Makes the engines of a test preempt a prompt again and again: no such engine does by itself, for a prompt that
    runs has all its blocks."""
    module = native.load_module()

    def options() -> Any:
        made = module.EngineOptions()
        made.debug_preempt_every = steps
        return made

    names = {name: getattr(module, name) for name in dir(module)}
    monkeypatch.setattr(native, "load_module", lambda: SimpleNamespace(**{**names, "EngineOptions": options}))


@pytest.mark.computes(least="avx2")
@pytest.mark.parametrize(("chunk", "preempted"), [(1, 0), (7, 0), (None, 0), (7, 2)])
def test_bits_do_not_depend_on_company_chunks_threads_and_preemption(
    pair: tuple[Path, Path, str],
    alone: list[bytes],
    chunk: int | None,
    preempted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preempt_every(monkeypatch, preempted)
    options: dict[str, Any] = {"kv_cache_memory": "4MiB", "max_num_tokens": 64, "max_prefill_chunk": chunk}
    with LLM(pair[1], threads=2, max_batch_size=8, **options) as llm:
        for _ in range(2):  # the second time prefixes are in the cache
            made = llm.embed(PROMPT_LIST * 3)
            assert [one.embedding.tobytes() for one in made] == alone * 3
        hits = made[len(LENGTHS) - 1].cached_tokens
        assert (hits > 0) == (pair[2] == "last"), "a mean needs the rows of all positions, so it takes no prefix"
        stats = llm.get_stats()
    assert (stats["preemptions"] > 0) == (preempted > 0)
    assert (stats["running"], stats["waiting"], stats["used_blocks"], stats["generated_tokens"]) == (0, 0, 0, 0)


def test_what_the_engine_records(pair: tuple[Path, Path, str]) -> None:
    config = open_engine(pair[1]).config
    assert config.task == "embed"
    assert config.pooling is not None
    assert (config.pooling.pooling, config.pooling.normalize) == (pair[2], True)
    assert config.accuracy is not None
    assert config.accuracy.least_cosine is not None
    assert config.accuracy.least_cosine > 0.999
    assert config.accuracy.largest_logit_error is None
    plan_weights = (pair[1] / "graph.txt").read_text()
    assert "lm_head" not in plan_weights


def test_prompts_by_name(pair: tuple[Path, Path, str]) -> None:
    """A prompt is the text before the text; the longest prompt is that of max_seq_len tokens."""
    with LLM(pair[1], kv_cache_memory="4MiB", threads=1) as llm:
        known = open_engine(pair[1]).config.pooling.prompts  # type: ignore[union-attr]
        if not known:
            with pytest.raises(InvalidRequestError, match=r"prompt_name must be one of .* \(none\), got 'query'"):
                llm.embed("t1", prompt_name="query")
            return
        assert known == PROMPTS
        named, plain = llm.embed("t1 t2", prompt_name="query"), llm.embed("t5 t6 t1 t2")
        assert named.prompt_token_ids == [5, 6, 1, 2]
        np.testing.assert_array_equal(named.embedding, plain.embedding)
        with pytest.raises(InvalidRequestError, match="token ids have no text"):
            llm.embed(prompt_of(3), prompt_name="query")


def test_bounds_and_refusals(pair: tuple[Path, Path, str]) -> None:
    with LLM(pair[1], kv_cache_memory="4MiB", threads=1) as llm:
        longest = llm.max_seq_len
        assert llm.embed(prompt_of(longest)).embedding.shape == (32,), "nothing is generated, so no room is needed"
        with pytest.raises(PromptTooLongError, match=f"maximum context length is {longest} tokens"):
            llm.embed(prompt_of(longest + 1))
        for dimensions in (0, 33, 1.5, True):
            with pytest.raises(InvalidRequestError, match="dimensions must be a whole number from 1 to 32"):
                llm.embed("t1", dimensions=dimensions)  # type: ignore[arg-type]
        with pytest.raises(TaskError, match="built for task embed: it gives embeddings, and it generates no text"):
            llm.generate("t1")
    with pytest.raises(InvalidOptionError, match=r"speculative: .* task embed"):
        LLM(pair[1], speculative="ngram")


def test_scores_of_embeddings_are_cosines(pair: tuple[Path, Path, str]) -> None:
    texts = ["t1 t2", "t7 t8 t9", "t1 t2"]
    with LLM(pair[1], kv_cache_memory="4MiB", threads=1) as llm:
        rows = [one.embedding.astype(np.float64) for one in llm.embed(texts, normalize=False)]
        one_query, pairs = llm.score(texts[0], texts), llm.score(texts, texts)
        ranked = llm.rerank(texts[0], texts, top_n=2)
        with pytest.raises(InvalidRequestError, match="as many as text_2"):
            llm.score(texts[:2], texts)
    lengths = [np.sqrt((row * row).sum()) for row in rows]
    wanted = [float((rows[0] * row).sum() / (lengths[0] * length)) for row, length in zip(rows, lengths, strict=True)]
    assert [one.score for one in one_query] == pytest.approx(wanted, abs=1e-15)
    assert [one.score for one in pairs] == pytest.approx([1.0] * 3, abs=1e-15)
    assert [one.index for one in ranked] == [0, 2]
    assert [one.prompt_tokens for one in one_query] == [4, 3, 2], "the one query is computed once"


def test_a_reranker(reranker: tuple[Path, Path]) -> None:
    """The score is the softmax of the logits of yes and no behind the model's own template."""
    model, engine = reranker
    documents = ["t7 t8 t9", "t1 t3 {query}", "t20 t21"]
    with LLM(engine, kv_cache_memory="4MiB", threads=1) as llm:
        outputs = llm.score("t3 t4", documents)
        ranked = llm.rerank("t3 t4", documents)
        record = llm.engine.config.pooling
        assert record is not None
        assert record.template is not None
        texts = [
            record.template.replace("{document}", document).replace("{instruction}", RERANK_INSTRUCTION, 1)
            .replace("{query}", "t3 t4", 1)
            for document in documents
        ]  # fmt: skip
        for output, text in zip(outputs, texts, strict=True):
            ids = llm.tokenizer.encode(text, add_special_tokens=False)
            exact, theirs = (reference_logits(model, ids, dtype)[-1] for dtype in (torch.float64, torch.float32))
            wanted = 1 / (1 + np.exp(exact[NO] - exact[YES]))
            off = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
            assert abs(output.score - wanted) <= off / 2, "a sigmoid moves by a quarter of what two logits do"
        with pytest.raises(TaskError, match="task rerank, and this needs one of task embed"):
            llm.embed("t1")
        with pytest.raises(TaskError, match="built for task rerank"):
            llm.generate("t1")
    assert sorted((-one.score, number) for number, one in enumerate(outputs)) == [
        (-one.relevance_score, one.index) for one in ranked
    ]


def test_a_generating_engine_refuses(pico_engine: Path) -> None:
    with LLM(pico_engine, kv_cache_memory="4MiB", threads=1) as llm:
        for ask in (lambda: llm.embed("a"), lambda: llm.score("a", "b"), lambda: llm.rerank("a", ["b"])):
            with pytest.raises(TaskError, match="built for task generate"):
                ask()


WRONG_FILES: dict[str, tuple[str, Any, str]] = {
    "a module": ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"},
                                  {"type": "x.Dense", "path": "2_Dense"}], "the module Dense is not computed"),
    "a mode": ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "not pooling_mode_cls_token"),
    "two modes": ("1_Pooling/config.json", {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True},
                  "must be one of"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_FILES)
def test_files_that_are_refused(pair: tuple[Path, Path, str], tmp_path: Path, case: str) -> None:
    file, content, message = WRONG_FILES[case]
    model = make_embedder(tmp_path / "model", "qwen3", "pooling_mode_lasttoken")
    (model / file).write_text(json.dumps(content))
    with pytest.raises(UnsupportedModelError, match=message):
        build(model, tmp_path / "engine", accuracy="none")


def test_builds_that_are_refused(tmp_path: Path, reranker: tuple[Path, Path]) -> None:
    model = make_embedder(tmp_path / "model", "qwen3")
    for options, message in (
        ({"target": "onnx"}, "task embed is built for target cpu alone"),
        ({"accuracy": "full"}, "accuracy full compares logits"),
        ({"tensor_parallel": 2}, "tensor_parallel is for engines that generate"),
        ({"quantize": "mixed:4.5"}, "does not compute; name the formats"),
        ({"task": "generate", "pooling": "mean"}, "is for task embed"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            build(model, tmp_path / "engine", **options)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="for its hidden states, build with task embed"):
        build(model, tmp_path / "engine", task="generate")
    with pytest.raises(UnsupportedModelError, match='no single tokens "yes" and "no"'):
        build(tmp_path / "model-whole", tmp_path / "engine", task="rerank")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(UnsupportedModelError, match="is an encoder"):
        build(model, tmp_path / "engine")
