"""Finds the adapter of a command whose requests all have the same one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import InvalidOptionError


def adapter_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameter that names the adapter of --adapter, or none. options: the keywords of LLM. Raises
    InvalidOptionError if several are given."""
    names = list(options["adapters"])
    if len(names) > 1:
        raise InvalidOptionError(f"--adapter must be given once, for all prompts have it, got {len(names)}")
    return {"adapter": names[0]} if names else {}
