"""eliminate_dead_nodes:  drop what no output depends on, graph inputs aside"""

from __future__ import annotations

from tensorwright.ir import Graph


def eliminate_dead_nodes(graph: Graph) -> int:
    return graph.drop_dead()
