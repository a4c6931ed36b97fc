"""rebuild(): the same bytes as a build, from the graph and the kept weights alone; and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_models import make_tiny, make_variant
from support.waiting import PATIENCE
from tensorwright import build
from tensorwright.builder.kept_weights import EngineSource
from tensorwright.builder.rebuild import changed_options, rebuild
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.errors import CheckpointError, EngineError, InvalidOptionError
from tensorwright.models.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_variant(tmp_path_factory.mktemp("rebuild") / "model", "llama_tied")


@pytest.fixture(scope="module")
def keeper(tiny) -> Path:
    """An int4 engine that keeps its weights."""
    return build(tiny, tiny.parent / "keeper", quantize="int4", keep_weights=True, accuracy="none").path


@pytest.fixture(scope="module")
def plain(tiny) -> Path:
    return build(tiny, tiny.parent / "plain", quantize="int4", accuracy="none").path


def config_of(engine: Path) -> dict:
    return json.loads((engine / "config.json").read_text())


def files_of(engine: Path) -> dict[str, bytes]:
    paths = (p for p in engine.rglob("*") if p.is_file() and p.name != "build-report.json")
    return {str(p.relative_to(engine)): p.read_bytes() for p in paths}


def again(engine: Path, out: Path, **options) -> Path:
    return rebuild(engine, EngineConfig.from_dict(config_of(engine), engine / CONFIG), out, **options).path


def test_kept_weights_are_the_checkpoints(keeper, tiny):
    kept, original = EngineSource(keeper), open_checkpoint(tiny)
    assert set(kept.names) <= set(original.names)
    for name in kept.names:
        assert kept.dtype(name) == original.dtype(name)
        assert kept.read(name).data.tobytes() == original.read(name).data.tobytes()


def test_the_same_bytes_as_a_build(keeper, plain, tmp_path):
    assert files_of(again(keeper, tmp_path / "out", keep_weights=False)) == files_of(plain)


@pytest.mark.parametrize(
    "changes",
    [
        {"quantize": "int8:g64", "kv_cache_dtype": "int8", "attention_window": 20, "sink_tokens": 3},
        {"quantize": None, "dtype": "bfloat16"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_other_options_compute_what_a_build_with_them_does(keeper, tiny, tmp_path, changes):
    out = again(keeper, tmp_path / "out", keep_weights=False, **changes)
    built = build(tiny, tmp_path / "built", accuracy="none", **{"quantize": "int4", **changes}).path
    assert (out / "cpu/weights.bin").read_bytes() == (built / "cpu/weights.bin").read_bytes()
    ours, theirs = config_of(out), config_of(built)
    assert ours["limits"] == theirs["limits"]
    assert ours["build_options"] == theirs["build_options"]
    assert ours["dtype"] == theirs["dtype"]
    assert ours["passes"] == theirs["passes"]


def test_from_a_bfloat16_engine_it_is_the_float32_build(tmp_path):
    """Gemma scales embeddings by the root of the hidden size, which is no bfloat16 number: the graph keeps it whole."""
    model = make_variant(tmp_path / "model", "gemma", dtype="bfloat16")
    narrow = build(model, tmp_path / "narrow", keep_weights=True, accuracy="none")
    assert narrow.config["dtype"] == "bfloat16"
    built = build(model, tmp_path / "built", dtype="float32", accuracy="none").path
    assert files_of(again(narrow.path, tmp_path / "out", dtype="float32", keep_weights=False)) == files_of(built)


def test_a_rebuilt_engine_can_be_rebuilt(keeper, plain, tmp_path):
    wide = again(keeper, tmp_path / "wide", quantize=None)
    assert (wide / "weights.safetensors").is_file()
    bounded = again(wide, tmp_path / "bounded", attention_window=20)
    assert config_of(bounded)["build_options"]["attention_window"] == 20
    assert config_of(bounded)["passes"]["limit_attention"] > 0
    narrow = again(bounded, tmp_path / "narrow", quantize="int4", keep_weights=False, attention_window=0)
    assert (narrow / "cpu/plan.bin").read_bytes() == (plain / "cpu/plan.bin").read_bytes()
    assert (narrow / "cpu/weights.bin").read_bytes() == (plain / "cpu/weights.bin").read_bytes()


def test_with_the_checkpoint_it_is_a_build(plain, tiny, tmp_path):
    assert files_of(again(plain, tmp_path / "out", model=tiny)) == files_of(plain)


def test_accuracy_is_measured_against_the_graph_before_quantization(keeper, tiny, tmp_path):
    ours = config_of(again(keeper, tmp_path / "out", accuracy="quick"))["accuracy"]
    theirs = build(tiny, tmp_path / "built", quantize="int4", accuracy="quick").config["accuracy"]
    assert ours["tokens"] == theirs["tokens"]
    assert ours["perplexity_reference"] == pytest.approx(theirs["perplexity_reference"], rel=1e-5)
    assert ours["largest_logit_error"] == pytest.approx(theirs["largest_logit_error"], rel=1e-3)


def refused(engine, out, error, reason, **options):
    with pytest.raises(error, match=reason):
        again(engine, out, **options)
    assert not out.exists()
    assert list(out.parent.glob(".*building*")) == []


def test_refusals(keeper, plain, tiny, tmp_path):
    out = tmp_path / "out"
    refused(plain, out, EngineError, "keeps no weights to build from; give the checkpoint")
    refused(keeper, out, InvalidOptionError, "there is no option speed", speed=3)
    refused(keeper, out, InvalidOptionError, "max_seq_len is part of the graph", max_seq_len=64)
    refused(keeper, out, InvalidOptionError, "accuracy full compares", accuracy="full")
    refused(keeper, out, InvalidOptionError, "a weight format must be", quantize="int5")
    refused(keeper, out, InvalidOptionError, "makes no engine with heads without the checkpoint", heads="mtp")


def test_another_checkpoint_is_refused_with_what_differs(plain, tmp_path):
    other = make_tiny(tmp_path / "model", "llama", seed=7)
    refused(plain, tmp_path / "out", CheckpointError, r"is not the checkpoint .*model.safetensors differ", model=other)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (r"(?s).*", "graph {", "text in double quotes was expected"),
        (r"  fact kv_layers = .*\n", "", "the graph lacks the fact kv_layers"),
        (r"fact kv_layers = .*", "fact kv_layers = 7", "it must be a list of dicts"),
        (r"  fact max_seq_len = .*\n", "", "the graph lacks the fact max_seq_len"),
    ],
)
def test_a_graph_that_cannot_be_read(keeper, tmp_path, old, new, why):
    broken = tmp_path / "broken"
    shutil.copytree(keeper, broken)
    text = (broken / "graph.txt").read_text()
    (broken / "graph.txt").write_text(re.sub(old, new, text, count=1))
    message = f"(?s)graph.txt: not a graph that this version builds from .*{why}"
    refused(broken, tmp_path / "out", EngineError, message)


def test_it_needs_no_transformers(keeper, tmp_path):
    """Nor torch: what traces is not called."""
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None)\n"
        "from tensorwright.runtime.commands.cli import main; main(sys.argv[1:])"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-c", script, "rebuild", str(keeper), str(out), "--json", "--quantize", "int8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["build_options"]["quantize"] == "int8"


def test_the_command_refuses_with_one_sentence(plain, tmp_path):
    command = [
        sys.executable,
        "-P",
        "-m",
        "tensorwright.runtime.commands.cli",
        "rebuild",
        str(plain),
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
    assert "--keep-weights" in done.stderr


def test_for_another_target_it_is_the_build_for_that(keeper, tiny, tmp_path):
    pytest.importorskip("onnx", reason="target onnx needs the extra onnx")
    out = again(keeper, tmp_path / "out", target="onnx", keep_weights=False)
    built = build(tiny, tmp_path / "built", target="onnx", quantize="int4", accuracy="none").path
    assert files_of(out) == files_of(built)


def test_options_of_one_target_go_on_only_within_it():
    own = {"target": "tensorrt-rtx", "dtype": "float16", "quantize": "int4", "sm": [80, 89], "max_batch_size": 8}
    again = changed_options(own, {})
    assert (again.sm, again.max_batch_size) == ((80, 89), 8)  # as build has them, not JSON's list
    moved = changed_options(own, {"target": "onnx"})
    assert (moved.sm, moved.max_batch_size, moved.quantize, moved.dtype) == ((), None, "int4", "float16")


def test_options_of_the_engine_that_a_change_leaves_without_meaning_are_dropped():
    own = {"target": "cpu", "accuracy": "quick", "accuracy_tokens": 64, "quantize": "int4", "calibrate": "gptq"}
    unmeasured = changed_options(own, {"accuracy": "none"})
    assert (unmeasured.accuracy_tokens, unmeasured.calibrate) == (None, "gptq")
    plain = changed_options(own, {"quantize": None})
    assert (plain.calibrate, plain.accuracy_tokens) == ("none", 64)
    with pytest.raises(InvalidOptionError, match="accuracy is none"):
        changed_options(own, {"accuracy": "none", "accuracy_tokens": 8})
    with pytest.raises(InvalidOptionError, match="quantized weights"):
        changed_options(own, {"quantize": None, "calibrate": "gptq"})
