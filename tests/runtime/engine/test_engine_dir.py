"""Opening an engine: whole ones open, and whatever is wrong with others is named, with the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import xxhash

from support.fake_runtime import engine_config, write_checksums, write_engine
from tensorwright.engine_format import checksums
from tensorwright.engine_format.engine_config import is_engine
from tensorwright.errors import EngineError
from tensorwright.runtime.engine.engine_dir import open_engine


def test_whole_engine_opens(tmp_path: Path) -> None:
    engine = open_engine(write_engine(tmp_path / "engine"))
    assert (engine.vocab_size, engine.max_seq_len, engine.block_size, engine.dtype) == (257, 128, 32, "float32")
    assert engine.plan.read_bytes() == b"plan"
    assert engine.eos_token_ids == [256]
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(engine.tokenizer.encode("né")) == "né"


def test_it_opens_wherever_it_is_moved(tmp_path: Path) -> None:
    write_engine(tmp_path / "engine").rename(tmp_path / "moved")
    assert open_engine(tmp_path / "moved").vocab_size == 257


def test_unlisted_files_and_the_report_are_ignored(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    (root / "build-report.json").write_text("{}")
    (root / "notes.txt").write_text("mine")
    assert open_engine(root).read_json("notes.json") == {}


def test_generation_config_says_what_ends_a_text(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    (root / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    write_checksums(root, ["config.json", "cpu/plan.bin", "cpu/weights.bin", "generation_config.json"])
    engine = open_engine(root)
    assert engine.eos_token_ids == [7, 9]
    assert engine.tokenizer is None  # not listed, so not there


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def truncate(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-1])


def flip(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[len(data) // 2] ^= 1
        (root / name).write_bytes(bytes(data))

    return change


def test_end_of_sequence_ids_that_cannot_be(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    for ids, kept in ([[7, 257, 50256], [7]], [50256, []]):
        (root / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        write_checksums(root, covered(root))
        assert open_engine(root).eos_token_ids == kept
    (root / "generation_config.json").write_text('{"eos_token_id": "x"}')
    write_checksums(root, covered(root))
    with pytest.raises(EngineError, match="end-of-sequence tokens must be token ids, got 'x'"):
        _ = open_engine(root).eos_token_ids


def covered(root: Path) -> list[str]:
    """Every file of the engine that its checksums cover."""
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "checksums.txt"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove("config.json"), ["no config.json", "build-engine"]),
        (remove("checksums.txt"), ["checksums.txt", "missing"]),
        (remove("cpu/weights.bin"), ["weights.bin", "missing", "again"]),
        (remove("tokenizer.json"), ["tokenizer.json", "missing"]),
        (truncate("cpu/weights.bin"), ["weights.bin", "truncated", "63 bytes", "64", "again"]),
        (truncate("cpu/plan.bin"), ["plan.bin", "truncated"]),
        (truncate("config.json"), ["config.json", "truncated or altered"]),
        (truncate("checksums.txt"), []),  # only the last newline: nothing is lost
        (flip("cpu/weights.bin"), ["weights.bin", "altered", "again"]),
        (flip("cpu/plan.bin"), ["plan.bin", "altered"]),
        (flip("tokenizer.json"), ["tokenizer.json", "altered"]),
        (flip("graph.txt"), ["graph.txt", "altered"]),
        (flip("checksums.txt"), ["checksums.txt", "altered"]),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], words: list[str]) -> None:
    root = write_engine(tmp_path / "engine")
    damage(root)
    if not words:
        open_engine(root)
        return
    with pytest.raises(EngineError) as caught:
        open_engine(root)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["cpu/weights.bin", "tokenizer.json"])
def test_damage_is_named_when_the_tokenizer_is_read_meanwhile(tmp_path: Path, name: str) -> None:
    root = write_engine(tmp_path / "engine")
    assert "tokenizer" in vars(open_engine(root, read_tokenizer=True))
    assert "tokenizer" not in vars(open_engine(root))
    flip(name)(root)
    with pytest.raises(EngineError, match=f"{Path(name).name}: altered"):
        open_engine(root, read_tokenizer=True)


def test_a_tokenizer_that_the_library_panics_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic is no Exception; what a user does to end the program is none either, and goes on."""
    root = write_engine(tmp_path / "engine")

    def stop(kind: type[BaseException]) -> None:
        def fail(data: bytes) -> None:
            raise kind("index out of bounds")

        monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_buffer=fail))

    stop(type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"}))
    with pytest.raises(EngineError, match=r"not a tokenizer.*index out of bounds"):
        open_engine(root, read_tokenizer=True)
    stop(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        open_engine(root, read_tokenizer=True)


def test_damaged_weights_come_before_what_fails_meanwhile(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    (root / "tokenizer.json").write_text("{}")
    write_checksums(root, covered(root))
    with pytest.raises(EngineError, match="not a tokenizer"):
        open_engine(root, read_tokenizer=True)
    flip("cpu/weights.bin")(root)
    with pytest.raises(EngineError, match=r"weights\.bin: altered"):
        open_engine(root, read_tokenizer=True)


def test_weights_that_could_not_be_checked_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    root = write_engine(tmp_path / "engine")
    monkeypatch.setattr(
        checksums, "_check_content", lambda root, name, *_: no_memory() if name == "cpu/weights.bin" else None
    )
    with pytest.raises(MemoryError):
        open_engine(root)


def test_shortened_checksum_list_is_noticed(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    lines = (root / "checksums.txt").read_text().splitlines(keepends=True)
    (root / "checksums.txt").write_text("".join(lines[1:]))
    with pytest.raises(EngineError, match="truncated or altered"):
        open_engine(root)


def test_checksums_may_not_lead_outside(tmp_path: Path) -> None:
    root = write_engine(tmp_path / "engine")
    (tmp_path / "secret").write_text("x")
    write_checksums(root, ["config.json", "cpu/plan.bin", "cpu/weights.bin", "../secret"])
    with pytest.raises(EngineError, match="leads out of the engine"):
        open_engine(root)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_checksums_of_a_file_that_cannot_be(tmp_path: Path, name: str) -> None:
    root = write_engine(tmp_path / "engine")
    lines = (root / "checksums.txt").read_text().splitlines(keepends=True)[:-1]
    body = "".join([*lines, f"{'0' * 32}  1  {name}\n"])
    last = f"{xxhash.xxh3_128_hexdigest(body.encode())}  {len(body.encode())}  .\n"
    (root / "checksums.txt").write_text(body + last)
    with pytest.raises(EngineError, match="missing; build the engine again"):
        open_engine(root)


@pytest.mark.parametrize("token", ['"\\ud800"', '{"content": "\\udfff"}', "[" * 150 + "]" * 150])
def test_text_files_hold_text(tmp_path: Path, token: str) -> None:
    """Half a character is none, and the tokenizer's library would raise an error of its own."""
    more = {"tokenizer_config.json": f'{{"bos_token": {token}}}'}
    with pytest.raises(EngineError, match=r"tokenizer_config\.json: truncated or altered"):
        open_engine(write_engine(tmp_path / "engine", more=more), read_tokenizer=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 2, "tensorwright_version": "9.9"}, ["version 2", "reads 1", "9.9"]),
        ({"target": "abacus"}, ["'abacus'", "runs cpu, onnx, cuda, tensorrt, tensorrt-rtx"]),
        ({"target": ["cpu"]}, ["['cpu']", "runs cpu"]),
        ({"target": "tensorrt"}, ["tensorrt/rank0.engine", "target 'tensorrt' must have it"]),
        ({"format": "other"}, ["not an engine"]),
        ({"dtype": "float16"}, ["'float16' is none of float32, bfloat16", "target 'cpu'"]),
        ({"surprise": 1}, ["unknown keys surprise"]),
        ({"limits": {"block_size": 32}}, ["limits.max_seq_len"]),
        ({"model": None}, ["'model'"]),
        ({"model": json.loads("[" * 150 + "]" * 150)}, ["more than 100 lists and objects inside each other"]),
    ],
)
def test_config_is_checked(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    root = write_engine(tmp_path / "engine", engine_config(**changes))
    with pytest.raises(EngineError) as caught:
        open_engine(root)
    for word in words:
        assert word in str(caught.value)


def test_every_key_of_config_is_needed(tmp_path: Path) -> None:
    for key in engine_config():
        config = engine_config()
        del config[key]
        with pytest.raises(EngineError):
            open_engine(write_engine(tmp_path / key, config))


def test_what_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such engine directory; build one with: build-engine"):
        open_engine(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(EngineError, match="this is a file"):
        open_engine(tmp_path / "file")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert not is_engine(model)
    with pytest.raises(EngineError, match="a Hugging Face model"):
        open_engine(model)
