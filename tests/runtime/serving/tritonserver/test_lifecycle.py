"""Loading and unloading, a model's process that dies, and the end of the server: servers of their own, made for it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.toy_engine import ENDLESS
from support.triton_client import GrpcStream, text_of
from support.triton_server import ServerVenv, TritonServer
from support.waiting import PATIENCE, wait_until
from tensorwright.runtime.serving.triton.repository import RepositoryOptions, write_repository

SMALL = {"kv_cache_memory": "32MiB", "threads": "1"}
ASKED = {"text_input": "import os", "max_tokens": 4}
LONG = {"text_input": "import os", "max_tokens": 900, "min_tokens": 900, "stream": True}


@pytest.fixture(scope="module")
def repository(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lifecycle") / "repository"
    write_repository(pico_engine, folder, RepositoryOptions(parameters=SMALL))
    return folder


@pytest.fixture(scope="module")
def server(venv: ServerVenv, repository: Path) -> Iterator[TritonServer]:
    """In explicit mode, nothing loaded. How it ends is not asserted: a test kills a model's process."""
    log = repository.parent / "explicit.log"
    with TritonServer(venv, repository, log, "--model-control-mode=explicit", exit_timeout=2) as server:
        yield server


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def wait_until_nothing_is_shared(server: TritonServer) -> None:
    """The server gives memory back a moment after the process of its model has ended."""
    wait_until(lambda: server.shared_memory() == [], "no shared memory")


def generate(server: TritonServer) -> str:
    status, body = server.get("/v2/models/tensorwright/generate", ASKED)
    return json.loads(body)["text_output"] if status == 200 else json.loads(body)["error"]


def test_loading_and_unloading_leaves_nothing_behind(server: TritonServer) -> None:
    assert not server.is_ready("tensorwright")
    resident, texts = [], set()
    for _ in range(3):
        assert server.load("tensorwright") == (200, "")
        assert server.is_ready("tensorwright")
        assert len(server.processes()) == 1
        texts.add(generate(server))
        assert server.unload("tensorwright") == (200, "")
        wait_until(lambda: not server.processes(), "the end of the model's process")
        assert not server.is_ready("tensorwright")
        assert "no available versions" in generate(server)
        wait_until_nothing_is_shared(server)
        wait_until(lambda: server.metric("tensorwright_engine_up") is None)
        resident.append(resident_kib(server.process.pid))
    assert len(texts) == 1
    assert next(iter(texts)).startswith("import os")
    # The first load maps libraries and fills the allocator's pools; the others may not add to it.
    assert max(resident[1:]) - resident[0] < 8 * 1024, resident


def test_unloading_waits_for_what_runs(server: TritonServer) -> None:
    assert server.load("tensorwright")[0] == 200
    with GrpcStream(server.grpc) as stream:
        stream.ask("tensorwright", "1", {**LONG, "max_tokens": 300, "min_tokens": 300})
        stream.next()
        assert server.unload("tensorwright")[0] == 200
        assert not server.is_ready("tensorwright")
        assert sum(1 for _ in stream.answers(["1"])["1"]) > 1
    wait_until(lambda: not server.processes(), "the end of the model's process")


def test_a_model_that_cannot_load_says_why(server: TritonServer, repository: Path) -> None:
    parameters = {"engine": {"string_value": "/no/such/engine"}}
    config = {"backend": "python", "max_batch_size": 8, "parameters": parameters}
    status, body = server.load("tensorwright", config=json.dumps(config))
    assert status == 400
    assert "/no/such/engine" in body
    assert not server.is_ready("tensorwright")
    wait_until_nothing_is_shared(server)


DYING = '''
import threading, time
from pathlib import Path
from tensorwright.runtime.serving.triton.model import TritonPythonModel as Base

class TritonPythonModel(Base):
    """Its engine stops once there is a file `die`."""
    def initialize(self, args):
        super().initialize(args)
        threading.Thread(target=self.die, args=(Path(args["model_repository"]) / "die",), daemon=True).start()

    def die(self, file):
        while not file.exists():
            time.sleep(0.02)
        self.llm.shutdown()
'''


def test_a_model_whose_engine_died_is_not_ready(server: TritonServer, repository: Path, toy_engine: Path) -> None:
    """It unloads itself, which Triton allows in explicit mode only; without, its requests have the engine's error."""
    (folder,) = write_repository(toy_engine, repository, RepositoryOptions(name="dying", parameters=SMALL))
    (folder / "1" / "model.py").write_text(DYING)
    assert server.load("dying") == (200, "")
    with GrpcStream(server.grpc) as stream:
        stream.ask("dying", "1", {**LONG, "max_tokens": ENDLESS, "min_tokens": ENDLESS})
        stream.next()
        (folder / "die").touch()
        with pytest.raises(Exception, match="shut down"):
            stream.answers(["1"])
    wait_until(lambda: not server.is_ready("dying"), "a model that is not ready")
    wait_until(lambda: not server.processes(), "the end of the model's process")
    wait_until_nothing_is_shared(server)
    (folder / "die").unlink()
    assert server.load("dying") == (200, "")
    assert server.unload("dying") == (200, "")
    wait_until(lambda: not server.processes(), "the end of the model's process")
    shutil.rmtree(folder)


def test_a_model_whose_process_was_killed_answers_with_an_error_and_can_be_loaded_again(server: TritonServer) -> None:
    """What Triton 2.51 does, as seen: the model stays "ready", its requests are answered with an error, and
    `load` (not `unload`) brings it back."""
    assert server.load("tensorwright")[0] == 200
    (process,) = server.processes()
    os.kill(process, signal.SIGKILL)
    assert "is not healthy" in generate(server)
    assert server.is_ready("tensorwright")
    server.unload("tensorwright")
    assert server.load("tensorwright")[0] == 200
    assert generate(server).startswith("import os")


def test_a_server_stopped_under_load_lets_requests_finish(venv: ServerVenv, repository: Path) -> None:
    """As long as its exit timeout allows: 16 streams over gRPC and one over HTTP come to their end."""
    asked = {**LONG, "max_tokens": 64, "min_tokens": 64}
    with TritonServer(venv, repository, repository.parent / "finishing.log", exit_timeout=120) as server:
        streams = [GrpcStream(server.grpc) for _ in range(4)]
        for stream in streams:
            for index in range(4):
                stream.ask("tensorwright", str(index), asked)
        connection = http.client.HTTPConnection(server.http, timeout=PATIENCE)
        connection.request("POST", "/v2/models/tensorwright/generate_stream", json.dumps(asked))
        answer = connection.getresponse()
        for stream in streams:
            stream.next()
        (model,) = server.processes()
        server.process.send_signal(signal.SIGTERM)
        assert answer.read().endswith(b"\n\n")
        connection.close()
        for stream in streams:
            for answers in stream.answers(map(str, range(4))).values():
                assert text_of(answers)
            stream.close()
        assert server.stop() == 0
        assert server.shared_memory() == []
        wait_until(lambda: not Path(f"/proc/{model}").exists(), "the end of the model's process")
