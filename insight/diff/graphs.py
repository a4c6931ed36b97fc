"""Compares two graphs module by module: which operations are in one and not in the other, and which differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from tensorwright.ir.graph import SOURCES, Graph, Node
from tensorwright.runtime.tools.profile import module_role


@dataclass(frozen=True)
class ModuleChange:
    """How a module differs. gone, new: its operations in the first graph alone, and in the second, in their order.
    layers: how many modules of this role differ in the same way; module is the first of them."""

    module: str
    gone: tuple[str, ...]
    new: tuple[str, ...]
    layers: int = 1


def compare_graphs(a: Graph, b: Graph) -> list[ModuleChange]:
    """Returns the modules that differ, in the order of the graphs. Equal changes of equal layers are one entry."""
    first, second = _by_module(a), _by_module(b)
    found: list[ModuleChange] = []
    places: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}
    for module in dict.fromkeys([*first, *second]):
        gone, new = _changes(first.get(module, []), second.get(module, []))
        if not gone and not new:
            continue
        key = (module_role(module), gone, new)
        if key in places:
            at = places[key]
            found[at] = ModuleChange(found[at].module, gone, new, found[at].layers + 1)
        else:
            places[key] = len(found)
            found.append(ModuleChange(module, gone, new))
    return found


def count_nodes(graph: Graph) -> int:
    """Returns how many operations a graph has."""
    return sum(node.op not in SOURCES for node in graph.nodes)


def _by_module(graph: Graph) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op not in SOURCES:
            modules.setdefault(node.scope or "", []).append(describe_node(node))
    return modules


def _changes(a: list[str], b: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    gone: list[str] = []
    new: list[str] = []
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind != "equal":
            gone += a[a0:a1]
            new += b[b0:b1]
    return tuple(gone), tuple(new)


def describe_node(node: Node) -> str:
    """Returns an operation in one line, with what makes it differ from another: results, weights and attributes."""
    results = ", ".join(f"{value.dtype}{list(value.shape)}".replace("'", "") for value in node.outputs)
    operands = ", ".join(_operands(node))
    attrs = ", ".join(f"{name}={node.attrs[name]}" for name in sorted(node.attrs) if name not in ("layer", "layers"))
    return f"{node.op}({operands})" + (f" {{{attrs}}}" if attrs else "") + f" -> {results}"


def _operands(node: Node) -> Iterator[str]:
    """Yields the stored operands of a node by shape and type: those that another node computes have no names here."""
    for value in node.inputs:
        if value is None:
            yield "none"
        elif value.node is not None and value.node.op in ("weight", "constant"):
            layout = value.node.attrs.get("layout")
            yield f"{value.node.op} {value.dtype}{list(value.shape)}" + (f" {layout}" if layout else "")
        else:
            yield "x"
