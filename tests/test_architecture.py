"""ARCHITECTURE.md names files and functions that exist: in the walk's tables each function in its file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = ("src", "models", "builder", "passes", "plugins", "runtime", "tests", "docs")
CODE = re.compile(r"`([^`\n]+)`")
# | step | `file` | `function`, `function` | what |
STEP = re.compile(r"^\| [^|]+ \| `([\w/]+\.(?:py|cc|h))` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|cc|h|md))")
NAME = re.compile(r"(?!_\b)[A-Za-z_]\w*(\.[a-z_]\w*)?")


def defines(path: Path, name: str) -> bool:
    """Python: def, class or assignment. C++: a function's or class's definition, not a call."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return bool(re.search(rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}\b.* = ", text, re.MULTILINE))
    function = rf"^(?:  )?(?!return\b)\w[\w:<>*&\", ]*[\s*&:]{name}\("
    return bool(re.search(rf"{function}|\b(?:class|struct) {name}\b", text, re.MULTILINE))


@cache
def sources() -> dict[Path, str]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cc", ".h"))
    return {path: path.read_text(encoding="utf-8") for path in files if "__pycache__" not in path.parts}


def test_there_are_two_walks() -> None:
    assert len(STEP.findall(TEXT)) > 40
    assert TEXT.count("| step | file | functions | what happens |") == 2


@pytest.mark.parametrize(("file", "functions"), STEP.findall(TEXT))
def test_each_function_of_a_step_is_in_its_file(file: str, functions: str) -> None:
    names = CODE.findall(functions)
    assert names
    for name in names:
        assert defines(ROOT / file, name), f"{file} defines no {name}"


@pytest.mark.parametrize("path", sorted({word for word in CODE.findall(TEXT) if PATH.fullmatch(word)}))
def test_each_file_exists(path: str) -> None:
    if "/" in path.rstrip("/"):
        assert (ROOT / path).exists()
    else:  # named alone: a room, or a file whose folder the sentence gives
        assert (ROOT / path).exists() or any(source.name == path for source in sources())


@pytest.mark.parametrize("name", sorted({word for word in CODE.findall(TEXT) if NAME.fullmatch(word)}))
def test_each_other_name_is_somewhere_in_the_sources(name: str) -> None:
    last = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    assert any(last.search(text) for path, text in sources().items() if path != Path(__file__))


def test_the_check_sees_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def there(): ...\nX = 1\nthere()\nelsewhere()\n")
    (tmp_path / "a.cc").write_text(
        "void Engine::there(int x) {\n  elsewhere(x);\n  return gone(x);\n}\nclass Thing {};\n"
    )
    assert defines(tmp_path / "a.py", "there")
    assert defines(tmp_path / "a.py", "X")
    assert defines(tmp_path / "a.cc", "there")
    assert defines(tmp_path / "a.cc", "Thing")
    assert not any(defines(tmp_path / name, "elsewhere") for name in ("a.py", "a.cc"))
    assert not defines(tmp_path / "a.cc", "gone")
