"""Defines TritonPythonModel, which Triton's Python backend loads, and which feeds LLM.generate_async.

The file in a model repository (or in the backend's folder) imports this class. The interfaces read tensors, and
exchange.py sends answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tensorwright import errors
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.base.library_errors import as_error
from tensorwright.runtime.guided.reader import vocabulary_reader
from tensorwright.runtime.requests.request_news import RequestNews
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton.exchange import CancelledByClient, Exchange, JoinedStream, Stream
from tensorwright.runtime.serving.triton.interfaces import Interface, interface_of
from tensorwright.runtime.serving.triton.metrics import TritonMetrics
from tensorwright.runtime.serving.triton.model_config import complete
from tensorwright.runtime.serving.triton.model_options import ModelOptions, parse_options
from tensorwright.runtime.serving.triton.replies import Job, Reply
from tensorwright.runtime.serving.triton.sampling_inputs import by_input
from tensorwright.runtime.serving.triton.starting import Starting
from tensorwright.runtime.serving.triton.tensors import split_rows
from tensorwright.runtime.serving.triton.watch import Watch


class TritonPythonModel:
    """One engine in one process. The engine batches the requests of any number of clients in flight."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Adds the tensors and the decoupled mode if config.pbtxt does not have them."""
        return complete(config)

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.options: ModelOptions = parse_options(config)
        self.interface: Interface = interface_of(self.options.interface)
        self._decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self._batched = config.get("max_batch_size", 0) > 0
        folder = args["model_repository"]
        self._template = self.options.template(folder)
        adapters = self.options.adapters(folder)
        self.llm = LLM(
            self.options.engine_path(folder), chat_template=self._template, adapters=adapters, **self.options.llm
        )
        try:
            self.llm.engine.config.require_generation(self.llm.engine.path, "the backend of Triton")
        except BaseException:
            self.llm.shutdown()
            raise
        self.starting = Starting()
        self.exchange = Exchange(self.options.cancellation_check_period_ms / 1e3)
        self.metrics = TritonMetrics(_backend(), self.llm, args["model_name"], args["model_version"])
        self.watch = Watch(_backend(), self.llm, args["model_name"])

    def execute(self, requests: list[Any]) -> None:
        """Starts every request and returns; responses come from the exchange's thread."""
        for request in requests:
            channel = _Channel(request.get_response_sender(), self._decoupled)
            try:
                self._start(request, channel)
            except BaseException as error:  # The error is this request's; the others of the list must start.
                channel.send(None, as_error(error), True)

    def finalize(self) -> None:
        """Ends the running requests with an error, and shuts the engine down."""
        self.watch.close()
        self.llm.shutdown()
        self.starting.close()
        self.exchange.close()
        self.metrics.close()

    def _start(self, request: Any, channel: _Channel) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows = split_rows(inputs, self._batched)
        for row in rows:
            self.interface.check(row, self._batched)
        self.interface.check_parameters(json.loads(request.parameters() or "{}"))
        if any(row.flag("stop") for row in rows):
            self._stop(request.request_id(), channel)
            return
        known = (self.llm.engine, self.options.exclude_input_in_output, self.llm.sampling_defaults)
        jobs = [self.interface.read(row, *known) for row in rows]
        self._check_priority(jobs)
        if self._template is not None:
            jobs = [self._as_chat(job) for job in jobs]
        if not self._decoupled:
            _check_single(jobs)
        kind = Stream if self._decoupled or len(jobs) == 1 else JoinedStream
        stream = kind(request.request_id(), channel)
        params = [_timed(job, request) for job in jobs]

        def begin(stopped: threading.Event) -> None:
            try:
                self._begin(stream, jobs, params)
            except BaseException as error:  # The error, even a library's panic, ends this request only.
                channel.send(None, as_error(error), True)
                return
            self.exchange.add(stream)
            if stopped.is_set():
                stream.abort()

        if all(vocabulary_reader(self.llm.engine).knows(each.guided_decoding) for each in params):
            begin(threading.Event())
        else:
            self.starting.start(request.request_id(), begin)

    def _begin(self, stream: Stream, jobs: list[Job], params: list[SamplingParams]) -> None:
        """Starts all prompts of a request, or none. Raises the error of the first one that cannot start."""
        try:
            for index, job in enumerate(jobs):
                with by_input(job.inputs):
                    handle = self.llm.generate_async(job.prompt, params[index])
                reply = Reply(job, index if len(jobs) > 1 else None, self.llm.engine.block_size, self._batched)
                stream.parts.append((RequestNews(handle), reply))
        except BaseException:
            stream.abort()
            raise

    def _check_priority(self, jobs: list[Job]) -> None:
        asked, most = max((job.params.priority for job in jobs), default=0), self.options.max_priority
        if asked > most:
            raise InvalidRequestError(
                f"input 'priority' must be at most {most} for this model (parameter 'max_priority' of its "
                f"config.pbtxt), got {asked}"
            )

    def _as_chat(self, job: Job) -> Job:
        """Renders a text prompt as a user's message with the chat template. Token ids stay as they are."""
        if not isinstance(job.prompt, str):
            return job
        from tensorwright.runtime.api.chat import chat_prompt  # imports Jinja

        messages = [{"role": "user", "content": job.prompt}]
        return replace(job, prompt=chat_prompt(self.llm.engine, messages, self._template, True, {}))

    def _stop(self, request_id: str, channel: _Channel) -> None:
        """Ends the request of the same id, which answers with its output so far. This request gets an empty answer,
        whether or not there was one to end."""
        if not request_id:
            raise InvalidRequestError("input 'stop' needs the id of the request to stop as request id")
        self.starting.stop(request_id)  # This comes first: a request that starts meanwhile is in the exchange.
        self.exchange.stop(request_id)
        channel.send(None, None, True)


