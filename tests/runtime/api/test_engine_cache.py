"""The bound of the engine cache, `tensorwright cache`, and several processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_runtime import FakeEngine, fake_module, write_engine
from support.waiting import PATIENCE
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.api import llm, model_cache
from tensorwright.runtime.api.engine_cache import (
    cache_entries,
    cache_limit,
    remove_entry,
    take_lock,
    trim_cache,
    try_lock,
)
from tensorwright.runtime.api.model_cache import BuildChoices, cache_key, engine_for_model
from tensorwright.runtime.commands.cli import main
from tensorwright.runtime.engine import native

SIZE = 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TENSORWRIGHT_CACHE_SIZE", raising=False)
    return tmp_path / "cache" / "tensorwright" / "engines"


def build(source: Path, out: Path, options: BuildChoices) -> None:
    out.mkdir()
    (out / "data").write_bytes(bytes(SIZE))


def make_model(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def put(tmp_path: Path, name: str, used: int) -> str:
    """An engine of the cache that was last used then; its key."""
    cached = engine_for_model(make_model(tmp_path, name), BuildChoices(), build)
    assert cached.lease is not None
    cached.lease.close()
    os.utime(cached.path, (used, used))
    return cached.path.name


def keys(cache: Path) -> list[str]:
    return [entry.key for entry in cache_entries(cache)]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["cache", *arguments])
    return int(exit_info.value.code or 0), *capsys.readouterr()


def test_the_longest_unused_go_first(tmp_path: Path, cache: Path) -> None:
    a, b, c = (put(tmp_path, name, used) for name, used in (("a", 300), ("b", 100), ("c", 200)))
    assert keys(cache) == [b, c, a]
    assert trim_cache(cache, 3 * SIZE) == []
    assert trim_cache(cache, 2 * SIZE) == [b]
    assert trim_cache(cache, 0) == [c, a]
    assert list(cache.iterdir()) == []


def test_a_build_trims_but_never_what_runs(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_CACHE_SIZE", str(2 * SIZE))
    running = engine_for_model(make_model(tmp_path, "a"), BuildChoices(), build)
    os.utime(running.path, (1, 1))
    b = put(tmp_path, "b", 2)
    c = put(tmp_path, "c", 3)  # b had to go: a is older, but it runs
    assert keys(cache) == [running.path.name, c]
    assert b != c
    assert running.lease is not None
    running.lease.close()
    put(tmp_path, "d", 4)
    assert running.path.name not in keys(cache)


def test_an_engine_larger_than_the_bound_is_kept_while_it_is_new(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be built for ever."""
    monkeypatch.setenv("TENSORWRIGHT_CACHE_SIZE", "1")
    a = put(tmp_path, "a", 1)
    assert keys(cache) == [a]
    b = put(tmp_path, "b", 2)
    assert keys(cache) == [b]


def test_use_makes_an_engine_young(tmp_path: Path, cache: Path) -> None:
    a, b = put(tmp_path, "a", 100), put(tmp_path, "b", 200)
    engine_for_model(tmp_path / "a", BuildChoices(), lambda *args: pytest.fail("it is there"))
    assert keys(cache) == [b, a]


def test_what_killed_builds_left_goes_too(cache: Path) -> None:
    (cache / "dead.partial").mkdir(parents=True)
    (cache / "dead.partial" / "data").write_bytes(bytes(SIZE))
    assert [entry.size for entry in cache_entries(cache)] == [SIZE]
    assert trim_cache(cache, 0) == ["dead"]
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("value", ["", "lots", "0", "-1"])
def test_a_wrong_bound_is_told_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TENSORWRIGHT_CACHE_SIZE", value)
    with pytest.raises(InvalidOptionError, match="TENSORWRIGHT_CACHE_SIZE must be a positive number of bytes"):
        engine_for_model(make_model(tmp_path, "a"), BuildChoices(), lambda *args: pytest.fail("built"))


def test_the_bound_has_a_default() -> None:
    assert cache_limit() == 50 << 30


def test_a_removed_lock_is_not_waited_on(cache: Path) -> None:
    """Who waited for a lock that its holder removed takes the new one: two must never both think to be alone."""
    cache.mkdir(parents=True)
    first = take_lock(cache, "k", alone=True)
    assert first is not None
    assert try_lock(cache, "k", alone=False) is None
    (cache / "k.lock").unlink()
    second = try_lock(cache, "k", alone=True)
    assert second is not None
    assert not remove_entry(cache, "k")


