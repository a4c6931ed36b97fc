"""Reads options of `tensorwright serve` that may differ from engine to engine: NAME for all, ENGINE=NAME for one."""

from __future__ import annotations

from collections.abc import Collection

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import Door, Option


def by_engine(text: str, engines: Collection[str], option: Option) -> dict[str, str]:
    """Returns the option's value for each engine: that of its own name, else the one for all, else the default.

    text: values and pairs ENGINE=VALUE, separated by commas. engines: the names of the engines that are served. Raises
    InvalidOptionError for an unknown engine or value, and for two values of the same.
    """
    flag = option.shown(Door.SERVE).flag
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if equals and name not in engines:
            raise InvalidOptionError(f"{flag} must name an engine that is served ({', '.join(engines)}), got {name!r}")
        if name in given:
            raise InvalidOptionError(f"{flag} must have one value for {name or 'all engines'}, got {text!r}")
        option.check(value, door=Door.SERVE)
        given[name] = value
    return {engine: given.get(engine, given.get("", option.default)) for engine in engines}
