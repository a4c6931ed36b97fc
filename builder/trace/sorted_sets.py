"""Gives the sets that a modelling file loops over an order, while its model is exported.

transformers makes the rotary tables of set(config.layer_types), one after the other; some models keep that set. The
order of a set of strings differs from process to process, and so would the graph and the engine's files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel


class SortedSet(set[Any]):
    """A set whose elements come in the order of their text."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=str))


@contextmanager
def sorted_sets(model: PreTrainedModel) -> Iterator[None]:
    """Within the context `set` is SortedSet in the modules that define the parts of `model`. The modules are those of
    the whole process: the caller holds the lock of trace_recurrences.py. The sets that the parts keep become such sets
    for good."""
    for part in model.modules():
        kept = {name: value for name, value in vars(part).items() if type(value) is set and not name.startswith("_")}
        for name, value in kept.items():
            setattr(part, name, SortedSet(value))
    modules = {type(part).__module__ for part in model.modules()}
    namespaces = [vars(sys.modules[name]) for name in modules if name.startswith("transformers.models.")]
    changed = [names for names in namespaces if "set" not in names]
    for names in changed:
        names["set"] = SortedSet
    try:
        yield
    finally:
        for names in changed:
            del names["set"]
