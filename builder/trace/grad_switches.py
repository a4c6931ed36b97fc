"""Takes away the switches of gradients that modules have around their forward, as those of rotary embeddings do.

A trace has no gradients, so a switch changes nothing in it. But the exporter cuts its graph in pieces at each switch,
and writes Python code for each piece: a twelfth of an export.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn


def drop_grad_switches(module: nn.Module) -> None:
    """Gives each part of `module` whose forward is decorated with torch.no_grad() the forward without it."""
    for part in module.modules():
        forward = type(part).forward
        if "forward" not in vars(part) and _is_switched(forward):
            part.forward = MethodType(inspect.unwrap(forward, stop=lambda each: not _is_switched(each)), part)


def _is_switched(function: Callable[..., Any]) -> bool:
    """Whether a function is what torch.no_grad() makes of another one as its decorator."""
    if not (isinstance(function, FunctionType) and hasattr(function, "__wrapped__")):
        return False
    switch = inspect.getclosurevars(function).nonlocals.get("ctx_factory")
    return isinstance(getattr(switch, "__self__", None), torch.no_grad)