def test_list(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = put(tmp_path, "a", 100)
    running = engine_for_model(make_model(tmp_path, "b"), BuildChoices("float32"), build)
    told = json.loads(call(capsys, "list", "--json")[1])
    assert (told["root"], told["total_bytes"], told["limit_bytes"]) == (str(cache), 2 * SIZE, 50 << 30)
    assert told["engines"][0] == {
        "key": a, "path": str(cache / a), "model": str(tmp_path / "a"), "dtype": "auto", "bytes": SIZE,
        "last_used": "1970-01-01T00:01:40Z", "in_use": False,
    }  # fmt: skip
    assert told["engines"][1]["in_use"]
    code, out, _ = call(capsys, "list")
    assert code == 0
    assert f"{running.path.name}      1000 B  used " in out
    assert f", in use  {tmp_path / 'b'} (float32)" in out
    assert "2 engines, 2.0 KiB of at most 50.0 GiB (TENSORWRIGHT_CACHE_SIZE)" in out


def test_an_empty_cache(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(call(capsys, "list", "--json")[1])["engines"] == []
    assert call(capsys, "clear") == (0, f"removed 0 engines, 0 B, from {cache}\n", "")
    assert not cache.exists()


def test_clear(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (put(tmp_path, name, used) for name, used in (("a", 1), ("b", 2), ("c", 3)))
    assert json.loads(call(capsys, "clear", "--json", b[:9])[1])["removed"] == [b]
    running = engine_for_model(tmp_path / "c", BuildChoices(), build)
    assert call(capsys, "clear")[1].endswith(f"\nkept {c}: a process uses it\n")
    assert keys(cache) == [c]
    assert running.lease is not None
    running.lease.close()
    assert json.loads(call(capsys, "clear", "--json")[1])["freed_bytes"] == SIZE
    assert list(cache.iterdir()) == []
    assert a != b


@pytest.mark.parametrize("key", ["zzz", ""])
def test_clear_of_an_unknown_key(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    a = put(tmp_path, "a", 1)
    code, out, err = call(capsys, "clear", "--json", key)
    assert (code, json.loads(out)["error"]) == (2, "InvalidOptionError")
    assert "tensorwright cache list" in err
    assert keys(cache) == [a]


def test_llm_keeps_its_engine_until_shutdown(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    monkeypatch.setattr(model_cache, "_import_builder", lambda: lambda source, out, options: write_engine(out) and None)
    model = make_model(tmp_path, "a")
    with llm.LLM(model, kv_cache_memory="1MiB"):
        assert not remove_entry(cache, cache_key(model, BuildChoices()))
    assert remove_entry(cache, cache_key(model, BuildChoices()))


SCRIPT = """
import os, sys
from pathlib import Path
from tensorwright.runtime.api.engine_cache import cache_root, trim_cache
from tensorwright.runtime.api.model_cache import BuildChoices, engine_for_model

def build(source, out, options):
    out.mkdir()
    for i in range(5):
        (out / str(i)).write_text(source.name)

models = [Path(name) for name in sys.argv[2:]]
for turn in range(60):
    model = models[(turn * 7 + int(sys.argv[1])) % len(models)]
    cached = engine_for_model(model, BuildChoices(), build)
    for i in range(5):  # while we hold it, it is there, whole and of this model
        assert (cached.path / str(i)).read_text() == model.name
    trim_cache(cache_root(), 0)
    for i in range(5):
        assert (cached.path / str(i)).read_text() == model.name
    cached.lease.close()
"""


def test_several_processes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They build, use and remove the same three engines; nobody ever loses what he uses."""
    monkeypatch.setenv("TENSORWRIGHT_CACHE_SIZE", "10")
    models = [str(make_model(tmp_path, name)) for name in ("one", "two", "three")]
    crowd = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", SCRIPT, str(n), *models], stderr=subprocess.PIPE, text=True, env=os.environ
        )
        for n in range(4)
    ]
    said = [process.communicate(timeout=PATIENCE)[1] for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 4, said
    assert not [name for name in os.listdir(cache) if name.endswith(".partial")]
