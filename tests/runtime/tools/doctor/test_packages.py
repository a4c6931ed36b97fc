"""The packages of `tensorwright doctor`: the versions of pyproject.toml, and a remedy for each way to be wrong."""

import re
import tomllib

import pytest

from support.places import ROOT
from tensorwright.installing import install
from tensorwright.runtime.tools.doctor import packages
from tensorwright.runtime.tools.doctor.packages import PACKAGES, examine_packages, numbers


def requirements() -> dict[tuple[str, str | None], tuple[str, str | None]]:
    """(name, extra) -> (oldest, first too new) of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {None: project["dependencies"], **project["optional-dependencies"]}
    table = {}
    for extra, lines in groups.items():
        for line in lines:
            name = re.match(r"[\w-]+", line)[0]
            oldest, above = re.search(r">=([\d.]+)", line), re.search(r"<([\d.]+)", line)
            table[name, extra] = (oldest[1], above[1] if above else None)
    return table


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_versions_are_those_of_pyproject(package):
    wanted = requirements()
    assert (package.name, package.extra) in wanted
    listed = [bounds for (name, _), bounds in wanted.items() if name == package.name]
    assert min(numbers(oldest) for oldest, _ in listed) == numbers(package.oldest)
    assert {above for _, above in listed} == {package.too_new}


def examined(monkeypatch, name: str, versions: dict[str, str]) -> dict:
    monkeypatch.setattr(packages, "installed", versions.get)
    return next(found for found in examine_packages() if found["name"] in (name, f"{name}-gpu"))


@pytest.mark.parametrize(
    ("versions", "ok", "remedy"),
    [
        ({"torch": "2.13.0+cpu"}, True, None),
        ({"torch": "2.15.0"}, True, None),
        ({"torch": "2.12.1"}, False, "pip install 'torch>=2.13,<2.16'"),
        ({"torch": "2.16.0"}, False, "pip install 'torch>=2.13,<2.16'"),
        ({}, False, install("build")),
    ],
)
def test_states_and_remedies(monkeypatch, versions, ok, remedy):
    found = examined(monkeypatch, "torch", versions)
    assert (found["version"], found["ok"], found["remedy"]) == (versions.get("torch"), ok, remedy)


def test_another_distribution_of_the_same_module_will_do(monkeypatch):
    found = examined(monkeypatch, "onnxruntime", {"onnxruntime-gpu": "1.24.1"})
    assert (found["name"], found["ok"]) == ("onnxruntime-gpu", True)


def test_what_is_installed_here_is_found():
    assert {found["name"]: found for found in examine_packages()}["numpy"]["ok"]
