"""The OpenAPI document, and made-up requests after it: whatever comes, nothing fails inside."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.served import Served
from support.waiting import PATIENCE

PATHS = {
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/tokenize", "/detokenize",
    "/health", "/ready", "/metrics", "/v1/responses", "/v1/responses/{response_id}", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/pinned_prefixes", "/v1/pinned_prefixes/{name}",
    "/v1/embeddings", "/v1/score", "/v1/rerank", "/rerank", "/v1/cache_events",
}  # fmt: skip
FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_the_document_lists_every_path(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    assert set(document["paths"]) == PATHS


def test_made_up_requests_are_answered(served: Served) -> None:
    """Nothing above 499 but a full queue; errors in OpenAI's form, or in Anthropic's where the path is theirs."""
    import schemathesis  # which takes a second, and every worker imports this file

    schema = schemathesis.openapi.from_dict(served.client.get("/openapi.json").json())
    statuses: set[int] = set()
    for operation in (found.ok() for found in schema.get_all_operations()):
        valid = operation.as_strategy()
        wrong = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

        @FEW
        @given(case=st.one_of(valid, wrong) if operation.body else valid)
        def check(case: Any) -> None:
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "pico"  # or hardly any comes to an engine
            answer = case.call(base_url=served.url, headers=dict(served.client.headers), timeout=PATIENCE)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (answer.status_code, answer.content[:300])
            if answer.status_code >= 400:
                theirs = case.path.startswith("/v1/messages")
                words = {"message", "type"} if theirs else {"message", "type", "param", "code"}
                assert set(json.loads(answer.content)["error"]) == words

        check()
    assert {200, 400} <= statuses
