"""ARCHITECTURE.md names files and functions that exist: in the walk's tables each function in its file."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from support.places import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = ("src", "models", "builder", "passes", "plugins", "runtime", "insight", "tests", "docs")
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


def exists(path: str) -> bool:
    """A name without a folder is a room, or a file whose folder the sentence gives."""
    alone = "/" not in path.rstrip("/")
    return (ROOT / path).exists() or (alone and any(source.name == path for source in sources()))


def test_there_are_two_walks() -> None:
    assert len(STEP.findall(TEXT)) >= 16
    assert TEXT.count("| step | file | functions | what happens |") == 2


def test_each_function_of_a_step_is_in_its_file() -> None:
    named = [(file, name) for file, functions in STEP.findall(TEXT) for name in CODE.findall(functions)]
    assert not [f"{file} defines no {name}" for file, name in named if not defines(ROOT / file, name)]


def test_each_file_exists() -> None:
    assert not [word for word in CODE.findall(TEXT) if PATH.fullmatch(word) and not exists(word)]


def test_a_file_of_more_than_500_lines_says_why() -> None:
    long = {
        path: " ".join(text[:2000].replace("//", " ").split())
        for path, text in sources().items()
        if text.count("\n") > 500
    }
    assert not [path.name for path, head in long.items() if "more than 500 lines" not in head]


def test_each_other_name_is_somewhere_in_the_sources() -> None:
    here = Path(__file__)
    words = {word for path, text in sources().items() if path != here for word in re.findall(r"\w+", text)}
    named = {word for word in CODE.findall(TEXT) if NAME.fullmatch(word)}
    assert not [name for name in named if name.rpartition(".")[2] not in words]


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


def test_the_lists_of_files_are_those_of_now() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_rooms.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
