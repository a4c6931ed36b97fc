"""Defines what an option is: its name, type, default, rule for values, and the doors at which a user can give it.

A group of options is a tuple of `Option`s, or a record: a dataclass whose fields are made with `declare`, so that the
field's name is the option's. A door is a place where users give options. A door may show an option with another flag,
default or help text than other doors do; `At` holds the differences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import MAX_INT32, is_int, real


class Door(Enum):
    """Where a user gives options. An option that has no `At` for a door cannot be given there."""

    BUILD = "build-engine"  # and build()
    REBUILD = "tensorwright rebuild"
    LLM = "LLM"
    RUN = "tensorwright run"
    SERVE = "tensorwright serve"
    ROUTE = "tensorwright route"
    BENCH = "tensorwright bench latency and throughput"
    BENCH_SERVE = "tensorwright bench serve"
    EVAL = "tensorwright eval"
    ESTIMATE = "tensorwright estimate"
    SIMULATE = "tensorwright simulate"
    TRITON_REPO = "tensorwright triton-repo"
    TRITON = "config.pbtxt"


FIRST_USE_DOORS = (Door.RUN, Door.SERVE, Door.EVAL, Door.BENCH)
"""The commands that build an engine from a model on its first use."""


class Size:
    """The type of an option whose value is a number of bytes, or a text such as "512MiB"."""


class Duration:
    """The type of an option whose value is a number of seconds, or a text such as "50ms"."""


class TextFile:
    """The type of an option whose value is a text. A command takes the name of the file that holds the text."""


class TwoNumbers:
    """The type of an option whose value is two whole numbers."""


class AsDeclared:
    """The type of a default that a door does not change."""


@dataclass(frozen=True)
class Rule:
    """A rule for the values of an option. must: the rule in words, for the error message. holds: the test."""

    must: str
    holds: Callable[[Any], bool]


def one_of(choices: tuple[str, ...]) -> Rule:
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


def some_of(choices: tuple[str, ...]) -> Rule:
    return Rule(f"of {', '.join(choices)}", lambda values: all(value in choices for value in values))


def whole_number(must: str, low: int = 1, high: float = MAX_INT32) -> Rule:
    """Returns the rule for a whole number from `low` to `high`. numpy's integers are whole numbers; True is not."""
    return Rule(must, lambda value: is_int(value) and low <= value <= high)


def path_rule(must: str) -> Rule:
    """Returns the rule for a path. must: "the path of ..."."""
    return Rule(must, lambda value: isinstance(value, str) and bool(value.strip()) and "\0" not in value)


def is_positive(value: Any) -> bool:
    """Whether the value is a finite number above 0."""
    return 0 < real(value) < math.inf


SECONDS = Rule("a positive number of seconds", is_positive)


@dataclass(frozen=True)
class At:
    """The differences between an option's declaration and the way in which one door shows the option.

    help: "" means the declaration's own help.
    flag: "--name" by default; "--yes/--no" for a switch with two names.
    choices: () means that the door takes any text, and leaves the check and `parse` to the record.
    minimum: the smallest number that the door takes.
    """

    help: str = ""
    flag: str = ""
    default: Any = AsDeclared
    choices: tuple[str, ...] | None = None
    minimum: int | None = None
    metavar: str | None = None


