"""The KV cache on the device: per layer k and v pages (int8: their scales too), all zero at first.

[pages, kv_heads, block_size, head_dim] each; a block of a cache group is the page of its number in every tensor of it.
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
    """One tensor of the pool."""

    group: int
    address: int
    shape: tuple[int, ...]
    page_bytes: int


class KvPool:
    """`blocks` of each cache group. What it takes is given back by `stack`, also when it does not get all."""

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
            # A masked position counts 0 times its value, which must then be no NaN.
            cuda.zero(address, size, stream)
            group = manifest.layers[int(tensor.name.partition(".")[2])].group
            self.tensors[tensor.name] = Pages(group, address, shape, page_bytes)

    def copy_block(self, group: int, source: int, to: int) -> None:
        """In every tensor of the group, in the stream's order: after the steps before, ahead of those after."""
        if not 0 <= group < len(self._blocks) or not all(0 <= b < self._blocks[group] for b in (source, to)):
            raise InvalidRequestError(f"copy_block: there are {self._blocks} blocks per group, got {group, source, to}")
        for pages in self.tensors.values():
            if pages.group == group:
                first, second = (pages.address + block * pages.page_bytes for block in (to, source))
                self._cuda.copy_on_device(first, second, pages.page_bytes, self._stream)
