"""The `tensorwright` command over a fake engine: output, one-line errors, exit codes."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tensorwright
from support.command_line import call
from support.fake_runtime import FakeEngine, engine_config, fake_module, write_engine
from tensorwright.errors import OutOfMemoryError
from tensorwright.installing import install
from tensorwright.runtime.api import model_cache
from tensorwright.runtime.commands.cli import main
from tensorwright.runtime.engine import native


@pytest.fixture(autouse=True)
def weight_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans of these engines are none, so nobody can read what a step reads."""
    mixtures = [{"module": f"layers.{i}.mlp", "experts": 8, "taken": 2, "bytes_of_one": 3 << 20} for i in range(2)]
    monkeypatch.setattr(native, "weight_reads", lambda engine: {"bytes": 20 << 20, "mixtures": mixtures})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    return str(write_engine(tmp_path / "engine"))


def test_run_prints_the_continuation(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", engine, "--prompt", "héy!", "--max-tokens", "5") == (0, "héy!\n", "")
    assert call(capsys, "run", engine, "--prompt", "ab", "--max-tokens", "3", "--no-stream")[1] == "aba\n"
    assert call(capsys, "run", engine, "--prompt", "ab", "--max-tokens", "2", "--echo")[1] == "abab\n"


def test_several_prompts_keep_their_order(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "run", engine, "--prompt", "ab", "--prompt", "xyz", "--max-tokens", "2")
    assert (code, out) == (0, "==> 'ab' <==\nab\n==> 'xyz' <==\nxy\n")


def test_prompt_from_stdin(engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for text, prompt in (("from a pipe", "from a pipe"), ("a\n", "a"), ("a\n\n", "a\n")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        told = call(capsys, "run", engine, "--prompt", "-", "--max-tokens", "4", "--json")[1]
        assert json.loads(told)["prompt"] == prompt


def test_json_and_stats(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = call(capsys, "run", engine, "--prompt", "ab", "--max-tokens", "2", "--json", "--stats")
    result = json.loads(out)
    assert (result["text"], result["finish_reason"], result["prompt_tokens"]) == ("ab", "length", 2)
    assert result["metrics"]["time_to_first_token"] == 0.5
    assert "2 prompt tokens, 2 generated" in err
    assert "tokens/s" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run", "{engine}", "--prompt", "x", "--temperature", "-1"],
            "temperature must be 0 or from 1e-06 to 1e+06, got -1.0",
        ),
        (["run", "{engine}", "--prompt", "x", "--kv-cache-memory", "lots"], "kv_cache_memory must be"),
        (["run", "{engine}", "--prompt", ""], "at least one token"),
        (["run", "{engine}", "--prompt", "x", "--max-tokens", "500"], "the engine holds 128 tokens"),
        (["run", "nowhere", "--prompt", "x"], "nowhere: no such engine directory"),
        (["run", "{engine}"], "Missing option '--prompt'"),
        (["run", "{engine}", "--promt", "x"], "No such option"),
        (["inspect", "nowhere"], "no such engine directory"),
        (["unknown"], "No such command"),
    ],
)
def test_errors_are_one_line(engine: str, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code, out, err = call(capsys, *(argument.format(engine=engine) for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run", "{engine}", "--prompt", "x", "--json", "--top-p", "2"], "InvalidRequestError"),
        (["run", "{engine}", "--json"], "UsageError"),
        (["inspect", "nowhere", "--json"], "EngineError"),
        (["inspect", "--json"], "UsageError"),
    ],
)
def test_errors_for_programs(engine: str, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str) -> None:
    code, out, err = call(capsys, *(argument.format(engine=engine) for argument in arguments))
    told = json.loads(out)
    assert (code, told["error"], told["exit_code"]) == (2, error, 2)
    assert err == f"error: {told['message']}\n"


def test_a_failure_at_work_has_another_code(
    engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OutOfMemoryError("none left")

    monkeypatch.setattr(native, "create_engine", refuse)
    assert call(capsys, "run", engine, "--prompt", "x") == (1, "", "error: none left\n")


def test_a_fault_of_ours_is_not_hidden(
    engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", engine, "--prompt", "x", "--json"])
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "--debug", "inspect", "nowhere")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_inspect_for_people(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "inspect", engine)
    assert code == 0
    words_of = "float32|kv cache|vocab_size|257|fuse_qkv|cpu/weights.bin|not measured|matmul_scalar"
    for words in words_of.split("|"):
        assert words in out
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert {"bytes 20.0 MiB", "of experts 12.0 MiB", "2 layers of experts 2 of 8 experts, 3.0 MiB each"} <= rows, rows


def test_inspect_for_programs(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(call(capsys, "inspect", engine, "--json")[1])
    assert facts["passes"] == {"fuse_qkv": 2}
    assert facts["kernels"][0]["taken"] == "matmul_scalar"
    assert facts["files"]["cpu/weights.bin"] == 64
    assert facts["weight_reads"]["bytes"] == 20 << 20
    assert call(capsys, "inspect", engine, "--graph")[1] == "graph fake {\n}\n"


def test_inspect_shows_quantized_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "spec": "int4:g32,embedding=none,lm_head=int8:g32",
        "tied": True,
        "bits_per_weight": {"all": 5.25, "layers": 4.5, "embedding": None, "lm_head": 8.5},
        "weight_errors": {"mlp.up": [0.08, None, 0.1], "lm_head": [0.006]},
    }
    engine = write_engine(tmp_path / "engine", engine_config(quantization=record))
    _, out, _ = call(capsys, "inspect", str(engine))
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert "bits per weight.layers 4.5" in rows
    assert "error of weights.lm_head 0.006" in rows
    assert not any("bits per weight.embedding" in row or "error of outputs" in row for row in rows)
    text = " ".join(out.split())
    assert "0.09, at most 0.1 (layer 2)" in text
    assert "stored once for each format" in text
    measured = {"kl_divergence": 0.01, "output_errors": {"mlp.up": [0.04, 0.05]}}
    engine = write_engine(tmp_path / "other", engine_config(quantization=record, accuracy=measured))
    text = " ".join(call(capsys, "inspect", str(engine))[1].split())
    assert "error of outputs.mlp.up 0.045, at most 0.05 (layer 1)" in text
    assert "kl_divergence 0.01" in text
    for wrong in ({"spec": "int8"}, {**record, "weight_errors": {"lm_head": ["x"]}}):
        engine = write_engine(tmp_path / f"wrong-{len(wrong)}", engine_config(quantization=wrong))
        code, _, err = call(capsys, "inspect", str(engine))
        assert code == 2
        assert "its record of quantization is not as this version writes it" in err


def test_inspect_shows_what_looks_like_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = write_engine(
        tmp_path / "engine", engine_config(passes={"[/a]": 1}, model={"model_type": "[red]", "vocab_size": 257})
    )
    code, out, _ = call(capsys, "inspect", str(engine))
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert code == 0
    assert {"[/a] 1", "model_type [red]"} <= rows, rows


def test_a_broken_build_report_is_named(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(engine) / "build-report.json").write_text("{")
    code, out, err = call(capsys, "inspect", engine)
    assert (code, out) == (2, "")
    assert "build-report.json: cannot be read" in err
    assert "remove it" in err


def test_a_first_build_is_told(
    engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_cache, "_import_builder", lambda: lambda source, out, dtype: write_engine(out) and None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    run = ("run", str(tmp_path / "model"), "--prompt", "ab", "--max-tokens", "2")
    code, out, err = call(capsys, *run)
    assert (code, out) == (0, "ab\n")
    assert "building the engine of" in err
    assert call(capsys, *run) == (0, "ab\n", "")
    asked: list[model_cache.BuildChoices] = []

    def build(source: Path, out: Path, choices: model_cache.BuildChoices) -> None:
        asked.append(choices)
        write_engine(out)

    monkeypatch.setattr(model_cache, "_import_builder", lambda: build)
    code, out, err = call(capsys, *run, "--quantize", "int4")  # another engine of the same model
    assert (code, out) == (0, "ab\n")
    assert "building the engine of" in err
    assert call(capsys, *run, "--quantize", "int4") == (0, "ab\n", "")
    assert asked == [model_cache.BuildChoices(quantize="int4")]
    code, _, err = call(capsys, "run", engine, "--prompt", "ab", "--quantize", "int4")
    assert (code, "without quantized weights" in err) == (2, True)
    assert call(capsys, *run, "--dtype", "bf16")[0] == 0
    assert asked[1:] == [model_cache.BuildChoices(dtype="bfloat16")]
    code, _, err = call(capsys, "run", engine, "--prompt", "ab", "--dtype", "bf16")
    assert (code, "is an engine built as float32; build another one" in err) == (2, True)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[1] == f"tensorwright, version {tensorwright.__version__}\n"
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in ("run", "eval", "bench", "inspect", "build"):
        assert f"  {command} " in out
    assert call(capsys)[0] == 2


def test_build_without_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = call(capsys, "build", "model", "out")
    assert code == 2
    assert install("build") in err


def test_neither_torch_nor_transformers_is_imported() -> None:
    script = (
        "import sys, tensorwright\n"
        "from tensorwright import LLM, SamplingParams\n"
        "from tensorwright.runtime.commands import bench, bench_serve, cli, eval, run, run_profile\n"
        "from tensorwright.runtime.tools import inspect, profile_show\n"
        "heavy = {'torch', 'transformers', 'tensorwright.builder', 'tensorwright.passes', 'tensorwright.models'}\n"
        "heavy |= {'jinja2', 'asyncio', 'ssl'}  # each takes as long as all of ours\n"
        "heavy |= {f'tensorwright.runtime.guided.{part}' for part in ('vocabulary', 'grammar', 'compile_process')}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
