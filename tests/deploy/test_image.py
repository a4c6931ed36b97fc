"""The program that makes the image refuses what it cannot use, and makes the image that the manifests name."""

from __future__ import annotations

import platform
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from support.modules import load_module
from support.places import ROOT
from tensorwright.runtime.serving.triton.model_config import config_text

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


def test_an_image_takes_the_wheel_of_its_processor(tmp_path: Path) -> None:
    """Wheels of all processors lie in dist/ and are copied into the context of a build."""
    for python in ("cp311-cp311", "cp312-abi3"):
        for machine in ("x86_64", "aarch64"):
            wheel = tmp_path / "dist" / f"tensorwright-0.1.0-{python}-manylinux_2_28_{machine}.whl"
            wheel.parent.mkdir(exist_ok=True)
            wheel.touch()
    command = ["make", "-n", "-C", tmp_path, "-f", ROOT / "Makefile", "image"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    machine = platform.machine()
    assert re.findall(r"\S+\.whl", printed) == [f"dist/tensorwright-0.1.0-cp311-cp311-manylinux_2_28_{machine}.whl"]
    triton = (DEPLOY / "Dockerfile.triton").read_text(encoding="utf-8")
    (copied,), (taken,) = (
        re.findall(form, triton) for form in (r"(?m)^COPY dist/(\S+)", r"echo /wheels/(.+?\.whl)\)\[")
    )
    command = ["sh", "-c", f"mkdir wheels && cp {copied} wheels && cd wheels && echo {taken}"]
    printed = subprocess.run(command, cwd=tmp_path / "dist", check=True, capture_output=True, text=True).stdout
    assert printed.split() == [f"tensorwright-0.1.0-cp312-abi3-manylinux_2_28_{machine}.whl"]


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


def test_an_image_of_triton_serves_a_repository_of_one_model(trial: ModuleType, tmp_path: Path) -> None:
    """The engine is where config.pbtxt says, in the image as on this machine."""

    def write(name: str, engine: str) -> None:
        (tmp_path / name).mkdir()
        text = config_text(name, "python", 4, {"engine": engine, "interface": "both"}, True)
        (tmp_path / name / "config.pbtxt").write_text(text, encoding="utf-8")

    with pytest.raises(trial.DockerfileError, match="has 0 models, and must have one"):
        trial.triton_service(tmp_path, 8123)
    write("pico", "/engines/pico")
    service = trial.triton_service(tmp_path, 8123)
    assert service.mounts == {"/models": tmp_path, "/engines/pico": Path("/engines/pico")}
    assert service.path == "v2/models/pico/generate"
    assert {"--http-port=8123", "--http-address=127.0.0.1", "--grpc-port=8124"} <= set(service.arguments)
    (tmp_path / "pico").rename(tmp_path.parent / "whole")
    write("moved", "../../engines/pico")
    with pytest.raises(trial.DockerfileError, match="names no engine by an absolute path"):
        trial.triton_service(tmp_path, 8123)
    write("second", "/engines/pico")
    with pytest.raises(trial.DockerfileError, match="has 2 models, and must have one"):
        trial.triton_service(tmp_path, 8123)


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
