"""One real tritonserver for most tests: two engines, both backends, TensorRT-LLM's names. Skipped where none runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.triton_server import ServerVenv, TritonServer, server_venv
from tensorwright import LLM
from tensorwright.runtime.serving.triton.repository import RepositoryOptions, write_backend, write_repository

SMALL = {"kv_cache_memory": "32MiB", "threads": "1"}


@pytest.fixture(scope="session")
def venv() -> ServerVenv:
    found = server_venv()
    if found.problem:
        pytest.skip(found.problem)
    return found


@pytest.fixture(scope="session")
def server(
    venv: ServerVenv, pico_engine: Path, toy_engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Models of pico: `tensorwright`, TensorRT-LLM's `ensemble` and `tensorrt_llm`, its LLM API's as `llmapi`.
    Of the toy engine: `endless`, and under the backend `tensorwright` `second`, which runs one completion at a time."""
    base = tmp_path_factory.mktemp("triton")
    repository = base / "repository"
    trtllm = RepositoryOptions(trtllm_names=("ensemble", "tensorrt_llm"), parameters={**SMALL, "threads": "2"})
    write_repository(pico_engine, repository, trtllm)
    write_repository(pico_engine, repository, RepositoryOptions(name="llmapi", interface="llmapi", parameters=SMALL))
    second = RepositoryOptions(
        name="second",
        backend="tensorwright",
        max_batch_size=1,
        parameters={**SMALL, "max_queue_size": "8", "max_priority": "5"},
    )
    write_repository(toy_engine, repository, second)
    write_repository(toy_engine, repository, RepositoryOptions(name="endless", parameters=SMALL))
    backends = base / "backends"
    write_backend(backends)
    (backends / "python").symlink_to(venv.root / "backends" / "python")
    with TritonServer(venv, repository, base / "tritonserver.log", backends=backends) as server:
        yield server
        assert server.stop() == 0
        assert server.shared_memory() == []


@pytest.fixture(scope="session")
def llm(pico_engine: Path) -> Iterator[LLM]:
    """The same engine in this process."""
    with LLM(pico_engine, kv_cache_memory="32MiB", threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Eight beginnings of Python code, of unequal lengths; one is not ASCII."""
    return [
        "import os", "def read_file(", "class Node:\n    def __init__(", "    for i in range(", "# Größe: ",
        "    if not isinstance(value, ", "raise ValueError(", "from collections import " * 3,
    ]  # fmt: skip
