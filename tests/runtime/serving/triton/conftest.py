"""Models of pico and of the toy engine, with and without a batch dimension, as Triton's Python backend would load
them."""

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
def endless(request: pytest.FixtureRequest, toy_engine: Path, _utils: None) -> Iterator[TritonPythonModel]:
    """Its requests of ENDLESS tokens run as long as a test wants."""
    model = load(toy_engine, request.param, cancellation_check_period_ms="1", kv_cache_memory="64MiB")
    yield model
    model.finalize()


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
    return asking(model)


@pytest.fixture
def ask_endless(endless: TritonPythonModel) -> Ask:
    """Sends one prompt to `endless`."""
    return asking(endless)


def asking(model: TritonPythonModel) -> Ask:
    def ask(request_id: str = "", **values: object) -> Request:
        request = Request(as_inputs(values, model._batched), request_id)
        model.execute([request])
        return request

    return ask
