"""Weights for the interpreter, read from a checkpoint."""

from __future__ import annotations

import numpy as np
import torch

from tensorwright.ir.interpret import Weights
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.read_weights import TensorSource, evaluate


def checkpoint_weights(source: TensorSource) -> Weights:
    """Weights read from a checkpoint (or any tensor source) when asked for, in their stored type."""

    def read(expr: WeightExpr) -> torch.Tensor:
        tensor = evaluate(expr, source)
        array = torch.from_numpy(np.array(tensor.data))  # a copy: files are mapped read-only
        return array.view(torch.bfloat16) if tensor.dtype == "bfloat16" else array

    return read
