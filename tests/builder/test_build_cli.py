"""build-engine: what it prints, and its exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from support.tiny_models import make_variant
from tensorwright.builder.cli import main
from tensorwright.builder.phases import Phases, process_start
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.tools.inspect import describe
from tensorwright.sizes import format_size


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_variant(tmp_path_factory.mktemp("cli") / "model", "llama")


@dataclass
class Ended:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys):
    def call(*args):
        with pytest.raises(SystemExit) as exit_info:
            main([str(arg) for arg in args])
        return Ended(int(exit_info.value.code or 0), *capsys.readouterr())

    return call


def test_builds_and_says_what(tiny, tmp_path, run):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none")
    assert result.exit_code == 0, result.stderr
    assert "llama, 2 layers, vocabulary 101" in result.stdout
    assert "recognise_attention 2" in result.stdout
    assert (tmp_path / "engine" / "checksums.txt").exists()
    size = describe(open_engine(tmp_path / "engine"))["total_bytes"]
    assert f" {format_size(size)} " in result.stdout
    again = run(tiny, tmp_path / "engine", "--accuracy", "none")
    assert again.exit_code == 2  # refused before the work, like all that is
    assert again.stderr.startswith(f"error: {tmp_path / 'engine'}: already exists")
    assert "--force" in again.stderr
    assert run(tiny, tmp_path / "engine", "--accuracy", "none", "--force").exit_code == 0


def test_tells_of_the_tokenizer(tiny, tmp_path, run):
    """On standard error, as the report does."""
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text("{}")
    result = run(model, tmp_path / "engine", "--accuracy", "none")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {model}: no tokenizer.json, and vocab.json cannot be converted: ")
    assert "none, so the engine takes and gives token ids only" in " ".join(result.stdout.split())
    report = json.loads((tmp_path / "engine" / "build-report.json").read_text())
    assert report["tokenizer"]["source"] == []
    assert result.stderr == "".join(f"warning: {model}: {text}\n" for text in report["tokenizer"]["warnings"])


def test_json(tiny, tmp_path, run):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none", "--json")
    answer = json.loads(result.stdout)
    assert answer["config"]["model"]["model_type"] == "llama"
    seconds = answer["report"]["phase_seconds"]
    assert list(seconds)[:3] == ["start", "open", "import"]  # from the start of the process on
    assert sum(seconds.values()) == pytest.approx(answer["report"]["total_seconds"], abs=0.01)
    failed = run(tmp_path / "absent", tmp_path / "other", "--json")
    assert failed.exit_code == 2
    told = json.loads(failed.stdout)
    assert (told["error"], told["exit_code"]) == ("CheckpointError", 2)
    assert failed.stderr == f"error: {told['message']}\n"
    assert json.loads(run(tiny, tmp_path / "engine", "--json").stdout)["exit_code"] == 2  # it exists


@pytest.mark.parametrize("wrong", [(), ("--dtype", "int3"), ("--no-such",), ("--max-seq-len",), ("a", "b", "c")])
def test_json_of_a_wrong_command_line(run, wrong):
    result = run("--json", *wrong)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["error"], told["exit_code"]) == (2, "UsageError", 2)
    assert told["message"].endswith("; see 'build-engine --help'")
    assert result.stderr == f"error: {told['message']}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target", "abacus"], "'abacus' is not one of 'cpu', 'onnx'"),
        (["--dtype", "int3"], "dtype must be auto, float32 or bfloat16 on target cpu, not 'int3'"),
        (
            ["--dtype", "int3", "--target", "onnx"],
            "auto, float32 or float16 on target onnx, not 'int3'",
        ),
        (["--dtype", "half"], "on target cpu, not float16"),
        (["--dtype", "bf16", "--target", "onnx"], "on target onnx, not bfloat16"),
        (["--quantize", "int5"], "as in int4:g64), mxfp4, w4a8, w8a8 or fp8, not 'int5'"),
        (["--quantize", "int5", "--target", "onnx"], "as in int4:g64), not 'int5'"),
        (["--quantize", "int5", "--target", "tensorrt-rtx"], "as in int4:g64) or fp8, not 'int5'"),
        (["--quantize", "int4,lm_head=fp8:wo"], "a weight format must be int4, int8"),
        (["--dtype", "float16"], "dtype must be auto, float32 or bfloat16 on target cpu, not float16"),
        (["--quantize", "int4:g16"], "not 'int4:g16'"),
        (["--quantize", ""], "not ''"),
        (["--quantize", "int4,head=int8"], "'head=int8' in 'int4,head=int8' is not"),
        (["--quantize"], "requires an argument"),
        (["--kv-cache-dtype", "fp16"], "'fp16' is not one of 'auto', 'int8', 'int4', 'fp8'"),
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype must not be fp8 on target cpu: its kernels multiply integers"),
        (["--max-seq-len", "1"], "1 is not in the range"),
        (["--max-seq-len", "4096"], "at most the model's 128 positions"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_wrong_command_lines(tiny, tmp_path, args, message, run):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "engine").exists()


def test_a_failure_is_one_message(tmp_path, run):
    result = run(tmp_path / "absent", tmp_path / "engine")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "no such directory" in result.stderr
    assert "Traceback" not in result.stderr
    told = run(tmp_path / "absent", tmp_path / "engine", "--debug").stderr
    assert "Traceback" in told
    assert told.splitlines()[-1] == result.stderr.strip()


def test_interrupt(tiny, tmp_path, monkeypatch, run):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorwright.builder.cli.build", interrupt)
    result = run(tiny, tmp_path / "engine")
    assert result.exit_code == 130
    assert result.stderr.strip() == "error: interrupted; nothing half-built was left behind"
    told = json.loads(run(tiny, tmp_path / "engine", "--json").stdout)
    assert (told["error"], told["exit_code"]) == ("KeyboardInterrupt", 130)


def test_help_shows_an_example(run):
    result = run("--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "build-engine models/pico out/pico" in text
    assert "int4:g64,lm_head=int8,embedding=none" in text
    assert all(name in text for name in ("--quantize SPEC", "w8a8", "32, 64, 128", "docs/quantization.md"))


def test_quantized_weights_are_told(tiny, tmp_path, run):
    result = run(tiny, tmp_path / "engine", "--quantize", "int4,lm_head=int8:g64", "--accuracy", "none")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "int4:g32,embedding=int4:g32,lm_head=int8:g64" in text
    assert "bits per weight: all " in text
    told = json.loads(run(tiny, tmp_path / "other", "--quantize", "int5", "--json").stdout)
    assert (told["error"], told["exit_code"]) == ("InvalidOptionError", 2)
    assert not (tmp_path / "other").exists()


def test_phases_leave_no_gap(monkeypatch):
    """What passes before a phase is part of it, so that all of them together are the time that a build took."""
    clock = [10.0]
    monkeypatch.setattr("tensorwright.builder.phases.time.perf_counter", lambda: clock[0])
    told = []
    phases = Phases.since(7.0, lambda *news: told.append(news))
    for gap, name, took in ((2, "open", 1), (0, "trace", 4), (3, "open", 1)):
        clock[0] += gap
        with phases.run(name) as advance:
            clock[0] += took
            advance(1, 2)
    assert phases.seconds == {"start": 3, "open": 7, "trace": 4}
    assert phases.total == 14 == clock[0] - phases.begin
    assert told[:2] == [("open", 0, 0), ("open", 1, 2)]
    assert "start" not in Phases.since(None, None).seconds


def test_the_process_began_before_it_was_asked():
    assert 0 < time.perf_counter() - process_start() < 10 * 24 * 3600


def test_a_process_of_its_own_ends_at_once_and_says_how(tmp_path):
    """The exit code, what is in the buffers and what was registered for the end are those of the usual way out."""
    lines = (
        "import atexit, sys", "from tensorwright.builder.cli import main",
        "atexit.register(print, 'registered')", "sys.stdout.write('buffered ')",
        "class Late:", "    def __del__(self): print('taken apart')", "late = Late()",
        f"sys.argv = ['build-engine', {str(tmp_path / 'absent')!r}, {str(tmp_path / 'out')!r}]", "main()",
    )  # fmt: skip
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == "buffered registered\n"
    assert "no such directory" in result.stderr
