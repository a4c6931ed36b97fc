"""What the pages of docs/ name, and what there is: commands and their options, links, files.

Code is what stands between backticks or in a fenced block. Columns of a table whose heading names another project are
that project's words, not ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from tensorwright.builder.rebuild_cli import rebuild_engine

ROOT = Path(__file__).resolve().parent.parent.parent
OTHERS = re.compile(r"TensorRT-LLM|vLLM|OpenAI")
"""A heading with one of these: the column holds their names."""
FOREIGN = {
    "mpirun",
    "pip",
    "make",
    "cmake",
    "gcc",
    "python3",
    "curl",
    "tritonserver",
    "numactl",
    "docker",
    "podman",
    "skopeo",
    "kubectl",
    "serve",
    "taskset",
    "openssl",
    "kill",
    "source",
}
FOREIGN |= {"trtllm-build", "trtllm-serve", "trtllm-bench", "convert_checkpoint.py", "quantize.py", "perf_analyzer"}
"""Programs of others: what they are given is not looked at, up to the next command of ours."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
WRAPPED = re.compile(r"(?<=[^\n])\n(?=[^\n|#*])")
"""Between two lines of a paragraph; code may go over it."""
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
LINK = re.compile(r"\]\(([^)\s]+)\)")
ROOMS = (
    "src", "engine_format", "ir", "models", "builder", "passes", "plugins", "runtime", "insight", "tests", "benchmarks",
    "docs",
)  # fmt: skip
FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./-]*\w(?![\w./-]*[*<{{])")
"""A file or folder; not a name with a placeholder."""


@dataclass
class Page:
    """One page: its code, ours alone, and its links."""

    text: str
    shell: list[str] = field(default_factory=list)
    """Lines of fenced blocks that are no Python, and inline code."""
    code: list[str] = field(default_factory=list)
    """All code."""

    def __post_init__(self) -> None:
        for language, block in FENCE.findall(self.text):
            lines = block.replace("\\\n", " ").splitlines()
            self.code += lines
            self.shell += lines if language in ("", "sh", "bash") else []
        words = INLINE.findall("\n".join(without_others(WRAPPED.sub(" ", FENCE.sub("\n", self.text)))))
        self.code += words
        self.shell += words

    def links(self) -> list[str]:
        return [link for link in LINK.findall(FENCE.sub("", self.text)) if not re.match(r"[a-z]+:", link)]

    def files(self) -> list[str]:
        return [name for line in self.code for name in FILE.findall(line)]


def without_others(text: str) -> Iterator[str]:
    """The lines of a page; in tables without the columns of OTHERS."""
    foreign: set[int] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            foreign = None
            yield line
            continue
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        if foreign is None:
            foreign = {i for i, cell in enumerate(cells) if OTHERS.search(cell)}
        yield " | ".join(cell for i, cell in enumerate(cells) if i not in foreign)


def options(command: click.Command) -> set[str]:
    names = {"--help"}
    for parameter in command.params:
        names |= {name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")}
    return names


class Commands:
    """All commands, by their words; `build` is what build-engine is."""

    def __init__(self, cli: click.Group, build_engine: click.Command):
        self.cli = cli
        self.build = build_engine
        self.flags: dict[str, set[str]] = {"build-engine": options(build_engine)}
        self._walk("tensorwright", cli)
        self.flags["tensorwright build"] = options(build_engine)
        self.flags["tensorwright rebuild"] = options(rebuild_engine)

    def _walk(self, name: str, command: click.Command) -> None:
        self.flags[name] = options(command)
        if isinstance(command, click.Group):
            for word, inner in command.commands.items():
                self._walk(f"{name} {word}", inner)

    def faults(self, line: str) -> list[str]:
        """What `line` names that there is not."""
        found: list[str] = []
        words = line.split()
        owner: str | None = None  # a command of ours, a script, or "" for a program of others
        for i, word in enumerate(words):
            starts = i == 0 or words[i - 1] in ("&&", "|", ";", "||") or owner == ""
            if starts and word == "tensorwright":
                owner = self._command(words[i + 1 :], found)
            elif (starts and word == "build-engine") or (word.endswith(".py") and words[i - 1 : i] == ["python"]):
                owner = word
            elif words[max(i - 2, 0) : i] == ["python", "-m"] and word.startswith("tensorwright."):
                owner = f"{word.removeprefix('tensorwright.').replace('.', '/')}.py"
            elif i == 0 and Path(word).name in FOREIGN:
                owner = ""
            found += [self._unknown(flag, owner) for flag in FLAG.findall(word) if self._unknown(flag, owner)]
        return found

    def _command(self, words: list[str], found: list[str]) -> str:
        name, command = "tensorwright", self.cli
        for word in words:
            if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            if word not in command.commands:
                found.append(f"{name} {word}: no such command")
                break
            name, command = f"{name} {word}", command.commands[word]  # type: ignore[assignment]
        return name

    def _unknown(self, flag: str, owner: str | None) -> str:
        if owner == "":
            return ""
        if owner is None:
            return "" if any(flag in flags for flags in self.flags.values()) or in_scripts(flag) else f"{flag}: nowhere"
        if owner.endswith(".py"):
            path = ROOT / owner
            there = path.is_file() and f'"{flag}"' in path.read_text(encoding="utf-8")
            return "" if there else f"{owner} has no {flag}"
        return "" if flag in self.flags[owner] | self.flags[owner.split()[0]] else f"{owner} has no {flag}"


def in_scripts(flag: str) -> bool:
    return f'"{flag}"' in benchmarks()


@cache
def benchmarks() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
