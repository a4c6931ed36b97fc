"""Describes what the nodes of a graph become on target cuda, before any SM is chosen: calls of launch.py, and products.

Tensors have symbolic addresses (addresses.py) and sizes (sizes.py); SLOT addresses still count buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tensorwright.builder.emit.cuda.addresses import SLOT, Address
from tensorwright.plugins.gpu.launch import DenseProduct, KernelSpec, Launch, Tensor


class LaunchModule(Protocol):
    """A launch.py of an operation."""

    def kernels(self, attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]: ...

    def launches(
        self,
        attrs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        workspace: Tensor | None,
        sm: int,
    ) -> Sequence[Launch | DenseProduct]: ...

    def workspace_bytes(self, attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int: ...


@dataclass(frozen=True)
class OpCall:
    """One call of an operation's launch.py. attrs: with the sizes that its kernels are compiled for. workspace: bytes
    for the largest step."""

    text: str
    module: LaunchModule
    attrs: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    workspace: int

    def tensors(self) -> Iterator[Tensor]:
        yield from self.inputs.values()
        yield from self.outputs.values()


@dataclass(frozen=True)
class ProductCall:
    """A product with a stored matrix."""

    text: str
    product: DenseProduct

    def tensors(self) -> Iterator[Tensor]:
        yield from self.product.tensors()


Call = OpCall | ProductCall


def address_of(tensor: Tensor) -> Address:
    """Returns the symbolic address, which stands where a plain launch has an int."""
    return cast(Address, tensor.address)


def buffers_of(call: Call) -> set[int]:
    """Returns the buffers that a call reads or writes."""
    return {address_of(tensor).number for tensor in call.tensors() if address_of(tensor).kind == SLOT}
