"""Allocates the KV cache on the device: per layer the pages of k and v, with int8 also of their scales.

Each tensor is [pages, kv_heads, block_size, head_dim] and zero at first. Block i of a cache group is page i in every
tensor of the group.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.tensorrt_manifest import Manifest, page_inputs, resolve
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.engine.tensorrt.cuda import Cuda


@dataclass(frozen=True)
class Pages:
    """One tensor of the pool. group: its cache group. address, page_bytes: in bytes, on the device."""

    group: int
    address: int
    shape: tuple[int, ...]
    page_bytes: int


class KvPool:
    """The pages of all layers. blocks: the number of blocks of each cache group.

    `stack` frees the memory, also if the allocation fails in the middle.
    """

    def __init__(self, stack: ExitStack, cuda: Cuda, stream: Any, manifest: Manifest, blocks: list[int]):
        self._cuda, self._stream, self._blocks = cuda, stream, blocks
        self.tensors: dict[str, Pages] = {}
        sizes = {f"pages.{group}": count for group, count in enumerate(blocks)}
        for tensor in page_inputs(manifest.layers, manifest.kv_dtype, manifest.block_size):
            shape = resolve(tensor.shape, sizes)
            page_bytes = prod(shape[1:]) * ITEM_BYTES[tensor.dtype]
            size = shape[0] * page_bytes
            address = cuda.allocate(size)
            stack.callback(cuda.free, address)
            # Attention multiplies the value of a masked position by 0, so the value must not be NaN.
            cuda.zero(address, size, stream)
            group = manifest.layers[int(tensor.name.partition(".")[2])].group
            self.tensors[tensor.name] = Pages(group, address, shape, page_bytes)

    def copy_block(self, group: int, source: int, to: int) -> None:
        """Copies a block in every tensor of the group, in the stream's order: after earlier steps and before later
        ones."""
        if not 0 <= group < len(self._blocks) or not all(0 <= b < self._blocks[group] for b in (source, to)):
            raise InvalidRequestError(f"copy_block: there are {self._blocks} blocks per group, got {group, source, to}")
        for pages in self.tensors.values():
            if pages.group == group:
                first, second = (pages.address + block * pages.page_bytes for block in (to, source))
                self._cuda.copy_on_device(first, second, pages.page_bytes, self._stream)
