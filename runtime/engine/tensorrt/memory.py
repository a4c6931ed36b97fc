"""Computes the size of the KV cache on the device: the size that the user asks for, or a share of the free memory."""

from __future__ import annotations

from tensorwright.engine_format.tensorrt_manifest import Manifest
from tensorwright.errors import OutOfMemoryError
from tensorwright.runtime.engine.tensorrt.step_buffers import logits_bytes, metadata_bytes
from tensorwright.sizes import format_size


def kv_bytes(manifest: Manifest, most: dict[str, int], free: int, scratch: int, asked: int | None, share: float) -> int:
    """Returns the bytes of the KV cache: `asked` if it fits, or a share of the free memory if `asked` is None.

    The share is at most what a full batch of the longest sequences can use, and what the engine's profiles accept.
    most: the sizes of the largest step. free: the device's free bytes, with the engine's weights already loaded.
    scratch: the bytes of activations. Raises OutOfMemoryError if `asked` or one block does not fit.
    """
    block = sum(manifest.block_bytes)
    beside = scratch + metadata_bytes(manifest, most) + logits_bytes(manifest, most["rows"])
    room = max(0, free - beside)
    room_text = (
        f"{format_size(room)} of the GPU's memory are free beside the engine, its activations and buffers "
        f"({format_size(beside)})"
    )
    if asked is not None:
        if asked < block:
            raise OutOfMemoryError(
                f"kv_cache_memory must hold at least one block of {block} bytes, got {asked}: raise it"
            )
        if asked > room:
            raise OutOfMemoryError(
                f"kv_cache_memory is {format_size(asked)}, but {room_text}: ask for less, or leave it out"
            )
        return asked
    if int(room * share) < block:
        raise OutOfMemoryError(
            f"the KV cache needs at least {format_size(block)}, but {room_text}: lower max_num_tokens or "
            "max_batch_size, or end what else uses the GPU"
        )
    useful = -(-manifest.max_seq_len // manifest.block_size) * most["seqs"]
    most_pages = min(profile.symbols[f"pages.{g}"].max for profile in manifest.profiles for g in range(manifest.groups))
    return min(block * min(useful, most_pages), int(room * share))
