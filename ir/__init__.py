"""Exports the graph, the core of the intermediate representation. Import everything else by name from its module."""

from tensorwright.ir.graph import DTYPES, Dim, Graph, Node, Shape, Value

__all__ = ["DTYPES", "Dim", "Graph", "Node", "Shape", "Value"]