class _Channel:
    """Sends one request's responses over Triton's response sender. decoupled: whether the model may send any number of
    responses. Otherwise it must send exactly one, which may be empty."""

    def __init__(self, sender: Any, decoupled: bool):
        self._sender = sender
        self._decoupled = decoupled

    def is_cancelled(self) -> bool:
        return self._sender.is_cancelled()

    def send(self, tensors: Mapping[str, np.ndarray] | None, error: Exception | None, final: bool) -> None:
        backend = _backend()
        flags = backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        if error is not None:
            response = backend.InferenceResponse(output_tensors=[], error=_triton_error(error))
            self._sender.send(response, flags=flags)
        elif tensors is not None:
            outputs = [backend.Tensor(name, value) for name, value in tensors.items()]
            self._sender.send(backend.InferenceResponse(output_tensors=outputs), flags=flags)
        elif final and self._decoupled:
            self._sender.send(flags=flags)
        elif final:
            self._sender.send(backend.InferenceResponse(output_tensors=[]), flags=flags)


def _check_single(jobs: list[Job]) -> None:
    """Raises InvalidRequestError if the jobs need several responses, which only a decoupled model can send."""
    for what, asked in (
        ("streaming", any(job.asked.stream for job in jobs)),
        ("several completions", any(job.params.n > 1 and job.params.beam_width == 1 for job in jobs)),
        ("a beam search of one of several prompts", len(jobs) > 1 and any(job.params.beam_width > 1 for job in jobs)),
    ):
        if asked:
            raise InvalidRequestError(
                f"{what} needs the decoupled mode: write the model without --no-decoupled, or ask for one answer"
            )
    if len({job.asked.outputs() for job in jobs}) > 1:
        raise InvalidRequestError(
            "without the decoupled mode all prompts of a request must ask for the same outputs, for they are answered "
            "in one response"
        )


def _timed(job: Job, request: Any) -> SamplingParams:
    """Returns the job's parameters with a timeout. The request's own timeout, in microseconds (0 means none), holds
    unless its tensors have one."""
    microseconds = request.timeout()
    if job.params.timeout is not None or not microseconds:
        return job.params
    return replace(job.params, timeout=min(microseconds / 1e6, 1e7))


def _backend() -> Any:
    """Imports the module that exists only in Triton's stub process."""
    import triton_python_backend_utils

    return triton_python_backend_utils


def _triton_error(error: Exception) -> Any:
    kind = _backend().TritonError
    codes = [
        (CancelledByClient, kind.CANCELLED),
        (errors.InvalidRequestError, kind.INVALID_ARG),
        (errors.QueueFullError, kind.UNAVAILABLE),
        (errors.TemporarilyUnavailableError, kind.UNAVAILABLE),
        (errors.EngineStoppedError, kind.UNAVAILABLE),
        (errors.RequestAbortedError, kind.UNAVAILABLE),
    ]
    code = next((code for types, code in codes if isinstance(error, types)), kind.INTERNAL)
    return kind(str(error), code)
