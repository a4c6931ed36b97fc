"""Gives the exporter weights that say that they are on the CPU, as the model's buffers are, and that have no values.

A model computes with tensors that it makes itself, such as a mask or a table of sinusoids, beside its weights. It makes
them on the device of the weights. On the meta device their numbers would be lost, and on another device than that of
the weights torch refuses to compute with them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def imitate_weights(model: nn.Module) -> None:
    """Replaces every parameter and buffer on the meta device, in place. One that stands in two places stays one."""
    made: dict[int, torch.Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.device.type == "meta":
                        tensors[name] = made.setdefault(id(tensor), imitation(tensor))  # type: ignore[assignment]


def imitation(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor like `tensor` on the CPU; without values, while a FakeTensorMode is on."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(made, requires_grad=False) if isinstance(tensor, nn.Parameter) else made