@dataclass(frozen=True)
class Option:
    """One option.

    kind: int, float, str, bool, Size, Duration, TextFile or TwoNumbers; for a repeated option this is the type of each
    value.
    default: None also means that the option may be absent.
    help: what the option is, in one short sentence or noun phrase, then the default if the default is no value of its
    own.
    parse: turns a user's spelling into the value; it raises ValueError for a text that it cannot read. With choices it
    gets each text before the comparison. Without choices the option must be repeated, and it gets the tuple of all
    texts.
    targets: the targets that have the option; () means that all have it.
    section: the heading of help texts under which the option stands; "" means that of the option before it in its
    record. What `options_in` returns has all sections filled in.
    lacks: for a target that takes only the default, the reason.
    lacks_value: for a target and a value that it does not take, the reason.
    """

    name: str
    kind: type
    default: Any
    at: Mapping[Door, At]
    choices: tuple[str, ...] = ()
    rule: Rule | None = None
    help: str = ""
    repeated: bool = False
    parse: Callable[[Any], Any] | None = None
    targets: tuple[str, ...] = ()
    section: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    lacks_value: Mapping[tuple[str, Any], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parse is not None and not (self.choices or self.repeated):
            raise TypeError(f"option {self.name!r}: parse needs choices or a repeated option")

    def shown(self, door: Door) -> At:
        """Returns how the door shows the option: its At, filled in with what the declaration says of all doors."""
        at = self.at[door]
        return replace(
            at,
            help=at.help or self.help,
            flag=at.flag or flag_of(self.name),
            default=self.default if at.default is AsDeclared else at.default,
            choices=self.choices if at.choices is None else at.choices,
        )

    def check(self, value: Any, prefix: str = "", came: str = "got", door: Door | None = None) -> None:
        """Raises InvalidOptionError unless the value follows the rule.

        prefix, came: words of the message. door: the message calls the option by its flag at this door.
        """
        choose = some_of if self.repeated else one_of
        rule = self.rule or (choose(self.choices) if self.choices else None)
        if rule is None or (value is None and self.default is None):
            return
        if not rule.holds(value):
            name = self.name if door is None else self.shown(door).flag.partition("/")[0]
            raise InvalidOptionError(f"{prefix}{name} must be {rule.must}, {came} {value!r}")

    def check_target(self, value: Any, target: str) -> None:
        """Raises InvalidOptionError for a value that engines of the target cannot have."""
        if value in (None, (), self.default):
            return
        if self.targets and target not in self.targets:
            raise InvalidOptionError(
                f"{self.name} is an option of target {' and '.join(self.targets)}; leave it out for {target}"
            )
        if target in self.lacks:
            raise InvalidOptionError(
                f"{self.name} must be {self.default} on target {target}, not {value}: {self.lacks[target]}"
            )
        if (target, value) in self.lacks_value:
            raise InvalidOptionError(
                f"{self.name} must not be {value} on target {target}: {self.lacks_value[target, value]}"
            )


def flag_of(name: str) -> str:
    """Returns the flag of a command's option: "max_tokens" becomes "--max-tokens"."""
    return "--" + name.replace("_", "-")


Group = type | tuple[Option, ...]
"""A record class, or its options."""


def declare(default: Any, kind: type | None = None, *, at: Mapping[Door, At], **more: Any) -> Any:
    """Returns a dataclass field that declares an option. kind: None means the type of the default. more: further fields
    of Option."""
    option = Option("", kind or type(default), default, at, **more)
    return field(default=default, metadata={Option: option})


def same_as(record: type, name: str) -> Any:
    """Returns a dataclass field for an option that another record declares, in the same section of help texts."""
    option = find(record, name)
    return field(default=option.default, metadata={Option: option})


def options_in(*groups: Group) -> tuple[Option, ...]:
    """Returns the options of all groups, in the order in which they are declared, each with its section."""
    found: list[Option] = []
    for group in groups:
        section = ""
        for option in group if isinstance(group, tuple) else _options_of(group):
            section = option.section or section
            found.append(replace(option, section=section))
    return tuple(found)


def _options_of(record: type) -> Iterator[Option]:
    for part in dataclasses.fields(record):
        if Option in part.metadata:
            yield replace(part.metadata[Option], name=part.name)


def options_at(door: Door, *groups: Group) -> tuple[Option, ...]:
    """Returns the groups' options that a user can give at the door."""
    return tuple(option for option in options_in(*groups) if door in option.at)


def find(group: Group, name: str) -> Option:
    (option,) = (option for option in options_in(group) if option.name == name)
    return option


def check_values(values: Any, *groups: Group, prefix: str = "", came: str = "got", door: Door | None = None) -> None:
    """Raises InvalidOptionError for the first attribute of `values` that its option's rule refuses."""
    for option in options_in(*groups):
        if hasattr(values, option.name):
            option.check(getattr(values, option.name), prefix, came, door)
