"""The backend in C++ under a real tritonserver: LLM's tokens, streams, errors and requests that clients give up."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.places import build_folder, building, find_tool
from support.toy_engine import ENDLESS
from support.triton_server import ServerVenv, TritonServer
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams

PROMPT = [3, 200, 17, 5, 64, 9]
OUTPUTS = {"output_ids": "INT32", "logprobs": "FP32", "completion": "INT32", "prompt_tokens": "INT32",
           "cached_tokens": "INT32", "finish_reason": "STRING"}  # fmt: skip


def config(engine: Path, decoupled: bool) -> str:
    """A config.pbtxt, as docs/c-interface.md has it."""
    vectors = ("output_ids", "logprobs")
    outputs = [
        f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {-1 if name in vectors else 1} ] }}'
        for name, kind in OUTPUTS.items()
    ]
    options = json.dumps({"threads": 1, "kv_cache_memory": "32MiB", "max_batch_size": 1}).replace('"', '\\"')
    return f"""
backend: "native_tensorwright"
max_batch_size: 0
model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "params" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [ {", ".join(outputs)} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "engine" value {{ string_value: "{engine}" }} }}
parameters {{ key: "options" value {{ string_value: "{options}" }} }}
"""


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of backends with this one, compiled where the module was."""
    folder = build_folder()
    if folder is None:
        pytest.skip("the module was not compiled here")
    with building():
        command = [find_tool("cmake"), "--build", str(folder), "--target", "triton_backend"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    (library,) = folder.rglob("libtriton_native_tensorwright.so")
    place = tmp_path_factory.mktemp("backends") / "native_tensorwright"
    place.mkdir()
    (place / library.name).symlink_to(library)
    return place.parent


@pytest.fixture(scope="module")
def server(
    venv: ServerVenv, backends: Path, toy_engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("c_backend") / "repository"
    for name, decoupled in (("whole", False), ("stream", True)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config(toy_engine, decoupled))
    with TritonServer(venv, repository, repository.parent / "server.log", backends=backends) as running:
        yield running
        assert running.stop() == 0


def infer(server: TritonServer, ids: list[int], params: str | None = None) -> tuple[int, Any]:
    inputs = [{"name": "input_ids", "datatype": "INT32", "shape": [len(ids)], "data": ids}]
    if params is not None:
        inputs.append({"name": "params", "datatype": "BYTES", "shape": [1], "data": [params]})
    status, text = server.get("/v2/models/whole/infer", {"inputs": inputs})
    answer = json.loads(text)
    return status, {each["name"]: each["data"] for each in answer["outputs"]} if status == 200 else answer["error"]


def stream(server: TritonServer, ids: list[int], params: str) -> Any:
    body = json.dumps({"input_ids": ids, "params": params}).encode()
    return urllib.request.urlopen(f"http://{server.http}/v2/models/stream/generate_stream", body, timeout=PATIENCE)


def events(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line[len("data: ") :])


def test_the_tokens_are_those_of_llm(server: TritonServer, toy_llm: LLM) -> None:
    params = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": 0}
    (one,) = toy_llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(**params, detokenize=False)).outputs
    status, whole = infer(server, PROMPT, json.dumps(params))
    assert status == 200
    assert (whole["output_ids"], whole["finish_reason"]) == (one.token_ids, [one.finish_reason])
    assert one.logprobs is not None
    drawn = [each[token].logprob for each, token in zip(one.logprobs, one.token_ids, strict=True)]
    assert whole["logprobs"] == pytest.approx(drawn, rel=1e-6)
    assert whole["prompt_tokens"] == [len(PROMPT)]
    assert len(infer(server, PROMPT)[1]["output_ids"]) <= 16, "the default of max_tokens"
    with stream(server, PROMPT, json.dumps({**params, "n": 1})) as answer:
        parts = list(events(answer))
    joined: list[int] = []
    for part in parts:
        ids = part["output_ids"]
        joined += ids if isinstance(ids, list) else [ids]
    assert joined == one.token_ids
    assert parts[-1]["finish_reason"] == one.finish_reason


@pytest.mark.parametrize(
    ("ids", "params", "says"),
    [
        (PROMPT, "{", "the parameters must be JSON"),
        (PROMPT, '{"stop": "x"}', "stop must be left out of the C interface"),
        (PROMPT, '{"n": 2}', "n must be 1, for this model answers a request with one response"),
        ([257], None, "prompt tokens must be in [0, 257)"),
    ],
)
def test_wrong_requests_are_told(server: TritonServer, ids: list[int], params: str | None, says: str) -> None:
    status, error = infer(server, ids, params)
    assert status == 400
    assert says in error


def test_a_client_that_goes_frees_its_place(server: TritonServer) -> None:
    """The model runs one completion at a time, so the second request is answered only once the first one is gone."""
    endless = stream(server, PROMPT, json.dumps({"max_tokens": ENDLESS, "ignore_eos": True}))
    next(events(endless))
    endless.close()

    def answered() -> bool:
        with stream(server, PROMPT, json.dumps({"max_tokens": 2, "ignore_eos": True})) as answer:
            return sum(1 for _ in events(answer)) > 0

    wait_until(answered)


def test_an_engine_that_cannot_be_opened_is_told(venv: ServerVenv, backends: Path, tmp_path: Path) -> None:
    (tmp_path / "repository/broken/1").mkdir(parents=True)
    (tmp_path / "repository/broken/config.pbtxt").write_text(config(tmp_path / "gone", False))
    log = tmp_path / "server.log"
    with pytest.raises(RuntimeError, match="not ready"):
        TritonServer(venv, tmp_path / "repository", log, backends=backends)
    assert f"{tmp_path / 'gone'}: no such engine directory" in log.read_text()
