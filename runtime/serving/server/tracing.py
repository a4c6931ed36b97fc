"""Makes OpenTelemetry spans of requests: one of the HTTP request, and of each prompt its queue, prefill and decode.

The packages of the extra otel are imported only where somebody asks for traces. Where the spans go, how many are kept
and what the service is called say OpenTelemetry's own variables of the environment (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and so on). A span of the client, in the header traceparent (W3C Trace Context),
is the parent of the request's span. Names of attributes are those of OpenTelemetry's conventions for HTTP and for
generative AI. No span holds text of prompts or answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import tensorwright
from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.runtime.requests.request_handle import RequestHandle

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
SERVICE = "tensorwright"
"""The name of the service, unless the environment has another one."""


def require_otel() -> None:
    """Raises MissingDependencyError if packages are missing, and InvalidOptionError for a protocol that is not
    spoken."""
    missing = [name for name in PACKAGES if not _is_there(name)]
    if missing:
        raise MissingDependencyError(f"--otel needs {', '.join(missing)}, which is not installed: {install('otel')}")
    for name in PROTOCOLS:
        if (asked := os.environ.get(name, "").strip()) and asked != PROTOCOL:
            raise InvalidOptionError(f"{name} must be {PROTOCOL} or unset with --otel, got {asked!r}")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


class Tracing:
    """What makes the spans of one server and sends them. exporter: None means OTLP, as the environment says."""

    def __init__(self, exporter: Any = None):
        from opentelemetry.propagators.textmap import DefaultGetter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if exporter is None:
            require_otel()
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        resource = Resource({"service.name": SERVICE, "service.version": tensorwright.__version__})
        # What the environment says of the resource replaces what is said here.
        given = Resource.create()
        named = given.attributes.get("service.name")
        resource = given.merge(resource) if str(named).startswith("unknown_service") else resource.merge(given)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tensorwright", tensorwright.__version__)
        self._propagator = TraceContextTextMapPropagator()
        self._getter = DefaultGetter()

    def begin(self, scope: Scope) -> Any:
        """Begins the span of an HTTP request."""
        from opentelemetry.trace import SpanKind

        headers = Headers(scope=scope)
        carrier = {name: value for name in ("traceparent", "tracestate") if (value := headers.get(name)) is not None}
        context = self._propagator.extract(carrier, getter=self._getter)
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        return self._tracer.start_span(scope["method"], context, SpanKind.SERVER, attributes)

    def end(self, span: Any, scope: Scope, status: int) -> None:
        """Ends the span of a request, after it has spans for what the engine did. status: the HTTP status; 0 means that
        the client left before the answer began."""
        from opentelemetry.trace import StatusCode

        route = getattr(scope.get("route"), "path", None)
        if route is not None:
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("tensorwright.http_request_id", scope["state"]["request_id"])
        if status:
            span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        if span.is_recording():
            self._add_work(span, scope["state"]["handles"], scope["state"]["facts"].get("model", ""))
        span.end()

    def _add_work(self, parent: Any, handles: Sequence[RequestHandle], model: str) -> None:
        from opentelemetry.trace import StatusCode, set_span_in_context

        now, context = time.time_ns(), set_span_in_context(parent)
        for handle in handles:
            output = handle.so_far()
            times = output.metrics
            begin = int((times.arrival_time or now / 1e9) * 1e9)
            queued = _after(begin, times.queue_time)
            first = _after(begin, times.time_to_first_token)
            end = _after(begin, times.total_time) or now
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": len(output.prompt_token_ids),
                "gen_ai.usage.output_tokens": sum(len(completion.token_ids) for completion in output.outputs),
                "gen_ai.response.finish_reasons": [each.finish_reason or "error" for each in output.outputs],
                "tensorwright.request_id": handle.request_id,
                "tensorwright.cached_tokens": times.cached_tokens,
            }
            if times.draft_tokens:
                attributes["tensorwright.draft_tokens"] = times.draft_tokens
                attributes["tensorwright.accepted_tokens"] = times.accepted_tokens
            span = self._tracer.start_span(f"generate {model}", context, attributes=attributes, start_time=begin)
            if (error := handle.error) is not None:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
            inside = set_span_in_context(span)
            phases = (("queue", begin, queued or end), ("prefill", queued, first or end), ("decode", first, end))
            for name, start, stop in phases:
                if start is not None:  # the request has come so far
                    self._tracer.start_span(name, inside, start_time=start).end(max(start, stop))
            span.end(max(begin, end))

    def shutdown(self) -> None:
        """Sends what is left, in the time that OTEL_EXPORTER_OTLP_TIMEOUT gives, and ends the sender's thread."""
        self._provider.shutdown()


def _after(begin: int, seconds: float | None) -> int | None:
    return None if seconds is None else begin + int(seconds * 1e9)


class TraceGuard:
    """Makes a span of each request, but of those for `quiet` paths."""

    def __init__(self, app: ASGIApp, tracing: Tracing, quiet: Collection[str]):
        self._app = app
        self._tracing = tracing
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._quiet:
            await self._app(scope, receive, send)
            return
        span, status = self._tracing.begin(scope), 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)  # the message may name files of this machine
            status = status or 500
            raise
        finally:
            self._tracing.end(span, scope, status)
