"""Places that cannot be are refused by build() itself, before any work starts."""

from __future__ import annotations

import os
import shutil

import pytest

from support.tiny_models import make_variant
from tensorwright.builder import build as build_module
from tensorwright.builder.build import build
from tensorwright.errors import BuildError, CheckpointError, InvalidOptionError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_variant(tmp_path_factory.mktemp("places") / "model", "llama")


@pytest.fixture
def home(tiny, tmp_path, monkeypatch):
    """A folder to work in, with a checkpoint `model`, a file `file` and a link `link` to the checkpoint."""
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_module, "trace_model", lambda *args: pytest.fail("work had begun"))
    return tmp_path


@pytest.mark.parametrize(
    ("model", "out", "dump", "error", "said"),
    [
        ("", "engine", None, InvalidOptionError, "model must be the path of a checkpoint directory, a GGUF file"),
        (None, "engine", None, InvalidOptionError, "model must be the path of .*, not None"),
        (7, "engine", None, InvalidOptionError, "model must be the path of .*, not 7"),
        (b"model", "engine", None, InvalidOptionError, "not b'model'"),
        ("mo\0del", "engine", None, InvalidOptionError, "model must be the path of"),
        ("model", "", None, InvalidOptionError, "out must be the path of the directory that the engine becomes"),
        ("model", "  ", None, InvalidOptionError, "out must be the path of"),
        ("model", "engine", "", InvalidOptionError, "dump must be the path of a directory"),
        ("model", "model", None, InvalidOptionError, "out must lie outside model, which is read, not at model"),
        ("model", "model/engine", None, InvalidOptionError, "out must lie outside (model|link), which is read"),
        (
            "model",
            "link/deep/engine",
            None,
            InvalidOptionError,
            "out must lie outside (model|link), which is read",
        ),
        (
            "link",
            "./model/engine",
            None,
            InvalidOptionError,
            "out must lie outside (model|link), which is read",
        ),
        ("model", ".", None, InvalidOptionError, "out must not hold model, which is read"),
        ("model", "engine", "engine", InvalidOptionError, r"dump must lie outside out \(engine\)"),
        ("model", "engine", "engine/dump", InvalidOptionError, "dump must lie outside out"),
        ("model", "engine", "file/dump", BuildError, r"dump file/dump: cannot be made \(Not a directory\)"),
        ("model", "file", None, BuildError, "file: already exists and is no directory"),
        ("model", "link", None, InvalidOptionError, "out must lie outside (model|link), which is read"),
        ("model", "file/engine", None, BuildError, "cannot be written to"),
        ("file", "engine", None, CheckpointError, "file: must be a checkpoint directory"),
        ("absent", "engine", "graphs", CheckpointError, "no such directory"),
        ("~nobody-of-that-name/model", "engine", None, CheckpointError, "no such directory"),
        ("model", "e" * 300, None, BuildError, "File name too long"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_impossible_places(home, model, out, dump, error, said, overwrite):
    before = sorted(os.walk("."))
    with pytest.raises(error, match=said):
        build(model, out, dump=dump, overwrite=overwrite, accuracy="none")
    assert sorted(os.walk(".")) == before


def test_the_folder_of_dumps_is_made_before_the_work(home, monkeypatch):
    class BegunError(Exception):
        pass

    def begin(*args):
        raise BegunError

    monkeypatch.setattr(build_module, "trace_model", begin)
    with pytest.raises(BegunError):
        build("model", "engine", dump="graphs/of/mine", accuracy="none")
    assert (home / "graphs" / "of" / "mine").is_dir()
    assert not (home / "engine").exists()
