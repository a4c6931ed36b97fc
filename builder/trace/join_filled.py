"""Replaces, in an exported graph, a tensor that is made empty and filled part by part with the parts' concatenation.

    x = new_empty(...);  x[..., :a].copy_(p);  x[..., a:].copy_(q)    ->    x = cat([p, q], -1)

Latent attention makes its keys so, in every family of transformers.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

_ATEN = torch.ops.aten


def join_filled(graph: Graph) -> None:
    """Rewrites every empty tensor that is filled whole before it is read. The walk refuses what is left, by name."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is _ATEN.new_empty.default:
            _join(graph, node)


def _join(graph: Graph, empty: Node) -> None:
    slices = [user for user in empty.users if user.target is _ATEN.slice.Tensor]
    copies = [copy for part in slices if (copy := _only_copy_into(part)) is not None]
    readers = [user for user in empty.users if user not in slices]
    dims = {part.args[1] for part in slices}
    last = copies[-1] if copies else None
    if last is None or len(copies) != len(slices) or len(dims) != 1 or any(user < last for user in readers):
        return
    dim = next(iter(dims))
    size = empty.meta["val"].shape[dim]
    if not isinstance(size, int):
        return
    ends = [0, *(min(part.args[3], size) for part in slices)]  # type: ignore[type-var]
    starts = [part.args[2] for part in slices]
    if starts != ends[:-1] or ends[-1] != size or any(len(part.args) > 4 for part in slices):
        return
    sources = [copy.args[1] for copy in copies]
    if any(not _same_type(source, part) for source, part in zip(sources, slices, strict=True)):
        return
    with graph.inserting_after(last):
        joined = graph.call_function(_ATEN.cat.default, (sources, dim))
    joined.meta = dict(empty.meta)
    for reader in readers:
        reader.replace_input_with(empty, joined)
    for node in (*copies, *slices, empty):
        graph.erase_node(node)


def _only_copy_into(part: Node) -> Node | None:
    """Returns the node that copies into a slice, if that is all that uses the slice, and nobody reads its result."""
    users = list(part.users)
    if len(users) != 1 or users[0].target is not _ATEN.copy_.default or users[0].args[0] is not part or users[0].users:
        return None
    return users[0]


def _same_type(source: object, part: Node) -> bool:
    """Returns whether a copy of `source` into `part` neither repeats nor converts."""
    if not isinstance(source, Node):
        return False
    one, other = source.meta["val"], part.meta["val"]
    return bool(one.dtype == other.dtype and one.shape == other.shape)
