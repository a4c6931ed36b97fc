"""The pages tell the truth: commands, options, links and files exist, and for users names of the API and errors too."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import tensorwright
from support.doc_words import ROOMS, ROOT, Commands, Page, anchors
from tensorwright import errors
from tensorwright.builder.cli import build_engine
from tensorwright.runtime.commands.cli import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""What users read."""
ROOM_PAGES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("README.md"))
ALL_PAGES = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *ROOM_PAGES]
"""With what those read who work on the code."""
COMMANDS = Commands(cli, build_engine)
CALL = re.compile(r"\b(LLM|SamplingParams|GuidedDecodingParams|build)\((?:[^()]|\([^()]*\))*")
KEYWORD = re.compile(r"\b(\w+)=(?!=)")
MEMBER = re.compile(r"\b(LLM|SamplingParams|RequestOutput|CompletionOutput)\.(\w+)")
ERROR = re.compile(r"\b[A-Z]\w+Error\b")
BUILT_IN = {"ValueError", "ImportError", "MemoryError", "TimeoutError"}
VARIABLE = re.compile(r"\b(?:TENSORWRIGHT|TRITON)_[A-Z_]+\b")

users_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
every_page = pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_there_are_pages_with_commands_and_links() -> None:
    pages = [page(path) for path in PAGES]
    assert {"README.md", "errors.md", "quantization.md"} <= {path.name for path in PAGES}
    assert sum(len(COMMANDS.faults(f"{line} --nowhere")) > 0 for each in pages for line in each.shell) > 30
    assert sum(len(each.links()) for each in pages) > 5


@every_page
def test_commands_and_options_exist(path: Path) -> None:
    faults = [f"{fault} in: {line}" for line in page(path).shell for fault in COMMANDS.faults(line)]
    assert not faults, "\n".join(faults)


@every_page
def test_links_lead_somewhere(path: Path) -> None:
    for link in page(path).links():
        name, _, anchor = link.partition("#")
        target = path if not name else (path.parent / name).resolve()
        assert target.exists(), f"{path.name} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path.name} links to {link}"


@every_page
def test_files_exist(path: Path) -> None:
    missing = [name for name in page(path).files() if not (ROOT / name).exists()]
    assert not missing, f"{path.name} names {', '.join(missing)}"


@users_page
def test_names_of_the_api_exist(path: Path) -> None:
    faults = []
    for line in page(path).code:
        for call in CALL.finditer(line):
            faults += [f"{call[1]}({key}=)" for key in KEYWORD.findall(call[0]) if key not in keywords(call[0])]
        faults += [f"{owner}.{name}" for owner, name in MEMBER.findall(line) if name not in members(owner)]
    assert not faults, f"{path.name} names {', '.join(faults)}"


@users_page
def test_errors_and_variables_exist(path: Path) -> None:
    code = page(path).code
    named = {name for line in code for name in ERROR.findall(line)} - BUILT_IN - {"UsageError"}
    assert not [name for name in named if not hasattr(errors, name)]
    variables = {name for line in code for name in VARIABLE.findall(line) if name.startswith("TENSORWRIGHT")}
    assert not [name for name in variables if not in_sources(name)]


def keywords(text: str) -> set[str]:
    """Keywords of all the calls of ours in `text`, which may be nested."""
    names = (call for call in ("LLM", "SamplingParams", "GuidedDecodingParams", "build") if f"{call}(" in text)
    return {key for name in names for key in inspect.signature(getattr(tensorwright, name)).parameters}


def members(owner: str) -> set[str]:
    kind = getattr(tensorwright, owner)
    return {*dir(kind), *(field.name for field in fields(kind))} if owner != "LLM" else {*dir(kind), "engine"}


def in_sources(name: str) -> bool:
    rooms = ("runtime", "plugins", "tests", "benchmarks", "models")
    files = (path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".cc", ".h"))
    return any(name in path.read_text(encoding="utf-8") for path in files if path != Path(__file__))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("tensorwright run out/pico --prompt x --max-tokens 3", ""),
        ("tensorwright run out/pico --input-len 3", "tensorwright run has no --input-len"),
        ("tensorwright runs out/pico", "tensorwright runs: no such command"),
        ("tensorwright bench speed out/pico", "tensorwright bench speed: no such command"),
        ("tensorwright --debug run out/pico", ""),
        ("tensorwright build models/pico out --quantize int4", ""),
        ("build-engine models/pico out --quantise int4", "build-engine has no --quantise"),
        ("--kv-cache-dtype int8", ""),
        ("--kv-cache-type int8", "--kv-cache-type: nowhere"),
        ("pip install --index-url x", ""),
        ("numactl --membind=0 tensorwright run out --membind=0", "tensorwright run has no --membind"),
        ("python benchmarks/shapes.py out/x && build-engine out/x --fast", "build-engine has no --fast"),
        ("python benchmarks/peers/run.py --shape x --shapes y", "benchmarks/peers/run.py has no --shapes"),
        ("python benchmarks/gone.py --shape x", "benchmarks/gone.py has no --shape"),
    ],
)
def test_the_check_of_commands_sees_what_is_wrong(line: str, fault: str) -> None:
    assert COMMANDS.faults(line) == ([fault] if fault else [])


def test_the_check_of_pages_sees_what_is_wrong() -> None:
    text = (
        "# A B-c, `d`\n[x](y.md#z) `runtime/gone.py` `LLM(x, threadz=3)`\n\n"
        "| TensorRT-LLM | ours |\n|---|---|\n| `--theirs` | `--ours \\| x` |\n\n"
        "`build-engine\n--here`\n```python\nx --python\n```\n```\nbuild-engine \\\n  --shell\n```\n"
    )
    found = Page(text)
    assert found.links() == ["y.md#z"]
    assert found.files() == ["runtime/gone.py"]
    lines = [line for line in found.shell if "--" in line]
    assert lines == ["build-engine    --shell", "--ours \\| x", "build-engine --here"]
    assert "x --python" in found.code
    assert anchors(text) == {"a-b-c-d"}
    assert "threadz" not in keywords("LLM(x, threadz=3")
    assert "threads" in keywords("LLM(x, threadz=3")
    assert not in_sources("TENSORWRIGHT_" + "GONE")
