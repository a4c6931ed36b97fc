"""What Triton's stub process gives a Python model: the module triton_python_backend_utils and requests, without it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from support.waiting import PATIENCE, wait_until

FINAL = 1


class Tensor:
    def __init__(self, name: str, array: np.ndarray):
        # As in the stub: the type and the memory must be right, it converts nothing.
        assert isinstance(array, np.ndarray)
        assert array.flags.c_contiguous
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL):
        super().__init__(message)
        self.code = code

    def message(self) -> str:
        return str(self)


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None


class Sender:
    """Keeps what is sent, and holds the model to the rules: nothing after FINAL, nothing asked after FINAL. Without
    decoupled: exactly one response."""

    def __init__(self, decoupled: bool = True) -> None:
        self._decoupled = decoupled
        self._sent = 0
        self.responses: list[dict[str, np.ndarray]] = []
        self.errors: list[TritonError] = []
        self.final = threading.Event()
        self.cancelled = False
        self.fail_sends = self.forgotten = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        with self._lock:
            assert not self.final.is_set(), "a response after FINAL"
            assert self._decoupled or (response is not None and self._sent == 0), "not exactly one response"
            self._sent += 1
            if self.fail_sends and response is not None:
                raise RuntimeError("the client is gone")
            if response is not None and response.error is not None:
                self.errors.append(response.error)
            elif response is not None:
                self.responses.append({tensor.name(): tensor.as_numpy() for tensor in response.output_tensors})
            if flags & FINAL:
                self.final.set()

    def is_cancelled(self) -> bool:
        assert not self.final.is_set(), "is_cancelled after FINAL"
        if self.forgotten:
            raise TritonModelException("no such request")
        return self.cancelled

    def wait(self) -> list[dict[str, np.ndarray]]:
        assert self.final.wait(PATIENCE), "no final response"
        return self.responses

    def wait_for_responses(self, count: int) -> None:
        wait_until(lambda: len(self.responses) >= count, f"{count} responses")


@dataclass
class Request:
    values: Mapping[str, np.ndarray]
    id: str = ""
    timeout_us: int = 0
    json_parameters: str = "{}"
    sender: Sender = field(default_factory=Sender)

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, value) for name, value in self.values.items()]

    def request_id(self) -> str:
        return self.id

    def timeout(self) -> int:
        return self.timeout_us

    def parameters(self) -> str:
        return self.json_parameters

    def get_response_sender(self) -> Sender:
        return self.sender


class Metric:
    def __init__(self) -> None:
        self.total = 0.0
        self.observed: list[float] = []

    def increment(self, value: float) -> None:
        self.total += value

    def set(self, value: float) -> None:
        self.total = value

    def observe(self, value: float) -> None:
        self.observed.append(value)

    def value(self) -> float:
        return self.total


class TritonModelException(Exception):  # its name there
    """What Triton's own calls raise."""


class Logger:
    @staticmethod
    def log_warn(message: str) -> None:
        print(message)

    log_info = log_error = log_warn


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name: str, description: str, kind: int):
        self.name, self.description, self.kind = name, description, kind

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:  # its name there
        return Metric()


class ModelConfig:
    """What auto_complete_config gets: as strict as Triton's about what it takes."""

    def __init__(self, config: dict[str, Any]):
        self.config = {"input": [], "output": [], "parameters": {}, **config}

    def as_dict(self) -> dict[str, Any]:
        return self.config

    def add_input(self, tensor: dict[str, Any]) -> None:
        assert set(tensor) <= {"name", "data_type", "dims", "optional"}
        self.config["input"].append(tensor)

    def add_output(self, tensor: dict[str, Any]) -> None:
        assert set(tensor) <= {"name", "data_type", "dims"}
        self.config["output"].append(tensor)

    def set_model_transaction_policy(self, policy: dict[str, bool]) -> None:
        assert set(policy) == {"decoupled"}
        self.config["model_transaction_policy"] = policy


def fake_utils() -> Any:
    module: Any = ModuleType("triton_python_backend_utils")
    module.MetricFamily, module.Logger = MetricFamily, Logger
    module.TritonModelException = TritonModelException
    module.Tensor, module.TritonError, module.InferenceResponse = Tensor, TritonError, InferenceResponse
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    return module


@contextmanager
def triton_module() -> Iterator[None]:
    sys.modules["triton_python_backend_utils"] = fake_utils()
    try:
        yield
    finally:
        del sys.modules["triton_python_backend_utils"]
