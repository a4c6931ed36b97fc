"""POST /v1/embeddings, /v1/score and /rerank: OpenAI's own client, the numbers of LLM, and typed refusals."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient

from support.made_embedders import make_embedder, make_reranker
from tensorwright import LLM, build
from tensorwright.runtime.serving.server.app import create_app

TEXTS = ["t1 t2 t3", "t4 t5", "t1 t2 t3 t9"]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LLM]]:
    root = tmp_path_factory.mktemp("embedding")
    places = {"embedder": make_embedder(root / "e", "qwen3", "pooling_mode_lasttoken"), "reranker": root / "r"}
    make_reranker(places["reranker"])
    for name, model in places.items():
        task = "rerank" if name == "reranker" else "auto"
        build(model, root / name, dtype="float32", accuracy="none", task=task)
    options: dict[str, Any] = {"kv_cache_memory": "8MiB", "threads": 1, "max_batch_size": 2, "max_queue_size": 6}
    with LLM(root / "embedder", **options) as embedder, LLM(root / "reranker", **options) as ranker:
        yield {"embedder": embedder, "reranker": ranker}


@pytest.fixture(scope="module")
def http(engines: dict[str, LLM], llm: LLM) -> TestClient:
    return TestClient(create_app({**engines, "pico": llm}))


@pytest.fixture(scope="module")
def client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=http)


def test_openai_client(client: openai.OpenAI, engines: dict[str, LLM]) -> None:
    """Without encoding_format the client asks for base64, and reads it."""
    wanted = [one.embedding for one in engines["embedder"].embed(TEXTS)]
    ids: list[list[int]] = [engines["embedder"].tokenizer.encode(text) for text in TEXTS]
    for asked in (TEXTS, ids):
        for encoding in ({}, {"encoding_format": "float"}):
            made = client.embeddings.create(model="embedder", input=asked, **encoding)  # type: ignore[arg-type]
            assert [one.index for one in made.data] == [0, 1, 2]
            for one, row in zip(made.data, wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(one.embedding, np.float32), row)
            assert (made.usage.prompt_tokens, made.usage.total_tokens) == (9, 9)
    short = client.embeddings.create(
        model="embedder", input=TEXTS[0], dimensions=8, extra_body={"prompt_name": "query"}
    )
    row = engines["embedder"].embed(TEXTS[0], dimensions=8, prompt_name="query").embedding
    np.testing.assert_array_equal(np.asarray(short.data[0].embedding, np.float32), row)
    assert [(card.id, card.task) for card in client.models.list().data] == [  # type: ignore[attr-defined]
        ("embedder", "embed"), ("reranker", "rerank"), ("pico", "generate")
    ]  # fmt: skip


def test_litellm(http: TestClient, engines: dict[str, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # It would fetch a list of prices.
    litellm = pytest.importorskip("litellm")
    client = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http)
    made = litellm.embedding(model="openai/embedder", input=TEXTS, client=client, encoding_format="float")
    wanted = [one.embedding for one in engines["embedder"].embed(TEXTS)]
    np.testing.assert_array_equal(np.asarray([one["embedding"] for one in made.data], np.float32), wanted)


@pytest.mark.parametrize("name", ["embedder", "reranker"])
def test_scores_and_rankings_are_those_of_llm(http: TestClient, engines: dict[str, LLM], name: str) -> None:
    llm = engines[name]
    made = http.post("/v1/score", json={"model": name, "text_1": "t1", "text_2": TEXTS}).json()
    scores = llm.score("t1", TEXTS)
    assert [(one["index"], one["score"]) for one in made["data"]] == list(enumerate(one.score for one in scores))
    assert made["usage"]["total_tokens"] == sum(one.prompt_tokens for one in scores)
    wanted = [(one.index, one.relevance_score) for one in llm.rerank("t1", TEXTS)]
    documents: list[Any] = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    for path, more, most in (("/v1/rerank", {}, 3), ("/rerank", {"top_n": 2, "return_documents": False}, 2)):
        answer = http.post(path, json={"model": name, "query": "t1", "documents": documents, **more})
        results = answer.raise_for_status().json()["results"]
        assert [(one["index"], one["relevance_score"]) for one in results] == wanted[:most]
        shown = [one.get("document") for one in results]
        assert shown == ([{"text": TEXTS[number]} for number, _ in wanted] if not more else [None] * most)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "text of an embedder": ("/v1/completions", {"model": "embedder", "prompt": "t1"}, "it generates no text"),
    "a chat": ("/v1/chat/completions", {"model": "embedder", "messages": [{"role": "user", "content": "t1"}]},
               "it generates no text"),
    "a chat with a reranker": ("/v1/responses", {"model": "reranker", "input": "t1"}, "built for task rerank"),
    "embeddings of a generator": ("/v1/embeddings", {"model": "pico", "input": "a"}, "built for task generate"),
    "embeddings of a reranker": ("/v1/embeddings", {"model": "reranker", "input": "a"}, "built for task rerank"),
    "a ranking of a generator": ("/rerank", {"model": "pico", "query": "a", "documents": ["b"]}, "task generate"),
    "a score of a generator": ("/v1/score", {"model": "pico", "text_1": "a", "text_2": "b"}, "task generate"),
    "no input": ("/v1/embeddings", {"model": "embedder", "input": []}, "input must be a string, a list"),
    "no documents": ("/rerank", {"model": "reranker", "query": "a", "documents": []}, "documents"),
    "dimensions": ("/v1/embeddings", {"model": "embedder", "input": "t1", "dimensions": 33}, "from 1 to 32"),
    "too many texts": ("/v1/embeddings", {"model": "embedder", "input": ["t1"] * 9}, "at most 8 prompts"),
    "a long text": ("/v1/embeddings", {"model": "embedder", "input": "t1 " * 9999}, "maximum context length"),
    "an unknown prompt": ("/v1/embeddings", {"model": "embedder", "input": "t1", "prompt_name": "x"}, "query"),
    "a token that is none": ("/v1/embeddings", {"model": "embedder", "input": [1, 999]}, "prompt_token_ids"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(http: TestClient, case: str) -> None:
    path, body, words = REFUSED[case]
    answer: httpx.Response = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_unknown_fields_are_named(http: TestClient) -> None:
    answer = http.post("/v1/embeddings", json={"model": "embedder", "input": "t1", "input_type": "x"})
    assert answer.headers["x-tensorwright-ignored"] == "input_type"
    raw = http.post("/v1/embeddings", json={"model": "embedder", "input": "t1", "encoding_format": "base64"}).json()
    assert len(base64.b64decode(raw["data"][0]["embedding"])) == 4 * 32
