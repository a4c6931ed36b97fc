"""Gives convolutions of which only the first outputs are read, one for each input, the type of what is read of them.

    y = conv1d(x, w, padding = K - 1)[..., :S]

is causal: an output sees its own input and the K - 1 before it. torch computes K - 1 outputs more, which see the end of
the sequence again. lower_aten.py makes a causal convolution of such a node, and refuses others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

_ATEN = torch.ops.aten


def narrow_convolutions(graph: Graph, type_of: Callable[[Any], Any]) -> None:
    """Narrows every convolution whose users all are slices from its first output on, as many as there are inputs.

    type_of: returns the element type and the shape of an example.
    """
    for node in graph.nodes:
        if node.op == "call_function" and node.target is _ATEN.conv1d.default:
            source = node.args[0].meta["val"]
            if all(_begins(user) and type_of(user.meta["val"]) == type_of(source) for user in node.users):
                node.meta["val"] = source


def _begins(user: Node) -> bool:
    return user.target is _ATEN.slice.Tensor and user.args[1] in (2, -1) and user.args[2] in (0, None)
