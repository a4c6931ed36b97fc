"""Finds trees of element by element ops, each for one `elementwise` instruction; not a pass, part of lower_to_cpu.

An op joins the tree of its only user while the program stays within what a kernel takes. Operands of a tree are
activations of the result's shape [T, C], vectors [C] (one per tree), and numbers. What is computed of stored vectors
alone is computed in each tree that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir import Graph, Node, Shape, Value
from tensorwright.plugins.elementwise.op import BINARY, INPUTS, UNARY, encode


@dataclass
class Tree:
    """One instruction: the program, the activations x0 .. x3, and the vector w."""

    program: str = ""
    x: list[Value] = field(default_factory=list)
    w: Value | None = None
    of_vectors: set[int] = field(default_factory=set)
    """The ids of the nodes in it that compute with stored vectors alone."""


def word_of(node: Node) -> str | None:
    """Returns the program's word for `node`; None if there is none."""
    if node.op == "gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(node.attrs["approximate"])
    return node.op if node.op in BINARY or node.op in UNARY else None


def words_around(node: Node) -> tuple[list[str], list[str]] | None:
    """Returns the words before and behind those of the operands of `node`; None if no program computes it.

    The limits of a clamp come first, for the maximum and the minimum of a number and a NaN are the second of the two.
    """
    if node.op != "clamp":
        word = word_of(node)
        return None if word is None else ([], [word])
    limits = [(node.attrs["max"], "minimum"), (node.attrs["min"], "maximum")]
    given = [(repr(float(limit)), word) for limit, word in limits if limit is not None]
    return [number for number, _ in given], [word for _, word in reversed(given)]


def number_of(value: Value) -> float | None:
    """Returns the number of a constant that has one element, of any rank; None for other values."""
    if value.constant is None or np.size(value.constant) != 1:
        return None
    return float(np.float32(np.asarray(value.constant).reshape(())))


class Trees:
    """`roots`: every tree, by the id of its last node. `inside`: the ids of all other nodes of trees."""

    def __init__(self, graph: Graph, taken: set[int]):
        self.users = graph.users()
        self.outputs = graph.outputs
        self.taken = taken
        self.roots: dict[int, Tree] = {}
        self.inside: set[int] = set()
        for node in reversed(graph.nodes):
            if self.may_be_part(node) and id(node) not in self.inside:
                self.grow(node)

    def may_be_part(self, node: Node) -> bool:
        return words_around(node) is not None and id(node) not in self.taken and node.output.rank == 2

    def grow(self, root: Node) -> None:
        """Adds one producer after the other, nearest first, while a kernel can run the program."""
        members = [root]
        tree = self.write(root, members)
        if tree is None:
            return
        waiting = list(root.inputs)
        while waiting:
            value = waiting.pop(0)
            if value is None or value.node is None or not self.may_join(value, members):
                continue
            larger = self.write(root, [*members, value.node])
            if larger is not None:
                tree, members = larger, [*members, value.node]
                waiting.extend(value.node.inputs)
        self.roots[id(root)] = tree
        self.inside |= {id(n) for n in members[1:]} | tree.of_vectors

    def may_join(self, value: Value, members: list[Node]) -> bool:
        inside = {id(n) for n in members}
        only_here = len(self.users[value]) == 1 and id(self.users[value][0]) in inside
        once = sum(n.inputs.count(value) for n in members) == 1
        return self.may_be_part(value.producer) and only_here and once and value not in self.outputs

    def write(self, root: Node, members: list[Node]) -> Tree | None:
        """Returns the tree of these nodes; None if it has operands or a size that no kernel takes."""
        tree = Tree()
        inside = {id(n) for n in members}
        words = self.words(root, inside, tree, root.output.shape)
        if words is None or not tree.x or len(tree.x) > INPUTS:
            return None
        tree.program = " ".join(words)
        try:
            encode(tree.program)
        except GraphError:
            return None
        return tree

    def words(self, node: Node, inside: set[int], tree: Tree, shape: Shape) -> list[str] | None:
        words: list[str] = []
        for value in map(node.operand, range(len(node.inputs))):
            if value.node is not None and (id(value.node) in inside or is_of_vectors(value.node)):
                part = self.words(value.node, inside, tree, shape)
                tree.of_vectors |= {id(value.node)} if value.rank == 1 else set()
            else:
                part = operand(value, shape, tree)
            if part is None:
                return None
            words += part
        around = words_around(node)
        return None if around is None else [*around[0], *words, *around[1]]


def is_of_vectors(node: Node) -> bool:
    """Returns whether a node computes a vector of stored vectors alone, by an operation that programs have."""
    stored = all(value is not None and value.is_stored for value in node.inputs)
    return bool(node.inputs) and stored and node.output.rank == 1 and words_around(node) is not None


def operand(value: Value, shape: Shape, tree: Tree) -> list[str] | None:
    """Returns the word for a leaf, and adds the leaf to the tree; None if a kernel cannot read it."""
    number = number_of(value)
    if number is not None:
        return [repr(number)] if np.isfinite(number) else None
    if value.is_stored:
        if value.shape != shape[1:] or tree.w not in (None, value):
            return None
        tree.w = value
        return ["w"]
    if value.shape != shape:
        return None
    if value not in tree.x:
        tree.x.append(value)
    return [f"x{tree.x.index(value)}"]
