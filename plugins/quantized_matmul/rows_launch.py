"""Describes stored weights of kernels that take any form of them (gpu_rows.py): types, shapes and constants.

A matrix [..., N, K] is `values` [..., N, S] and, but for the form "float", `scales` [..., N, groups] of the activation
type. S, the elements or bytes of a row, is K, for int8 and int4 the K or K / 2 bytes of whole groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import Tensor, ceil_div, require_shape

FLOAT, INT8, INT4, FP8 = FORMS = ("float", "int8", "int4", "fp8")
GROUPS = (32, 64, 128)
MOST_DEPTH = 64
FLOAT32_DEPTH = 32


@dataclass(frozen=True)
class Form:
    """How the weights of a product are stored. group: the elements along K that share a scale, 0 if a row has one."""

    name: str = FLOAT
    group: int = 0

    def __post_init__(self) -> None:
        grouped = self.name in (INT8, INT4)
        if self.name not in FORMS or self.group not in (GROUPS if grouped else (0,)):
            raise KernelError(
                f"weights on a GPU: the form must be float or fp8 without groups, or int8 or int4 in groups of one of "
                f"{GROUPS}, got {self.name} and {self.group}"
            )

    @staticmethod
    def of(fmt: WeightFormat) -> Form:
        """Returns the form of a format. Raises KernelError for one that has no kernel."""
        name = {("int", 8): INT8, ("int", 4): INT4, ("fp", 8): FP8}.get((fmt.kind, fmt.bits))
        if name is None:
            raise KernelError(f"weights of the format {fmt} have no kernel on a GPU; use int4, int8 or fp8")
        return Form(name, fmt.group)

    @property
    def scaled(self) -> bool:
        return self.name != FLOAT

    def dtype(self, activations: str) -> str:
        """Returns the element type of `values`."""
        return "int8" if self.scaled else activations

    def groups(self, k: int) -> int:
        """Returns the scales of a row."""
        return ceil_div(k, self.group) if self.group else int(self.scaled)

    def row(self, k: int) -> int:
        """Returns the elements of a row of `values`."""
        width = self.groups(k) * self.group if self.group else k
        return width // 2 if self.name == INT4 else width

    def depth(self, activations: str) -> int:
        """Returns the elements of K of a tile."""
        return FLOAT32_DEPTH if activations == "float32" else min(self.group or MOST_DEPTH, MOST_DEPTH)

    def aligns(self, k: int, activations: str) -> bool:
        """Whether rows of values begin at whole multiples of 16 bytes."""
        return self.row(k) * ITEM_BYTES[self.dtype(activations)] % 16 == 0

    def constants(self, k: int) -> dict[str, Any]:
        """Returns FORM, GROUP, ROW and GROUPS of a kernel."""
        return {"FORM": self.name, "GROUP": self.group, "ROW": self.row(k), "GROUPS": self.groups(k)}

    def check(self, values: Tensor, scales: Tensor | None, shape: tuple[int, ...], activations: str) -> None:
        """Raises KernelError unless the tensors are those of weights of this shape."""
        *outer, k = shape
        require_shape(values, (*outer, self.row(k)), self.dtype(activations))
        if (scales is not None) != self.scaled:
            raise KernelError(f"{values.name}: weights of the form {self.name} must have scales if they are quantized")
        if scales is not None:
            require_shape(scales, (*outer, self.groups(k)), activations)
