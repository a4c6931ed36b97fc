"""Finding TensorRT, and the cure for the file name that its parser misses; with made-up packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorwright.builder.emit.tensorrt.library import (
    FLAVOURS,
    Library,
    cured_environment,
    find_library,
    missing_name,
    require_version,
)
from tensorwright.errors import MissingDependencyError

RTX, FULL = FLAVOURS["tensorrt-rtx"], FLAVOURS["tensorrt"]


def make_libs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"a library")
    return folder


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=str)
def test_an_absent_package_is_named_with_its_extra(flavour, monkeypatch):
    monkeypatch.setattr("tensorwright.builder.emit.tensorrt.library.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=rf"{flavour.module}, which is not .*\[{flavour.name}\]"):
        find_library(flavour)


@pytest.mark.parametrize(("flavour", "found"), [(FULL, "10.14.9.1"), (FULL, "8.6"), (RTX, "1.6.0.3")])
def test_an_old_version_is_refused(flavour, found):
    with pytest.raises(MissingDependencyError, match=rf"or later, {found} is installed: pip install --upgrade"):
        require_version(flavour, found)


@pytest.mark.parametrize(("flavour", "found"), [(FULL, "10.15.1.29"), (FULL, "11.1"), (RTX, "1.7.1.116"), (RTX, "2.0")])
def test_a_later_version_serves(flavour, found):
    require_version(flavour, found)


def test_an_old_package_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    make_libs(tmp_path / "tensorrt", "__init__.py")
    (tmp_path / "tensorrt" / "__init__.py").write_text("raise SystemExit('it was loaded')")
    info = tmp_path / "tensorrt-10.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt\nVersion: 10.3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"10\.3\.0 is installed"):
        find_library(FULL)
    assert "tensorrt" not in sys.modules


def test_the_missing_name_is_found_and_named(tmp_path):
    folder = make_libs(tmp_path / "libs", "libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1")
    library = missing_name(RTX, [tmp_path / "empty", folder])
    assert library == Library(RTX, "libtensorrt_rtx.so", folder / "libtensorrt_rtx.so.1")
    assert "libtensorrt_rtx.so, which the parser of tensorrt_rtx looks up, is missing beside libtensorrt_rtx.so.1" in (
        library.note or ""
    )
    assert str(tmp_path) not in (library.note or "")


def test_nothing_is_missing_where_the_name_is_there(tmp_path):
    folder = make_libs(tmp_path / "libs", "libnvinfer.so", "libnvinfer.so.10")
    assert missing_name(FULL, [folder]) == Library(FULL)
    assert Library(FULL).note is None


def test_the_cure_is_a_private_folder_that_is_gone_afterwards(tmp_path):
    folder = make_libs(tmp_path / "libs", "libtensorrt_rtx.so.1")
    before = {"LD_LIBRARY_PATH": "/a:/b", "HOME": "/c"}
    with cured_environment(missing_name(RTX, [folder]), before) as environment:
        private, _, rest = environment["LD_LIBRARY_PATH"].partition(":")
        link = Path(private) / "libtensorrt_rtx.so"
        assert link.resolve() == folder / "libtensorrt_rtx.so.1"
        assert (rest, environment["HOME"]) == ("/a:/b", "/c")
        assert [path.name for path in folder.iterdir()] == ["libtensorrt_rtx.so.1"]
    assert not Path(private).exists()
    assert before["LD_LIBRARY_PATH"] == "/a:/b"


def test_the_cure_adds_no_current_directory_to_an_empty_path(tmp_path):
    folder = make_libs(tmp_path / "libs", "libtensorrt_rtx.so.1")
    for before in ({}, {"LD_LIBRARY_PATH": ""}):
        with cured_environment(missing_name(RTX, [folder]), before) as environment:
            assert ":" not in environment["LD_LIBRARY_PATH"]


def test_a_whole_library_needs_no_cure():
    with cured_environment(Library(FULL), {"HOME": "/c"}) as environment:
        assert environment == {"HOME": "/c"}
