"""eliminate_dead_nodes:  removes nodes that no output depends on, except graph inputs"""

from __future__ import annotations

from tensorwright.ir import Graph


def eliminate_dead_nodes(graph: Graph) -> int:
    return graph.drop_dead()
