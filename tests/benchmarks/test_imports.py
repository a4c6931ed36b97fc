"""What scripts outside the package import of it is there: nothing else notices when a name moves."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from support.places import ROOT

SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "docs").glob("*.py")])


def imported(path: Path) -> set[tuple[str, str]]:
    """(module, name) of every import of the package's, those inside functions too; "" if the module itself is named."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "tensorwright"}


def exists(module: str, name: str) -> bool:
    try:
        there = importlib.import_module(module)
        if name and not hasattr(there, name):
            importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "tensorwright":
            raise
        return False
    return True


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(path: Path) -> None:
    assert [f"{module}: {name}" for module, name in sorted(imported(path)) if not exists(module, name)] == []


def test_the_check_sees_what_is_not_there() -> None:
    assert sum(len(imported(path)) for path in SCRIPTS) > 50
    assert exists("tensorwright.builder.target.tensorrt", "BLOCK_SIZE")
    assert not exists("tensorwright.builder.build", "BLOCK_SIZE")
    assert not exists("tensorwright.builder.gone", "")
