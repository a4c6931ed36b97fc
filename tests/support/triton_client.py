"""tritonclient as tests use it: tensors from plain values, and one gRPC stream on which requests interleave."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import np_to_triton_dtype

from support.waiting import PATIENCE

Answer = dict[str, np.ndarray]


def inputs_of(values: Mapping[str, Any], batched: bool = True) -> list[grpc.InferInput]:
    """text: STRING, bool: BOOL, int: INT32, float: FP32, lists of them; arrays as they are, with the batch."""
    inputs = []
    for name, value in values.items():
        array = value if isinstance(value, np.ndarray) else _array(value, batched)
        tensor = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def _array(value: Any, batched: bool) -> np.ndarray:
    values = value if isinstance(value, list) else [value]
    kinds = {str: np.object_, bool: np.bool_, int: np.int32, float: np.float32}
    array = np.array([v.encode() if isinstance(v, str) else v for v in values], kinds[type(values[0])])
    return array[np.newaxis] if batched else array


class GrpcStream:
    """A client with one open stream. `ask` returns at once; `answers` waits for the end of the requests asked for."""

    def __init__(self, address: str, stream_timeout: float | None = None):
        self.client = grpc.InferenceServerClient(address)
        self._events: queue.Queue[Any] = queue.Queue()
        self._answers: dict[str, list[Answer]] = {}
        self.ended: list[str] = []
        self.client.start_stream(lambda result, error: self._events.put(error or result), stream_timeout=stream_timeout)

    def ask(self, model: str, request_id: str, values: Mapping[str, Any], batched: bool = True, **options: Any) -> None:
        self._answers[request_id] = []
        tensors = inputs_of(values, batched)
        options.setdefault("enable_empty_final_response", True)
        self.client.async_stream_infer(model, tensors, request_id=request_id, **options)

    def next(self, timeout: float = PATIENCE) -> tuple[str, Answer, bool]:
        """The next response: request id, tensors, whether it is the last. An error is raised as the client has it."""
        event = self._events.get(timeout=timeout)
        if isinstance(event, Exception):
            raise event
        response = event.get_response()
        answer = {output.name: event.as_numpy(output.name) for output in response.outputs}
        final = response.parameters["triton_final_response"].bool_param
        if answer:
            self._answers[response.id].append(answer)
        if final:
            self.ended.append(response.id)
        return response.id, answer, final

    def answers(self, request_ids: Iterable[str]) -> dict[str, list[Answer]]:
        wanted = list(request_ids)
        while not set(wanted) <= set(self.ended):
            self.next()
        return {request_id: self._answers[request_id] for request_id in wanted}

    def error(self, timeout: float = PATIENCE) -> str:
        """Waits for the stream's error; whatever else comes is a failure."""
        event = self._events.get(timeout=timeout)
        assert isinstance(event, Exception), event.get_response()
        return str(event)

    def close(self, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()

    def __enter__(self) -> GrpcStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=kind is not None)


def text_of(answers: Iterable[Answer]) -> str:
    """The streamed text."""
    return b"".join(answer["text_output"].reshape(-1)[0] for answer in answers).decode()


def tokens_of(answers: Iterable[Answer]) -> list[int]:
    """The streamed token ids."""
    return [token for answer in answers for token in answer["output_ids"].reshape(-1).tolist()]
