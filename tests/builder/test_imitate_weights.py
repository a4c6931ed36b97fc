"""The exporter's weights: on the CPU beside the buffers, of the right types, and without storage."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensorwright.builder.trace.imitate_weights import imitate_weights


def test_weights_are_imitated_and_buffers_stay():
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(1 << 20, 1 << 20, dtype=torch.bfloat16), nn.Linear(2, 3)])
        model[1].stored = nn.Buffer(torch.zeros(3))
    model[1].table = nn.Buffer(torch.arange(3))
    model[1].again = model[0].weight
    imitate_weights(model)
    weight = model[0].weight
    assert isinstance(weight, FakeTensor)
    assert isinstance(weight, nn.Parameter)
    assert (weight.device.type, weight.dtype, weight.shape) == ("cpu", torch.bfloat16, (1 << 20, 1 << 20))
    assert model[1].again is weight
    assert isinstance(model[1].stored, FakeTensor)
    assert not isinstance(model[1].stored, nn.Parameter)
    assert model[1].table.tolist() == [0, 1, 2]
