"""widen_activations:  round16(f(x))  ->  f(x), all in float32

A model traced in bfloat16 rounds after every operation. Builds trace in float32, where only a model that narrows values
itself rounds. The engine computes activations in float32 and rounds only matmul inputs and the KV cache (the numeric
contract). So this pass drops rounding points of the trace, once, and every later pass sees one spelling. The result is
more exact than the trace, and so not equal to it: --verify reports the difference.
Weights are widened exactly; lowering stores weights of matmuls in the engine's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir import Graph, Node

NARROW = ("bfloat16", "float16")


def widen_activations(graph: Graph) -> int:
    """Returns how many values became float32; 0 for a graph traced in float32."""
    count = 0
    for node in graph.nodes:
        for value in node.outputs:
            if value.dtype in NARROW:
                value.dtype = "float32"
                count += 1
        if node.attrs.get("dtype") in NARROW:
            node.attrs["dtype"] = "float32"
        if node.op == "constant":
            node.attrs["value"] = _widen(node)
    return count


def _widen(node: Node) -> Any:
    """Widens float16 arrays to float32. numpy has no bfloat16, so such constants are float32 already."""
    data = node.attrs["value"]
    return data.astype(np.float32) if isinstance(data, np.ndarray) and data.dtype == np.float16 else data
