"""Writes error messages of passes: the node, its module, and the pattern that nearly matched it; not a pass."""

from __future__ import annotations

import sys

from tensorwright.ir import Graph, Node
from tensorwright.ir.text import underline
from tensorwright.passes.recognition import RECOGNITION
from tensorwright.passes.rewriting.matcher import find_miss

_MODULES = {step.name: sys.modules[step.run.__module__] for phase in RECOGNITION for step in phase.steps}
RULES = {
    name: (module.PATTERN, module.check)
    for name, module in _MODULES.items()
    if hasattr(module, "PATTERN") and hasattr(module, "check")
}
"""The pattern and the check of every pass that has them and runs before a message of this file can be needed."""


def located(graph: Graph, node: Node, message: str) -> str:
    """Returns `message`, the closest partial match that reached `node`, and `node` underlined among its neighbours."""
    misses = [(find_miss(graph, *rule, through=node), name) for name, rule in RULES.items()]
    reached = [(miss.depth, name, miss) for miss, name in misses if miss is not None]
    lines = [message]
    if reached:
        _, name, miss = max(reached, key=lambda item: item[0])
        lines.append(f"closest partial match: {name}: {miss}")
    return "\n".join([*lines, underline(graph, node)])
