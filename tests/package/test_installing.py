"""What errors and pages say of installing: extras that exist, from a place that has them, in the same words."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from support.doc_words import ROOT
from tensorwright import installing
from tensorwright.installing import install, install_command

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
ROOMS = ("src/tensorwright", "models", "builder", "passes", "plugins", "runtime")
SOURCES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("models/*/README.md")]
OURS = re.compile(r"pip install (?!\S*\.(?:whl|tar\.gz)\[)[^`\n#]*\[([a-z,-]+)\]['\"]?")
"""A command that installs this package with extras, from its clone: a wheel or the sources have their own names."""


def test_a_remedy_can_be_followed(monkeypatch):
    assert install("serve") == "pip install -e '.[serve]' in the clone of Tensorwright"
    assert install_command("build", "serve", options="--upgrade") == "pip install --upgrade -e '.[build,serve]'"
    monkeypatch.setattr(installing, "PUBLISHED", True)
    assert install("serve", options="--upgrade") == "pip install --upgrade 'tensorwright[serve]'"


def test_the_code_leaves_the_words_to_one_place():
    assert len(SOURCES) > 100
    here = [path for path in SOURCES if OURS.search(path.read_text(encoding="utf-8"))]
    assert here == [ROOT / "src/tensorwright/installing.py"]


def test_extras_of_remedies_exist():
    calls = [
        node
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install"
    ]
    named = {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)}
    assert {"build", "serve", "guided", "onnx", "gpu", "tensorrt-rtx"} <= named <= EXTRAS


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name + "/" + path.name)
def test_pages_say_what_the_errors_say(path):
    for command in OURS.finditer(path.read_text(encoding="utf-8")):
        extras = command[1].split(",")
        assert set(extras) <= EXTRAS
        assert command[0].startswith(install_command(*extras)), command[0]


def test_the_first_five_minutes_install_what_they_use():
    """docs/serving.md builds an engine, serves it, and calls it with OpenAI's client."""
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    first = text[text.index("## In five minutes") : text.index("## Endpoints")]
    assert install_command("build", "serve") in first
    assert "at the root of a clone" in first
    assert "pip install openai" in first
