"""Wrong checkpoints and outputs: one typed error each, and nothing half-written. See also test_wrong_requests.py."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.places import TESTS
from support.tiny_models import make_variant
from support.waiting import PATIENCE
from tensorwright import LLM, build
from tensorwright.builder.measure import accuracy as measured
from tensorwright.errors import (
    BuildError,
    CheckpointError,
    InvalidOptionError,
    NumericalError,
    UnsupportedModelError,
)
from tensorwright.runtime.engine.engine_dir import open_engine

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(tmp_path_factory.mktemp("wrong") / "model", "llama")


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder for outputs that must stay as the test left it, apart from what the test expects."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def config(**changes: object) -> Spoil:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def weights(change: Callable[[dict[str, np.ndarray]], object]) -> Spoil:
    def rewrite(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors")

    return rewrite


def pop(*names: str) -> Spoil:
    return weights(lambda tensors: [tensors.pop(name) for name in names])


def cut(name: str, keep: float) -> Spoil:
    return lambda model: os.truncate(model / name, int((model / name).stat().st_size * keep))


def text(name: str, content: bytes) -> Spoil:
    return lambda model: (model / name).write_bytes(content)


NORM, DOWN = "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
CHECKPOINTS: list[tuple[str, Spoil, list[str]]] = [
    ("weights missing", lambda m: (m / "model.safetensors").unlink(), ["must hold model.safetensors"]),
    ("weights truncated", cut("model.safetensors", 0.9), ["model.safetensors", "truncated"]),
    ("header truncated", cut("model.safetensors", 0.001), ["model.safetensors", "truncated"]),
    ("mis-shaped", weights(lambda t: t.update({DOWN: t[DOWN].T.copy()})), [f"{DOWN}: stored as [48, 32]", "[32, 48]"]),
    ("all missing at once", pop(NORM, DOWN), ["2 of", f"{NORM}: missing", f"{DOWN}: missing"]),
    ("wider config", config(hidden_size=64), ["stored as", "config.json implies", "model.embed_tokens.weight"]),
    ("larger vocabulary", config(vocab_size=102), ["model.embed_tokens.weight: stored as [101, 32]", "[102, 32]"]),
    ("other heads", config(num_key_value_heads=4), ["k_proj.weight: stored as [16, 32]", "v_proj"]),
    ("more layers", config(num_hidden_layers=3), ["model.layers.2.mlp.down_proj.weight: missing"]),
    ("fewer layers", config(num_hidden_layers=1), ["correct its number of layers", f"\n  {DOWN}"]),
    ("quantized by hand", weights(lambda t: t.update({NORM: t[NORM].astype(np.int8)})), [f"{NORM}: stored as int8"]),
    ("left-out bias", weights(lambda t: t.update({BIAS: np.ones(32, np.float32)})), ["attention_bias", f"\n  {BIAS}"]),
    ("no family", config(model_type=None), ["config.json: model_type must name", "take the config.json"]),
    ("positions as text", config(max_position_embeddings="128"), ["max_position_embeddings must be a whole number"]),
    ("no positions", config(max_position_embeddings=0), ["config.json: max_position_embeddings", "not 0"]),
    ("no config", lambda m: (m / "config.json").unlink(), ["config.json is missing", "give the directory"]),
    ("biases", config(attention_bias=True), ["q_proj.bias: missing"]),
    ("unknown activation", config(hidden_act="foo"), ["config.json", "foo", "correct the config"]),
    ("impossible heads", config(num_attention_heads="four"), ["config.json"]),
    ("no layers", config(num_hidden_layers=-1), []),
    ("nested config", text("config.json", b"[" * 100_000), ["config.json: is not JSON"]),
    ("long number", text("config.json", b'{"a":' + b"9" * 5000 + b"}"), ["config.json: is not JSON"]),
    ("generation config", text("generation_config.json", b"{"), ["generation_config.json: is not JSON"]),
    ("chat template", text("chat_template.jinja", b"\xff\xfe"), ["chat_template.jinja: cannot be read"]),
]


@pytest.mark.parametrize(("spoil", "words"), [c[1:] for c in CHECKPOINTS], ids=[c[0] for c in CHECKPOINTS])
def test_wrong_checkpoint(model: Path, place: Path, spoil: Spoil, words: list[str]) -> None:
    spoil(model)
    with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
        build(model, place / "engine", accuracy="none")
    assert caught.type is CheckpointError or not words
    for word in words:
        assert word in str(caught.value)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "spoil",
    [weights(lambda t: t.update({NORM: np.full(32, np.nan, np.float32)})), config(rope_parameters={"rope_theta": 0.0})],
    ids=["weight", "rope_theta"],
)
def test_numbers_that_are_none(model: Path, place: Path, spoil: Spoil) -> None:
    spoil(model)
    with pytest.raises(CheckpointError, match="logits are NaN or infinite, in float32 too"):
        build(model, place / "engine")
    assert list(place.iterdir()) == []


def test_a_dtype_that_cannot_hold_the_logits(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the engine's are spoilt here: no weights were found that overflow in bfloat16 and not in float32."""
    rows = measured.EngineLogits.__call__
    spoilt = lambda *args: (row * np.float32(np.nan) for row in rows(*args))  # noqa: E731
    monkeypatch.setattr(measured.EngineLogits, "__call__", spoilt)
    with pytest.raises(NumericalError, match="bfloat16 cannot hold its values; build with dtype float32"):
        build(model, place / "engine", dtype="bfloat16")
    assert list(place.iterdir()) == []


