"""Reads weights from a checkpoint for the interpreter."""

from __future__ import annotations

import numpy as np
import torch

from tensorwright.ir.interpret import Weights
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.read_weights import TensorSource, evaluate


def checkpoint_weights(source: TensorSource) -> Weights:
    """Returns a function that reads one weight of a checkpoint (or any tensor source), in its stored type."""

    def read(expr: WeightExpr) -> torch.Tensor:
        tensor = evaluate(expr, source)
        array = torch.from_numpy(np.array(tensor.data))  # The copy is needed because files are mapped read-only.
        stands_for = getattr(torch, tensor.dtype)  # numpy lacks bfloat16 and the floats of 8 bits
        return array if array.dtype == stands_for else array.view(stands_for)

    return read
