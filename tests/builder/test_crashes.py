"""A process that is killed, or a machine that loses power: at a place is the old or the new, and never a mixture."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import engine_config
from support.fake_runtime import write_engine as write_fake_engine
from support.killed import kill_at_each_step
from support.toy_engine import write_toy_engine
from tensorwright import durable
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.errors import BuildError
from tensorwright.runtime.api import model_cache
from tensorwright.runtime.api.engine_cache import cache_entries, cache_root, remove_entry, trim_cache
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.api.model_cache import BuildChoices, engine_for_model
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton.repository import RepositoryOptions, write_repository

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def build(out: Path, marker: str, overwrite: bool = True) -> None:
    """An engine as the reader accepts it; all its files but config.json say `marker`."""
    with EngineWriter(out, overwrite=overwrite) as writer:
        writer.write_json("config.json", engine_config(source={"hash": marker, "files": {}}))
        for name in ("cpu/plan.bin", "cpu/weights.bin", "graph.txt"):
            writer.write(name, marker.encode())
        writer.write_json("generation_config.json", {"marker": marker})
        writer.commit()


def marker(out: Path) -> str | None:
    """Of the engine at `out`, all of whose files must agree; None if there is nothing."""
    if not os.path.lexists(out):
        return None
    engine = open_engine(out)  # with its checksums
    (found,) = {
        engine.config.source.hash, engine.read_json("generation_config.json")["marker"],
        *((out / name).read_text() for name in ("cpu/plan.bin", "cpu/weights.bin", "graph.txt")),
    }  # fmt: skip
    return found


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that cannot exchange two names."""
    monkeypatch.setattr(durable, "exchange", lambda one, other: False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs are still steps at which a process may be killed, but they cost nothing. A kill loses nothing written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("quick")
def test_a_killed_build_leaves_nothing_and_what_is_left_is_removed(tmp_path: Path) -> None:
    out, seen = tmp_path / "new" / "engine", set()
    for _ in kill_at_each_step(lambda: shutil.rmtree(out.parent, ignore_errors=True), lambda: build(out, "new")):
        seen.add(marker(out))
        build(out, "next")
        assert marker(out) == "next"
        assert os.listdir(out.parent) == ["engine"]
    assert seen == {None, "new"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_killed_replacement_leaves_the_old_engine_or_the_new_one(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        without_exchange(monkeypatch)
    out, seen = tmp_path / "engine", []

    def prepare() -> None:
        shutil.rmtree(tmp_path)
        build(out, "old")

    for _ in kill_at_each_step(prepare, lambda: build(out, "new")):
        seen.append(marker(out))
        if seen[-1] is None:  # between the two renames: the next that writes there puts the old engine back first
            with pytest.raises(BuildError, match="already exists"):
                build(out, "next", overwrite=False)
            assert marker(out) == "old"
        build(out, "next")
        assert marker(out) == "next"
        assert os.listdir(tmp_path) == ["engine"]
    assert set(seen) == ({"old", "new"} if exchanges else {"old", "new", None})
    assert seen.count(None) == (0 if exchanges else 1)


@pytest.mark.usefixtures("quick")
def test_an_engine_that_is_served_goes_on_while_its_replacement_is_killed(tmp_path: Path) -> None:
    """Old or new is also what a server finds that starts then."""
    place, made, tokens = tmp_path / "engine", write_toy_engine(tmp_path / "made"), [3, 1, 4]

    def put(eos: int) -> None:
        with EngineWriter(place, overwrite=True) as writer:
            for path in sorted(path for path in made.rglob("*") if path.is_file()):
                if path.name in ("checksums.txt", "generation_config.json"):
                    continue
                writer.write(str(path.relative_to(made)), path.read_bytes())
            writer.write_json("generation_config.json", {"eos_token_id": eos})
            writer.commit()

    def answer(llm: LLM) -> list[int]:
        params = SamplingParams(max_tokens=8, temperature=0.0, detokenize=False)
        return llm.generate({"prompt_token_ids": tokens}, params).outputs[0].token_ids

    put(100)
    with LLM(place, kv_cache_memory="1MiB", threads=1) as llm:
        whole = answer(llm)
        ends = whole[0]  # the new engine would stop at once
        for _ in kill_at_each_step(lambda: put(100), lambda: put(ends), every=4):
            assert answer(llm) == whole
            assert open_engine(place).eos_token_ids in ([100], [ends])
        assert answer(llm) == whole
    assert len(whole) == 8
    with LLM(place, kv_cache_memory="1MiB", threads=1) as llm:
        assert answer(llm) == [ends]


def test_who_is_at_work_is_left_alone(tmp_path: Path) -> None:
    """Another build of the same engine is no leftover, whatever its process is numbered."""
    out = tmp_path / "engine"
    with EngineWriter(out) as slow:
        slow.write_json("config.json", engine_config())
        build(out, "quick")
        assert slow.directory.is_dir()
    assert os.listdir(tmp_path) == ["engine"]
    assert marker(out) == "quick"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached engines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_root()


def make_model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


@pytest.mark.usefixtures("quick")
def test_a_killed_build_of_a_cached_engine(tmp_path: Path, cache: Path) -> None:
    model, choices = make_model(tmp_path / "model"), BuildChoices()

    def make() -> Path:
        return engine_for_model(model, choices, lambda model, out, choices: build(out, "cached")).path

    seen = set()
    for _ in kill_at_each_step(lambda: shutil.rmtree(cache, ignore_errors=True), make):
        (path,) = {cache / model_cache.cache_key(model, choices)}
        seen.add(marker(path))
        assert marker(make()) == "cached"
        assert sorted(os.listdir(cache)) == [path.name, f"{path.name}.lock"]
    assert seen == {None, "cached"}


@pytest.mark.usefixtures("quick")
def test_a_killed_trim_of_the_cache(tmp_path: Path, cache: Path) -> None:
    """What a killed trim left half removed is nobody's engine, and the next trim ends its work."""

    def prepare() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        for key in ("aa", "bb"):
            build(cache / key, key)
        os.utime(cache / "aa", (1, 1))

    limit = 100  # less than an engine: both go
    for _ in kill_at_each_step(prepare, lambda: trim_cache(cache, limit)):
        for key in ("aa", "bb"):
            assert marker(cache / key) in (key, None)
        trim_cache(cache, limit)
        assert [name for name in os.listdir(cache) if not name.endswith(".lock")] == []


def test_a_build_under_way_is_no_engine_of_the_cache(tmp_path: Path, cache: Path) -> None:
    """It counts as its key, which its builder has locked; what is left of a killed one goes with its key."""
    key = "ab" * 16
    with EngineWriter(cache / f"{key}.partial") as writer:
        writer.write("cpu/weights.bin", bytes(1000))
        assert [(entry.key, entry.size) for entry in cache_entries(cache)] == [(key, 1000)]
        assert remove_entry(cache, key)
        assert os.listdir(cache) == []


@pytest.mark.usefixtures("quick")
def test_a_killed_model_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, root = write_fake_engine(tmp_path / "engine"), tmp_path / "repository"
    options = RepositoryOptions(max_batch_size=4, overwrite=True)

    def files() -> dict[str, str]:
        found = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_text() for path in found}

    def prepare() -> None:
        shutil.rmtree(root, ignore_errors=True)
        write_repository(engine, root, options)

    prepare()
    old = files()
    write_repository(engine, root, replace(options, max_batch_size=8))
    new = files()
    assert old.keys() == new.keys()
    for _ in kill_at_each_step(prepare, lambda: write_repository(engine, root, replace(options, max_batch_size=8)), 2):
        assert {name: text for name, text in files().items() if not name.startswith(".")} in (old, new)
        write_repository(engine, root, options)
        assert files() == old


class Recorded:
    """Syncs and renames in their order, as (what, path)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path):
        self.calls: list[tuple[str, str]] = []
        self._root = root
        for module, name in ((os, "fsync"), (os, "rename"), (durable, "exchange")):
            monkeypatch.setattr(module, name, self._recorded(name, getattr(module, name)))

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(first: Any, *more: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else str(more[0])
            self.calls.append((name, os.path.relpath(place, self._root)))
            return call(first, *more)

        return recorded

    @property
    def shown(self) -> list[tuple[str, str]]:
        """The building folder by that word, since part of its name is chosen by chance."""
        return [
            (name, "/".join("BUILDING" if ".building-" in part else part for part in place.split("/")))
            for name, place in self.calls
        ]


FILES = (
    "checksums.txt", "config.json", "cpu/plan.bin", "cpu/weights.bin", "cpu", "generation_config.json", "graph.txt",
)  # fmt: skip


@pytest.mark.parametrize(("exchanges", "there"), [(True, False), (True, True), (False, True)])
def test_files_are_synced_before_they_are_renamed_and_names_after(
    tmp_path: Path, exchanges: bool, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that after a loss of power a name stands for whole files. The order is what counts: a disk keeps it."""
    if there:
        build(tmp_path / "engine", "old")
    if not exchanges:
        without_exchange(monkeypatch)
    recorded = Recorded(monkeypatch, tmp_path)
    build(tmp_path / "engine", "new")
    synced = [("fsync", f"BUILDING/{name}") for name in FILES] + [("fsync", "BUILDING")]
    moved = [("rename", "engine")] if not there else [("exchange", "engine")]
    if not exchanges:
        (aside,) = (place for name, place in recorded.calls if ".replaced-" in place and name == "rename")
        moved = [("exchange", "engine"), ("rename", aside), ("rename", "engine")]
    assert recorded.shown == [*synced, *moved, ("fsync", ".")]


def test_folders_that_were_made_for_an_engine_are_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, tmp_path)
    build(tmp_path / "a" / "b" / "engine", "new")
    assert recorded.calls[-3:] == [("fsync", "a/b"), ("fsync", "."), ("fsync", "a")]


def test_a_sync_that_fails_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "engine", "old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BuildError, match=r"could not be written to the disk \(Input/output error\)"):
        build(tmp_path / "engine", "new")
    assert marker(tmp_path / "engine") == "old"
    assert os.listdir(tmp_path) == ["engine"]
