"""A model of pico, with and without a batch dimension, as Triton's Python backend would load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fake_triton import Request, triton_module
from support.triton_models import as_inputs, load
from tensorwright.runtime.serving.triton.model import TritonPythonModel

Ask = Callable[..., Request]


@pytest.fixture(scope="session", autouse=True)
def _utils() -> Iterator[None]:
    with triton_module():
        yield


@pytest.fixture(scope="session", params=[True, False], ids=["batched", "unbatched"])
def model(request: pytest.FixtureRequest, pico_engine: Path, _utils: None) -> Iterator[TritonPythonModel]:
    model = load(pico_engine, request.param, cancellation_check_period_ms="1")
    yield model
    model.finalize()


@pytest.fixture
def batched(request: pytest.FixtureRequest, model: TritonPythonModel) -> bool:
    return model._batched


@pytest.fixture
def ask(model: TritonPythonModel) -> Ask:
    """Sends one prompt, given as Python values, and returns the request."""

    def ask(request_id: str = "", **values: object) -> Request:
        request = Request(as_inputs(values, model._batched), request_id)
        model.execute([request])
        return request

    return ask
