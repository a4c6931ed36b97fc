"""An engine directory appears whole or not at all, and its checksums hold."""

from __future__ import annotations

import errno
import json
import os

import pytest
import xxhash

from tensorwright import durable
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.engine_format.checksums import FileSum, checksum_text
from tensorwright.errors import BuildError

CONFIG = {"format": "tensorwright-engine"}


def write_engine(out, *, overwrite=False, marker="x", fail=None):
    with EngineWriter(out, overwrite=overwrite) as writer:
        writer.write_json("config.json", CONFIG)
        with writer.open("cpu/weights.bin") as file:
            file.write(b"abc")
            if fail is not None:
                raise fail
            file.write(marker.encode())
        writer.write_json("build-report.json", {"seconds": 1})
        writer.commit()
    return out


def test_files_and_checksums(tmp_path):
    out = write_engine(tmp_path / "engine")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["engine"]
    lines = (out / "checksums.txt").read_text().splitlines()
    rows = [line.split("  ") for line in lines]
    assert [name for _, _, name in rows] == ["config.json", "cpu/weights.bin", "."]
    for digest, size, name in rows[:-1]:
        data = (out / name).read_bytes()
        assert (digest, int(size)) == (xxhash.xxh3_128_hexdigest(data), len(data))
    body = "".join(line + "\n" for line in lines[:-1]).encode()
    assert rows[-1][:2] == [xxhash.xxh3_128_hexdigest(body), str(len(body))]


def test_checksum_lines_are_sorted():
    text = checksum_text({"b": FileSum("22", 2), "a": FileSum("11", 1)})
    assert text.startswith("11  1  a\n22  2  b\n")


@pytest.mark.parametrize("error", [RuntimeError("bang"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_left_by_a_failure(tmp_path, error, deep):
    out = tmp_path / "a" / "b" / "engine" if deep else tmp_path / "engine"
    with pytest.raises(type(error)):
        write_engine(out, fail=error)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_without_a_commit(tmp_path):
    with EngineWriter(tmp_path / "engine") as writer:
        writer.write("config.json", b"{}")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_engine(tmp_path):
    out = write_engine(tmp_path / "engine", marker="old")
    with pytest.raises(RuntimeError):
        write_engine(out, overwrite=True, fail=RuntimeError())
    assert (out / "cpu" / "weights.bin").read_bytes() == b"abcold"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


def test_replacement(tmp_path):
    out = write_engine(tmp_path / "engine", marker="old")
    with pytest.raises(BuildError, match="already exists"):
        write_engine(out, marker="new")
    assert (out / "cpu" / "weights.bin").read_bytes() == b"abcold"
    write_engine(out, marker="new", overwrite=True)
    assert (out / "cpu" / "weights.bin").read_bytes() == b"abcnew"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_failed_rename_puts_the_old_engine_back(tmp_path, exchanges, monkeypatch):
    out = write_engine(tmp_path / "engine", marker="old")
    real = os.rename

    def rename(source, target, **more):
        if ".building-" in str(source):
            raise OSError(errno.EIO, "broken disk")
        real(source, target, **more)

    monkeypatch.setattr(durable, "exchange", lambda one, other: exchanges and rename(one, other))
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(BuildError, match="broken disk"):
        write_engine(out, marker="new", overwrite=True)
    assert (out / "cpu" / "weights.bin").read_bytes() == b"abcold"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


def test_what_is_no_engine_is_never_replaced(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    file = tmp_path / "file"
    file.write_text("")
    link = tmp_path / "link"
    link.symlink_to(write_engine(tmp_path / "engine"))
    for out in (home, file, link):
        with pytest.raises(BuildError, match="not replaced"):
            write_engine(out, overwrite=True)
    assert (home / "letter.txt").read_text() == "dear"
    empty = tmp_path / "empty"
    empty.mkdir()
    write_engine(empty, overwrite=True)
    assert (empty / "checksums.txt").exists()


def test_full_disk(tmp_path, monkeypatch):
    with EngineWriter(tmp_path / "engine") as writer, pytest.raises(BuildError, match=r"needs 1000000000000\.00 MB"):
        writer.require_space(10**18)
    with pytest.raises(BuildError, match=r"weights.bin cannot be written \(No space left on device\)"):
        write_engine(tmp_path / "engine", fail=OSError(errno.ENOSPC, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_place(tmp_path):
    blocker = tmp_path / "blocker"
    blocker.write_text("a file")
    with pytest.raises(BuildError, match="cannot be written to"):
        write_engine(blocker / "engine")


def test_a_file_is_written_once(tmp_path):
    with EngineWriter(tmp_path / "engine") as writer:
        writer.write("config.json", json.dumps(CONFIG).encode())
        with pytest.raises(BuildError, match="cannot be written"):
            writer.write("config.json", b"{}")


def test_a_file_of_another_process_is_adopted_with_its_checksum(tmp_path):
    made = tmp_path / "made.bin"
    made.write_bytes(b"x" * 100_000)
    with EngineWriter(tmp_path / "out") as writer:
        writer.write("a/written.bin", b"x" * 100_000)
        writer.adopt("b/adopted.bin", made)
        writer.commit()
    assert not made.exists()
    assert (tmp_path / "out/b/adopted.bin").read_bytes() == b"x" * 100_000
    written, adopted = (line.split() for line in (tmp_path / "out/checksums.txt").read_text().splitlines()[:2])
    assert written[:2] == adopted[:2]
    assert adopted[2] == "b/adopted.bin"


def test_a_file_that_cannot_be_adopted_is_a_build_error(tmp_path):
    with pytest.raises(BuildError, match=r"b/adopted\.bin cannot be written"), EngineWriter(tmp_path / "out") as writer:
        writer.adopt("b/adopted.bin", tmp_path / "missing")
