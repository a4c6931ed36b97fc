"""The program that makes the image refuses what it cannot use, and makes the image that the manifests name."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from support.modules import load_module
from support.places import ROOT

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_module(DEPLOY / "image" / "make_image.py")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing.whl", "is no wheel: `make wheel` makes one"),
        ("tensorwright-0.1.0.tar.gz", "is no wheel"),
        ("tensorwright-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl", "is not for Python 3.11"),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused(maker: ModuleType, tmp_path: Path, name: str, says: str) -> None:
    if name != "nothing.whl":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(maker.ImageError, match=re.escape(says)):
        maker.check_wheel(tmp_path / name)


def test_missing_tools_are_named(maker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker.shutil, "which", lambda program: None)
    with pytest.raises(maker.ImageError, match="apt-get install mmdebstrap umoci"):
        maker.check_tools()


def test_only_an_image_is_replaced(maker: ModuleType, tmp_path: Path) -> None:
    maker.check_out(tmp_path / "new")
    with pytest.raises(maker.ImageError, match="is no image in OCI's layout"):
        maker.check_out(tmp_path)
    (tmp_path / "oci-layout").write_text("{}")
    maker.check_out(tmp_path)


def test_it_is_the_image_of_the_dockerfile(maker: ModuleType) -> None:
    written = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {maker.USER}:{maker.USER}" in written
    assert f"STOPSIGNAL {maker.SETTINGS['--config.stopsignal']}" in written
    assert f'ENTRYPOINT ["{maker.SETTINGS["--config.entrypoint"]}"]' in written
    assert f"EXPOSE {maker.SETTINGS['--config.exposedports'].partition('/')[0]}" in written
    assert all(variable in " ".join(maker.VARIABLES) for variable in re.findall(r"(?m)^ENV (\S+) (\S+)$", written)[0])


@pytest.fixture(scope="module")
def trial() -> ModuleType:
    return load_module(DEPLOY / "image" / "try_dockerfile.py")


def test_each_dockerfile_can_be_tried_without_docker(trial: ModuleType) -> None:
    for name in ("Dockerfile", "Dockerfile.triton"):
        found = trial.instructions((DEPLOY / name).read_text(encoding="utf-8"))
        assert {"FROM", "COPY", "RUN", "USER", "STOPSIGNAL"} <= {word for word, _ in found}
        assert not any("\\" in rest for _, rest in found)
    with pytest.raises(trial.DockerfileError, match="ONBUILD, SHELL cannot be carried out here"):
        trial.instructions("FROM a\nSHELL []\nonbuild RUN true\n")


def test_the_last_pattern_of_dockerignore_decides(trial: ModuleType) -> None:
    patterns = ["build", "dist/*", "!dist/*-cp312-*.whl", "**/__pycache__", ".venv*"]
    out = {"build/a/b", "dist/a.whl", "a/b/__pycache__/c", ".venv-x/bin/python"}
    kept = {"builder/a", "a/build", "dist/a-cp312-b.whl", "docs/dist/a", "a/.venv"}
    assert {path for path in out | kept if trial.is_left_out(path, patterns)} == out


def test_no_image_gets_what_git_does_not_keep() -> None:
    """The context of a build is the repository. What was built or installed in it is of this machine, and large."""
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in left_out if line and not line.startswith(("#", "!"))]
    assert {".git", ".venv*", "build", "out"} <= set(patterns)
    for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split():
        name = line.strip("/")
        known = name in {"dist"} or any(fnmatch(name, pattern.removeprefix("**/")) for pattern in patterns)
        assert known, f"{line} of .gitignore is not in .dockerignore"
    kept = [line.removeprefix("!") for line in left_out if line.startswith("!")]
    triton = (DEPLOY / "Dockerfile.triton").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^COPY (dist/\S+)", triton) == kept
