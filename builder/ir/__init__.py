"""The graph IR: what passes and plugins may import of the builder."""

from tensorwright.builder.ir.graph import DTYPES, Dim, Graph, Node, Shape, Value

__all__ = ["DTYPES", "Dim", "Graph", "Node", "Shape", "Value"]
