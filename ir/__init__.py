"""The intermediate representation: the graph, its vocabulary, its text form, its verifier and its interpreter.

Only the graph itself is imported here; the rest is imported by name from its module.
"""

from tensorwright.ir.graph import DTYPES, Dim, Graph, Node, Shape, Value

__all__ = ["DTYPES", "Dim", "Graph", "Node", "Shape", "Value"]
