"""Reads the PTX of one kernel: its parameters, registers, variables and instructions, with line numbers.

Source: PTX ISA 8.8, "Syntax" and "State Spaces, Types, and Variables". What it does not know it refuses by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from support.ptx.fault import PtxFault
from support.ptx.kinds import type_of

MODULE = (r"\.version [\d.]+", r"\.target sm_\w+", r"\.address_size 64")
"""The directives of a module that say nothing about what its kernel computes."""

HINT = r'\.pragma "(nounroll|used_bytes_mask 0x[0-9a-f]+)"'
"""Directives that only tell ptxas which code may be the better one."""


@dataclass(frozen=True)
class Instruction:
    """guard: the predicate that must be true, or false where `negated`; "" stands for none."""

    line: int
    text: str
    guard: str
    negated: bool
    opcode: str
    operands: tuple[str, ...]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The parts of the opcode behind its name."""
        return tuple(self.opcode.split(".")[1:])


@dataclass
class Program:
    """One kernel. registers: name -> bits, 1 for a predicate. variables: name -> (state space, offset)."""

    name: str = ""
    parameters: list[tuple[str, str]] = field(default_factory=list)
    threads: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    variables: dict[str, tuple[str, int]] = field(default_factory=dict)
    constant_bytes: bytes = b""
    local_bytes: int = 0


def split(text: str) -> list[str]:
    """Splits operands at the commas that no bracket encloses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def members(operand: str) -> list[str]:
    """Returns the parts of a vector `{a, b}`, or the operand alone."""
    return split(operand[1:-1]) if operand.startswith("{") else [operand]


def parse(ptx: str) -> Program:
    """Reads a module with one kernel. Raises PtxFault for what is not known, with its line."""
    text = re.sub(r"//[^\n]*", "", ptx)
    entry = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)([^{]*)\{", text)
    if entry is None:
        raise PtxFault("the PTX has no kernel of the form '.visible .entry name(...) {'")
    program = Program(entry[1])
    for parameter in entry[2].split(","):
        words = parameter.split()
        program.parameters.append((words[1].lstrip("."), words[-1]))
    threads = re.fullmatch(r"\s*\.reqntid (\d+)\s*", entry[3])
    if threads is None:
        raise PtxFault(f"the kernel must say '.reqntid threads' and nothing else, it says {entry[3].strip()!r}")
    program.threads = int(threads[1])
    for statement in re.sub(r"((?:\.version|\.target|\.address_size)[^\n]*)", r"\1;", text[: entry.start()]).split(";"):
        _declare_module(program, " ".join(statement.split()))
    _Body(program, text, entry.end()).read()
    return program


def _declare_module(program: Program, statement: str) -> None:
    if not statement or any(re.fullmatch(known, statement) for known in MODULE):
        return
    if found := re.fullmatch(r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\]", statement):
        program.variables[found[1]] = ("shared", 0)
    elif found := re.fullmatch(r"\.global \.align (\d+) \.b8 ([\w$]+)\[\d+\] = \{([\d, ]+)\}", statement):
        program.constant_bytes += bytes(-len(program.constant_bytes) % 16)
        program.variables[found[2]] = ("global", len(program.constant_bytes))
        program.constant_bytes += bytes(int(value) for value in found[3].split(","))
    else:
        raise PtxFault(f"a module may not have {statement!r}")


class _Body:
    """Reads the statements of a kernel. Names that a block `{ }` declares are those of that block alone."""

    def __init__(self, program: Program, text: str, start: int):
        self.program, self.text, self.at = program, text, start
        self.line = text.count("\n", 0, start) + 1
        self.scopes: list[dict[str, str]] = [{}]
        self.made = 0

    def read(self) -> None:
        while self.scopes:
            self._skip(re.compile(r"\s*"))
            letter = self.text[self.at : self.at + 1]
            if letter == "{":
                self.scopes.append({})
                self._advance(1)
            elif letter == "}":
                self.scopes.pop()
                self._advance(1)
            elif label := re.compile(r"([\w$]+):(?!:)").match(self.text, self.at):
                self.program.labels[label[1]] = len(self.program.instructions)
                self._advance(len(label[0]))
            else:
                end = self.text.find(";", self.at)
                if end < 0:
                    raise PtxFault(f"line {self.line}: the statement does not end: {self.text[self.at :][:80]!r}")
                self._statement(" ".join(self.text[self.at : end].split()), self.line)
                self._advance(end + 1 - self.at)
        if rest := self.text[self.at :].strip():
            raise PtxFault(f"line {self.line}: something follows the kernel: {rest[:80]!r}")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self._advance(len(found[0]) if found else 0)

    def _advance(self, letters: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + letters)
        self.at += letters

    def _statement(self, text: str, line: int) -> None:
        if text.startswith("."):
            self._declare(text, line)
            return
        guard, negated, rest = "", False, text
        if text.startswith("@"):
            word, rest = text.split(None, 1)
            guard, negated = self._known(word.lstrip("@!")), word.startswith("@!")
        opcode, _, operands = rest.partition(" ")
        renamed = re.sub(r"(?<![\w$.%])[%A-Za-z_$][\w$.%]*", lambda found: self._known(found[0]), operands)
        self.program.instructions.append(Instruction(line, text, guard, negated, opcode, tuple(split(renamed))))

    def _known(self, name: str) -> str:
        """The register's own name, which no other block has."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def _declare(self, text: str, line: int) -> None:
        if found := re.fullmatch(r"\.reg \.(\w+) (.+)", text):
            bits = type_of(found[1]).width
            for name in split(found[2]):
                for one in _counted(name):
                    self.made += 1
                    own = one if len(self.scopes) == 1 else f"{one}#{self.made}"
                    self.scopes[-1][one] = own
                    self.program.registers[own] = bits
        elif found := re.fullmatch(r"\.local \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]", text):
            self.program.local_bytes += -self.program.local_bytes % 16
            self.program.variables[found[2]] = ("local", self.program.local_bytes)
            self.program.local_bytes += int(found[3])
        elif not re.fullmatch(HINT, text):
            raise PtxFault(f"line {line}: a kernel may not have {text!r}")


def _counted(name: str) -> list[str]:
    """`%r<3>` -> %r0, %r1, %r2."""
    found = re.fullmatch(r"(.+)<(\d+)>", name)
    return [f"{found[1]}{index}" for index in range(int(found[2]))] if found else [name]
