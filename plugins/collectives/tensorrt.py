"""Describes AllReduce, AllGather, Send and Receive as TensorRT plugins: what ranks do together in a step.

A plugin of this file starts no kernel of ours: it hands a CollectiveCall to the ranks of its engine. All ranks of a
stage must start the same calls in the same order, and TensorRT may exchange layers that do not depend on each other. So
each has the result of the one before as its last operand, `after`, whose numbers nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorwright.plugins.gpu.collective_call import ALL_GATHER, ALL_REDUCE, RECEIVE, SEND, CollectiveCall
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.gpu.tensorrt_op import ACTIVATION, Attrs, Operand, PluginOp

ROWS = ("rows", "columns")
AFTER = Operand("after", ACTIVATION, ("earlier_rows", "earlier_columns"), optional=True)
Tensors = Mapping[str, Tensor]


def _one(attrs: Attrs) -> int:
    return 1


def _reduce(inputs: Tensors, outputs: Tensors) -> CollectiveCall:
    return CollectiveCall(ALL_REDUCE, inputs["x"], outputs["y"])


def _gather(inputs: Tensors, outputs: Tensors) -> CollectiveCall:
    return CollectiveCall(ALL_GATHER, inputs["x"], outputs["y"])


def _send(inputs: Tensors, outputs: Tensors) -> CollectiveCall:
    return CollectiveCall(SEND, inputs["x"], None)


def _receive(inputs: Tensors, outputs: Tensors) -> CollectiveCall:
    return CollectiveCall(RECEIVE, None, outputs["y"])


ALL_REDUCE_OP = PluginOp(
    "AllReduce",
    attrs={},
    inputs=(Operand("x", ACTIVATION, ROWS), AFTER),
    outputs=(Operand("y", ACTIVATION, ROWS),),
    collective=_reduce,
)
ALL_GATHER_OP = PluginOp(
    "AllGather",
    attrs={"ranks": int},
    inputs=(Operand("x", ACTIVATION, ROWS), AFTER),
    outputs=(Operand("y", ACTIVATION, ("ranks", *ROWS)),),
    collective=_gather,
)
"""The parts of all ranks lie one behind the other in y, as NCCL leaves them; the graph joins them by columns."""
SEND_OP = PluginOp(
    "Send",
    attrs={},
    inputs=(Operand("x", ACTIVATION, ROWS), AFTER),
    outputs=(Operand("done", ACTIVATION, (_one, _one)),),
    collective=_send,
)
"""`done` is an output of the engine that nobody writes or reads: without a result TensorRT would drop the layer."""
RECEIVE_OP = PluginOp(
    "Receive",
    attrs={"columns": int},
    inputs=(Operand("like", ACTIVATION, ("tokens",)), AFTER),
    outputs=(Operand("y", ACTIVATION, ("tokens", "columns")),),
    collective=_receive,
)
"""`like` says how many rows come, and of which type; its numbers are not read."""
OPS = (ALL_REDUCE_OP, ALL_GATHER_OP, SEND_OP, RECEIVE_OP)
