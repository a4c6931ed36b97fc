"""What `make triton-serve` runs: the real server, found and started by its virtual environment's path alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.triton_server import free_ports
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.serving.triton.repository import RepositoryOptions, write_repository
from tensorwright.runtime.serving.triton.wheel_server import ServerVenv

COMMAND = [sys.executable, "-P", "-m", "tensorwright.runtime.serving.triton.wheel_server"]


@pytest.fixture
def address(venv: ServerVenv, pico_engine: Path, tmp_path: Path) -> Iterator[str]:
    """Of a server with a model `once`, which is not decoupled. It must end well."""
    parameters = {"kv_cache_memory": "32MiB", "threads": "1"}
    options = RepositoryOptions(name="once", decoupled=False, parameters=parameters)
    write_repository(pico_engine, tmp_path / "models", options)
    ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
    arguments = [f"--{kind}-port={port}" for kind, port in ports.items()]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, str(venv.path), "models", *arguments], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        yield f"http://127.0.0.1:{ports['http']}"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def post(url: str, body: object) -> dict[str, object]:
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=PATIENCE) as answer:
        return json.load(answer)


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/v2/health/ready", timeout=PATIENCE):
            return True
    except OSError:
        return False


def test_it_serves_and_several_prompts_have_one_answer(address: str, llm: LLM, prompts: list[str]) -> None:
    wait_until(lambda: ready(address), "a server that is ready")
    count = len(prompts)
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [count, 1], "data": prompts},
        {"name": "max_tokens", "datatype": "INT32", "shape": [count, 1], "data": [8] * count},
    ]
    answer = post(f"{address}/v2/models/once/infer", {"inputs": inputs})
    outputs = {tensor["name"]: tensor["data"] for tensor in answer["outputs"]}  # type: ignore[attr-defined]
    expected = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8))
    assert outputs["text_output"] == [
        prompt + output.outputs[0].text for prompt, output in zip(prompts, expected, strict=True)
    ]
    assert outputs["batch_index"] == [*range(count)]
