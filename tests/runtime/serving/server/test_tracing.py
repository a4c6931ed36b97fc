"""Spans of requests, in the SDK's exporter that keeps them in memory."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from support.served import completion
from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.serving.server import tracing
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.tracing import Tracing, require_otel

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(llm: LLM, *asked: tuple[dict[str, Any], dict[str, str]]) -> list[Any]:
    """Returns the spans of requests for completions, given their bodies and headers, in the order of their ends."""
    exporter = memory.InMemorySpanExporter()
    made = Tracing(exporter)

    async def run() -> None:
        app = create_app({"pico": llm}, tracing=made)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", timeout=60) as client:
            for body, headers in asked:
                await client.post("/v1/completions", json=body, headers=headers)
            for path in ("/health", "/ready", "/metrics"):
                await client.get(path)
            await client.get("/nowhere")

    asyncio.run(run())
    made.shutdown()
    return list(exporter.get_finished_spans())


@pytest.fixture(scope="module")
def llm(toy_engine: Path) -> Any:
    with LLM(toy_engine, threads=1, kv_cache_memory="16MiB") as opened:
        yield opened


def test_a_request_has_its_spans(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    bodies = completion([[5, 6, 7], [8, 9]], 3), completion([5], 2, stream=True), completion([5], 2, top_p=7)
    spans = spans_of(llm, (bodies[0], traceparent), (bodies[1], {"traceparent": "rubbish"}), (bodies[2], {}))
    names = [span.name for span in spans]
    phases = ["queue", "prefill", "decode", "generate pico"]
    request = "POST /v1/completions"
    assert names == [*phases, *phases, request, *phases, request, request, "GET"]
    by_id = {span.context.span_id: span for span in spans}
    first = spans[8]
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, PARENT)
    assert first.attributes["http.response.status_code"] == 200
    assert first.attributes["http.route"] == "/v1/completions"
    assert first.resource.attributes["service.name"] == "tensorwright"
    assert first.resource.attributes["deployment.environment.name"] == "test"
    for span in spans[:8]:
        parent = by_id[span.parent.span_id]
        assert parent is (first if span.name == "generate pico" else by_id[span.parent.span_id])
        assert parent.start_time <= span.start_time <= span.end_time
        assert span.context.trace_id == first.context.trace_id
    generated = spans[3]
    assert generated.attributes["gen_ai.usage.input_tokens"] == 3
    assert generated.attributes["gen_ai.usage.output_tokens"] == 3
    assert generated.attributes["gen_ai.response.finish_reasons"] == ("length",)
    queue, prefill, decode = spans[:3]
    assert queue.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert spans[13].parent is None, "a header that is no traceparent starts a trace of its own"
    assert spans[14].attributes["http.response.status_code"] == 400
    everything = str([span.to_json() for span in spans])
    assert "[5, 6, 7]" not in everything


def test_a_failed_request_says_so(llm: LLM) -> None:
    spans = spans_of(llm, (completion([5], 40, deadline=0), {}))
    failed = next(span for span in spans if span.name == "generate pico")
    assert failed.attributes["error.type"] == "DeadlineError"
    assert failed.status.status_code.name == "ERROR"
    assert next(span for span in spans if span.name.startswith("POST")).attributes["http.response.status_code"] == 504


def test_the_services_name_is_the_environments(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert spans_of(llm)[0].resource.attributes["service.name"] == "mine"


def test_spans_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
    require_otel()
    made = Tracing()
    [processor] = made._provider._active_span_processor._span_processors
    assert processor.span_exporter._endpoint == "http://collector.example:4318/v1/traces"
    made.shutdown()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(InvalidOptionError, match="OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf"):
        require_otel()


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, toy_engine: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        tracing, "find_spec", lambda name: None if name.startswith("opentelemetry.exporter") else find(name)
    )
    with pytest.raises(MissingDependencyError, match=r"opentelemetry\.exporter\.otlp.*otel"):
        require_otel()
    refused = CliRunner().invoke(cli, ["serve", str(toy_engine), "--otel"])
    assert isinstance(refused.exception, MissingDependencyError)
