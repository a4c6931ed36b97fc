"""docs/errors.md lists every error class, none that is gone, and says what each is; every class is raised somewhere."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from support.places import ROOT
from tensorwright import errors
from tensorwright.errors import TensorwrightError, reason

ROOMS = ("models", "builder", "passes", "plugins", "runtime")
ROW = re.compile(r"\| `(\w+)` \| (?:`(\w+)`)? ?\| ([12]) \| (.+) \| (.+) \|")
CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and not issubclass(kind, Warning)
}


def listed() -> dict[str, tuple[str | None, int, str, str]]:
    """name -> (also a, exit code, when, remedy), as the page has it."""
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    assert len({row[0] for row in rows}) == len(rows), "a class is listed twice"
    return {name: (also or None, int(code), when, remedy) for name, also, code, when, remedy in rows}


def test_the_page_lists_every_class_and_no_other() -> None:
    assert set(listed()) == set(CLASSES) - {"TensorwrightError"}
    assert all(issubclass(kind, TensorwrightError) and kind.__doc__ for kind in CLASSES.values())


TOLD = {
    "InvalidRequestError", "PromptTooLongError", "UnknownModelError", "UnknownResponseError", "UnknownPrefixError",
    "QueueFullError",
    "NumericalError", "TemporarilyUnavailableError",
}  # fmt: skip
"""What a server tells its clients word for word."""
OF_COMMANDS = {"runtime/commands/chat/conversation.py", "runtime/commands/eval.py", "runtime/commands/eval_tasks.py"}
"""Whoever reads their errors has named the files."""


def test_no_error_that_clients_are_told_names_a_file_of_the_server() -> None:
    faults = []
    for path in sorted((ROOT / "runtime").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TOLD:
                shown = [
                    part for text in ast.walk(node) if isinstance(text, ast.FormattedValue) for part in ast.walk(text)
                ]
                named = {getattr(part, "attr", getattr(part, "id", "")) for part in shown}
                if named & {"path", "folder", "directory", "engine_dir"} and name not in OF_COMMANDS:
                    faults.append(f"{name}:{node.lineno}")
    assert not faults


def test_the_page_says_what_each_class_is() -> None:
    for name, (also, code, _, _) in listed().items():
        parents = [base.__name__ for base in CLASSES[name].__bases__ if base is not TensorwrightError]
        assert parents == ([also] if also else []), name
        assert also is None or also in CLASSES or hasattr(builtins, also)
        assert code == CLASSES[name].exit_code, name


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"TensorwrightError"}))
def test_every_class_is_raised_somewhere(name: str) -> None:
    sources = (p for room in ROOMS for end in ("*.py", "*.cc", "*.h") for p in (ROOT / room).rglob(end))
    raised = re.compile(rf'{name}\(|"{name}"')
    assert any(raised.search(path.read_text(encoding="utf-8")) for path in sources)


def test_reason_leaves_out_number_and_path() -> None:
    with pytest.raises(OSError, match="Errno 2") as raised:
        Path("/nowhere").read_text()
    assert reason(raised.value) == "No such file or directory"
    assert reason(OSError("libx.so: cannot open")) == "libx.so: cannot open"
    assert reason(ValueError("wrong")) == "wrong"


@pytest.mark.parametrize("room", ROOMS)
def test_no_message_shows_an_error_number(room: str) -> None:
    """Whoever words an OSError says where and what to do; what the system said of it is `reason`."""
    faults = []
    for path in (ROOT / room).rglob("*.py"):
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(handler, ast.ExceptHandler) and handler.type and "OSError" in ast.unparse(handler.type):
                shown = [ast.unparse(n.value) for n in ast.walk(handler) if isinstance(n, ast.FormattedValue)]
                faults += [f"{path}: {{{handler.name}}}" for text in shown if text == handler.name]
    assert not faults, "\n".join(faults)
