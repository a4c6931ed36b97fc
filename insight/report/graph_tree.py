"""Writes a graph as a tree of modules, each of which can be folded: lists of operations inside `details` elements."""

from __future__ import annotations

from html import escape

from tensorwright.ir.graph import SOURCES, Graph, Node, Value

Tree = dict[str, "Tree | list[Node]"]
OWN = ""
"""The key of a module's own operations."""


def tree_html(graph: Graph) -> str:
    """Returns the graph's operations by module, in their order. The modules are folded but for the outermost."""
    tree: Tree = {}
    for node in graph.nodes:
        if node.op in SOURCES:
            continue
        place = tree
        for part in (node.scope or "").split("."):
            if part:
                place = place.setdefault(part, {})  # type: ignore[assignment]
        place.setdefault(OWN, []).append(node)  # type: ignore[union-attr]
    return _level(tree, 0)


def _level(tree: Tree, depth: int) -> str:
    parts = []
    for name, inner in tree.items():
        if name == OWN:
            parts.append("<ul>" + "".join(f"<li>{_operation(node)}</li>" for node in inner) + "</ul>")  # type: ignore[arg-type]
        else:
            assert isinstance(inner, dict)
            opened = " open" if depth == 0 else ""
            count = _count(inner)
            parts.append(
                f"<details{opened}><summary>{escape(name)} "
                f"<small>{count} operation{'s' * (count != 1)}</small></summary>"
                f"{_level(inner, depth + 1)}</details>"
            )
    return "".join(parts)


def _count(tree: Tree) -> int:
    return sum(len(inner) if isinstance(inner, list) else _count(inner) for inner in tree.values())


def _operation(node: Node) -> str:
    operands = ", ".join(_operand(value) for value in node.inputs)
    attrs = ", ".join(f"{name}={_short(node.attrs[name])}" for name in node.attrs)
    results = ", ".join(f"<b>%{escape(value.name)}</b>: {escape(_type(value))}" for value in node.outputs)
    more = f" <i>{escape(attrs)}</i>" if attrs else ""
    return f"{results} = <code>{escape(node.op)}</code>({operands}){more}"


def _operand(value: Value | None) -> str:
    if value is None:
        return "none"
    if value.node is not None and value.node.op == "weight":
        return (
            f'<span title="{escape(_short(value.node.attrs["expr"]), quote=True)}">{escape(_type(value))} weight</span>'
        )
    return f"%{escape(value.name)}"


def _type(value: Value) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _short(value: object, most: int = 160) -> str:
    text = str(value)
    return text if len(text) <= most else text[:most] + "..."
