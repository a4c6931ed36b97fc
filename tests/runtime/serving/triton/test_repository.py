"""`tensorwright triton-repo`: what it writes is what the server reads, whole or not at all."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from support.command_line import call
from support.fake_runtime import write_engine
from tensorwright.command import run_command
from tensorwright.errors import BuildError, EngineError, InvalidOptionError, OutputExistsError
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.serving.triton.interfaces import INTERFACES
from tensorwright.runtime.serving.triton.model_options import parse_options
from tensorwright.runtime.serving.triton.repository import (
    MODEL_FILE,
    RepositoryOptions,
    write_backend,
    write_repository,
)
from tensorwright.runtime.serving.triton.wheel_server import serve
from tensorwright.triton_model import TritonPythonModel


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine")


def read_config(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def options_of(folder: Path) -> Any:
    """As the model gets them: through the server's JSON."""
    return parse_options(json.loads(json_format.MessageToJson(read_config(folder), preserving_proto_field_name=True)))


def files(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")))


def test_a_model_folder(engine: Path, tmp_path: Path) -> None:
    (folder,) = write_repository(engine, tmp_path / "repo", RepositoryOptions(parameters={"kv_cache_memory": "1MiB"}))
    assert list(files(tmp_path / "repo")) == [
        "tensorwright", "tensorwright/1", "tensorwright/1/model.py", "tensorwright/config.pbtxt",
    ]  # fmt: skip
    config = read_config(folder)
    assert (config.name, config.backend, config.max_batch_size) == ("tensorwright", "python", 64)
    assert config.model_transaction_policy.decoupled
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    options = options_of(folder)
    assert options.engine_path(folder) == engine
    assert options.llm == {
        "kv_cache_memory": "1MiB",
        "max_batch_size": 64,
        "generation_config": "neutral",
        "watchdog": "restart",
        "guided_vocabulary": "eager",
    }
    assert (options.interface, options.exclude_input_in_output) == ("both", False)
    namespace: dict[str, Any] = {}
    exec((folder / "1/model.py").read_text(), namespace)
    assert hasattr(namespace["TritonPythonModel"], "execute")


def test_written_repositories_name_what_never_moves() -> None:
    """They live longer than this project's folders: change neither the module's name nor the class's."""
    code = [line for line in MODEL_FILE.splitlines() if line.startswith(("from", "import"))]
    assert code == ["from tensorwright.triton_model import TritonPythonModel as TritonPythonModel"]
    former = importlib.import_module("tensorwright.runtime.triton.model")  # the name in earlier repositories
    assert former.TritonPythonModel is TritonPythonModel


@pytest.mark.parametrize("interface", INTERFACES)
def test_tensors_are_the_interfaces(engine: Path, tmp_path: Path, interface: str) -> None:
    (folder,) = write_repository(engine, tmp_path, RepositoryOptions(interface=interface))
    config = read_config(folder)
    assert config.max_batch_size == (0 if interface == "llmapi" else 64)
    for told, known in ((config.input, INTERFACES[interface].inputs), (config.output, INTERFACES[interface].outputs)):
        assert len(told) == len(known) == len({tensor.name for tensor in known})
        for tensor, spec in zip(told, known, strict=True):
            dtype = model_config_pb2.DataType.Name(tensor.data_type)
            assert (tensor.name, dtype, tuple(tensor.dims)) == (spec.name, f"TYPE_{spec.dtype}", spec.dims)
            assert getattr(tensor, "optional", False) == (told is config.input and not spec.required)


def test_trtllm_names_are_models_of_their_own(engine: Path, tmp_path: Path) -> None:
    names = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
    with pytest.raises(InvalidOptionError, match=r"4 models each run an engine.*--kv-cache-memory"):
        write_repository(engine, tmp_path / "repo", RepositoryOptions(trtllm_names=names))
    assert not (tmp_path / "repo").exists()
    asked = RepositoryOptions(trtllm_names=names, parameters={"kv_cache_memory": "1MiB"})
    folders = write_repository(engine, tmp_path / "repo", asked)
    interfaces = {folder.name: options_of(folder).interface for folder in folders}
    assert interfaces == {
        "tensorwright": "both", "ensemble": "text", "tensorrt_llm_bls": "text", "tensorrt_llm": "tokens",
    }  # fmt: skip


def test_a_chat_template_goes_to_the_models_with_text(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    names = ["--trtllm-name", "ensemble", "--trtllm-name", "tensorrt_llm", "--kv-cache-memory", "1MiB"]
    for given, written in ((str(tmp_path / "own.jinja"), str(tmp_path / "own.jinja")), ("rag", "rag")):
        command = ["triton-repo", str(engine), str(tmp_path / "repo"), *names, "--overwrite", "--chat-template", given]
        ran = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert ran.exit_code == 0
        found = {folder.name: options_of(folder).chat_template for folder in (tmp_path / "repo").iterdir()}
        assert found == {"tensorwright": written, "ensemble": written, "tensorrt_llm": None}


def test_several_engines_are_several_models(engine: Path, tmp_path: Path) -> None:
    other = write_engine(tmp_path / "other")
    (first,) = write_repository(engine, tmp_path / "repo", RepositoryOptions(name="small"))
    (second,) = write_repository(other, tmp_path / "repo", RepositoryOptions(name="large"))
    assert options_of(first).engine_path(first) == engine
    assert options_of(second).engine_path(second) == other


def test_a_relative_path_survives_a_move(engine: Path, tmp_path: Path) -> None:
    place = tmp_path / "a"
    write_engine(place / "engine")
    write_repository(place / "engine", place / "repo", RepositoryOptions(relative=True))
    moved = place.rename(tmp_path / "b")
    folder = moved / "repo" / "tensorwright"
    assert options_of(folder).engine == "../../engine"
    assert options_of(folder).engine_path(folder).resolve() == moved / "engine"


def test_a_path_may_hold_quotes_and_letters(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / 'größe "x" \\ y')
    (folder,) = write_repository(engine, tmp_path / "repo", RepositoryOptions())
    assert options_of(folder).engine_path(folder) == engine


def test_fewer_tokens_than_the_usual_batch_lower_it(engine: Path, tmp_path: Path) -> None:
    (folder,) = write_repository(engine, tmp_path, RepositoryOptions(parameters={"max_num_tokens": "16"}))
    assert read_config(folder).max_batch_size == 16
    assert options_of(folder).llm == {
        "max_batch_size": 16,
        "max_num_tokens": 16,
        "generation_config": "neutral",
        "watchdog": "restart",
        "guided_vocabulary": "eager",
    }


def test_an_existing_model_stays_unless_overwrite(engine: Path, tmp_path: Path) -> None:
    (folder,) = write_repository(engine, tmp_path, RepositoryOptions())
    (folder / "1/note").write_text("mine")
    both = RepositoryOptions(trtllm_names=("ensemble",), parameters={"kv_cache_memory": "1MiB"})
    with pytest.raises(OutputExistsError, match=r"tensorwright: already exists; .*--force"):
        write_repository(engine, tmp_path, both)
    assert (folder / "1/note").exists()
    assert not (tmp_path / "ensemble").exists()
    write_repository(engine, tmp_path, RepositoryOptions(overwrite=True, max_batch_size=3))
    assert not (folder / "1/note").exists()
    assert read_config(folder).max_batch_size == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "tensorwright"]


def test_a_place_that_cannot_be_written(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    told = r"file.*: cannot be written to \(.*\); free the disk or choose another place"
    with pytest.raises(BuildError, match=told):
        write_repository(engine, tmp_path / "file", RepositoryOptions())
    with pytest.raises(BuildError, match=told):
        write_backend(tmp_path / "file")


def test_the_command_replaces_by_force(engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--overwrite is its former name."""
    repository = (str(engine), str(tmp_path / "repo"))
    codes = [call(capsys, "triton-repo", *repository, *more)[0] for more in ((), (), ("--force",), ("--overwrite",))]
    assert codes == [0, 2, 0, 0]


def test_the_backends_folder(engine: Path, tmp_path: Path) -> None:
    (folder,) = write_repository(engine, tmp_path, RepositoryOptions(backend="tensorwright"))
    assert list(files(folder)) == ["1", "config.pbtxt"]
    assert read_config(folder).backend == "tensorwright"
    written = write_backend(tmp_path / "backends")
    assert list(files(tmp_path / "backends")) == ["tensorwright", "tensorwright/model.py"]
    assert (written / "model.py").read_text() == MODEL_FILE
    with pytest.raises(OutputExistsError, match="already exists"):
        write_backend(tmp_path / "backends")
    write_backend(tmp_path / "backends", overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "a model's name must be letters"),
        ({"name": ".hidden"}, "a model's name must be letters"),
        ({"backend": "vllm"}, "backend must be one of python, tensorwright"),
        ({"trtllm_names": ("preprocessing",)}, "trtllm_names must be of ensemble"),
        ({"name": "ensemble", "trtllm_names": ("ensemble",)}, "name it once"),
        ({"max_batch_size": 0}, "max_batch_size must be a positive integer"),
        ({"interface": "json"}, "interface must be one of"),
        ({"parameters": {"threads": "many"}}, "'threads' must be a positive integer, got 'many'"),
        ({"parameters": {"thread": "2"}}, "no parameter 'thread'; did you mean threads"),
        ({"parameters": {"generation_config": "vllm"}}, "generation_config must be one of model, neutral, got 'vllm'"),
        ({"parameters": {"max_num_tokens": "0"}}, "'max_num_tokens' must be a positive integer, got '0'"),
    ],
)
def test_impossible_options_write_nothing(engine: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        write_repository(engine, tmp_path / "repo", RepositoryOptions(**changes))
    assert not (tmp_path / "repo").exists() or not list((tmp_path / "repo").iterdir())


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such engine"):
        write_repository(tmp_path / "nothing", tmp_path / "repo", RepositoryOptions())
    assert not (tmp_path / "repo").exists()


def test_the_command(engine: Path, tmp_path: Path) -> None:
    repository, backends = tmp_path / "repo", tmp_path / "backends"
    arguments = ["triton-repo", str(engine), str(repository), "--trtllm-names", "--kv-cache-memory", "1MiB"]
    arguments += ["--threads", "2", "--no-batch-dim", "--no-decoupled", "--exclude-input", "--max-batch-size", "5"]
    arguments += ["--backend", "tensorwright", "--backend-dir", str(backends), "--generation-config", "model"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.output.count("wrote ") == 5
    options = options_of(repository / "ensemble")
    sizes = {"kv_cache_memory": "1MiB", "max_batch_size": 5, "threads": 2}
    assert options.llm == {**sizes, "generation_config": "model", "watchdog": "restart", "guided_vocabulary": "eager"}
    assert options.exclude_input_in_output
    assert read_config(repository / "tensorrt_llm").max_batch_size == 0
    assert not read_config(repository / "tensorrt_llm").model_transaction_policy.decoupled
    assert (backends / "tensorwright/model.py").exists()
    wrong = CliRunner().invoke(cli, ["triton-repo", str(engine), str(repository), "--backend-dir", str(backends)])
    assert wrong.exit_code == 2
    assert "--backend-dir needs --backend tensorwright" in wrong.output


def test_a_server_that_cannot_be_started_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of `make triton-serve`, without a server."""
    said = tmp_path / "without"
    said.mkdir()
    (said / "unavailable").write_text("ERROR: no such wheel\n")
    for venv, repository, told in (
        (tmp_path / "none", tmp_path, "there is no tritonserver: .*none is not there; `make triton-venv` makes it"),
        (said, tmp_path, "there is no tritonserver: ERROR: no such wheel"),
        (said, tmp_path / "repo", "repo: no such model repository; write one with: tensorwright triton-repo"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_command(serve, [str(venv), str(repository)], "tritonserver")
        assert ended.value.code == 2
        assert re.search(told, capsys.readouterr().err)