def test_more_positions_than_an_engine_holds(model: Path, place: Path) -> None:
    config(max_position_embeddings=2**40)(model)
    with pytest.raises(InvalidOptionError, match="max_seq_len must be at most 16777216, not 1099511627776"):
        build(model, place / "engine", accuracy="none")
    assert build(model, place / "engine", accuracy="none", max_seq_len=64).config["limits"]["max_seq_len"] == 64


@pytest.mark.parametrize("named", ["", " ", None, 7])
def test_an_llm_of_nothing(named: object) -> None:
    with pytest.raises(InvalidOptionError, match="must be given the path of an engine or of a model directory"):
        LLM(named)  # type: ignore[arg-type]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """What a full disk does to who writes: the write that goes over the limit is an OSError (SIGXFSZ is ignored)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1000, 5000, 40_000])  # fails in graph.txt, plan.bin, weights.bin
def test_disk_full(tiny: Path, place: Path, size: int) -> None:
    with pytest.raises(BuildError, match=r"cannot be written .*nothing was left behind"), largest_file(size):
        build(tiny, place / "deep" / "engine", accuracy="none")
    assert list(place.iterdir()) == []


def test_disk_full_while_replacing_keeps_the_old_engine(tiny: Path, place: Path) -> None:
    engine = build(tiny, place / "engine", accuracy="none").path
    before = files_of(place)
    with pytest.raises(BuildError, match="cannot be written"), largest_file(40_000):
        build(tiny, engine, accuracy="none", overwrite=True)
    with pytest.raises(BuildError, match="already exists"):
        build(tiny, engine, accuracy="none")
    assert files_of(place) == before
    assert open_engine(engine).vocab_size == 101


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_read_only_output(tiny: Path, place: Path) -> None:
    (place / "file").write_text("mine")
    (place / "closed").mkdir(mode=0o555)
    # /proc and a file take no directories even from root, to whom nothing else is read-only.
    places = [Path("/proc/engine"), place / "file" / "engine", *([place / "closed" / "e"] if os.getuid() else [])]
    for out in places:
        with pytest.raises(BuildError, match=r"cannot be written to|already exists"):
            build(tiny, out, accuracy="none")
    with pytest.raises(BuildError, match=r"dump .*file: cannot be made"):
        build(tiny, place / "engine", accuracy="none", dump=place / "file")
    assert sorted(path.name for path in place.iterdir()) == ["closed", "file"]


def test_existing_output(tiny: Path, place: Path) -> None:
    (place / "file").write_text("mine")
    (place / "folder").mkdir()
    (place / "folder" / "thesis.txt").write_text("mine")
    (place / "link").symlink_to(place / "nowhere")
    before = files_of(place)
    for name in ("file", "folder", "link"):
        for overwrite in (False, True):
            with pytest.raises(BuildError):
                build(tiny, place / name, accuracy="none", overwrite=overwrite)
    assert files_of(place) == before
    assert sorted(path.name for path in place.iterdir()) == ["file", "folder", "link"]


def test_unwritable_cache_of_engines(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/cache")
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        LLM(tiny)


class Build(NamedTuple):
    """A build in a process of its own. wait: returns its exit code and what it said."""

    pid: int
    ended: Callable[[], bool]
    wait: Callable[[], tuple[int, str]]


@contextmanager
def command(arguments: list[str], folder: Path) -> Iterator[Build]:
    """The command, from its start."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tensorwright.builder.cli", *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def wait() -> tuple[int, str]:
        said, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, said

    yield Build(process.pid, lambda: process.poll() is not None, wait)


@pytest.fixture(scope="module")
def forking() -> Iterator[Callable[..., AbstractContextManager[Build]]]:
    """Returns what does as `command` does, but from a process that has imported everything."""
    script = [sys.executable, "-P", TESTS / "support" / "forked_builds.py"]
    parent = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    stdin, stdout = parent.stdin, parent.stdout

    @contextmanager
    def forked(arguments: list[str], folder: Path) -> Iterator[Build]:
        print(json.dumps([arguments, str(folder / "said")]), file=stdin, flush=True)
        pid = int(stdout.readline())

        def wait() -> tuple[int, str]:
            return int(stdout.readline()), (folder / "said").read_text()

        yield Build(pid, lambda: bool(select.select([stdout], [], [], 0)[0]), wait)

    yield forked
    stdin.close()
    assert parent.wait(PATIENCE) == 0
    stdout.close()


@pytest.mark.parametrize(
    ("way", "name", "delay"),
    [("forked", "SIGINT", 0.0), ("forked", "SIGINT", 0.4), ("forked", "SIGINT", 1.0), ("command", "SIGTERM", 0.2)],
)
def test_interrupted_build_leaves_nothing(
    tiny: Path, place: Path, tmp_path: Path, forking: Callable[..., Any], way: str, name: str, delay: float
) -> None:
    """Ctrl-C at several moments of a build: wherever it is, it goes without a trace, and without a traceback. SIGTERM
    does what SIGINT does."""
    start = forking if way == "forked" else command
    with start([str(tiny), str(place / "engine")], tmp_path) as process:
        deadline = time.monotonic() + PATIENCE
        while not list(place.iterdir()) and not process.ended():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay)
        with suppress(ProcessLookupError):  # It may be done by now.
            os.kill(process.pid, getattr(signal, name))
        status, said = process.wait()
    if status == 0:  # it was done by then
        assert open_engine(place / "engine").vocab_size == 101
    else:
        # Python itself may die of the signal at its end, if it hit inside exec(): the shell's 130 just the same.
        assert status in (130, -signal.SIGINT), said
        assert "error: interrupted; nothing half-built was left behind" in said
        assert "Traceback" not in said
        assert list(place.iterdir()) == []
