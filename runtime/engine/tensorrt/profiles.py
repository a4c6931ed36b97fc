"""Chooses the optimization profile of a step, and binds the inputs of the execution contexts, one per profile."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.tensorrt_manifest import DECODE, Manifest, Profile
from tensorwright.errors import DeviceError, InvalidRequestError
from tensorwright.runtime.engine.tensorrt.library import LoadedEngine


def step_sizes(step: Any, manifest: Manifest) -> dict[str, int]:
    """Returns the size of every symbol of a step except pages.G. stable_width() gives the width of block tables."""
    sizes = {"tokens": len(step.token_ids), "seqs": len(step.context_lens), "rows": len(step.logit_rows)}
    for group in range(manifest.groups):
        name = f"max_blocks.{group}"
        sizes[name] = stable_width(step.block_tables(group).shape[1], manifest.limit(name))
    return sizes


def stable_width(needed: int, most: int) -> int:
    """Returns the next power of two, at least 8 and at most `most`, so that a growing context seldom changes the
    shape."""
    return max(needed, min(most, max(8, 1 << (max(needed, 1) - 1).bit_length())))


def choose_profile(manifest: Manifest, step: Any, sizes: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Returns the index of a profile that takes the step, and the sizes of the step in that profile.

    It tries the decode profile first if every sequence has one token, and last otherwise. A profile may need more logit
    rows or wider block tables than the step has; then the sizes grow. Raises InvalidRequestError if no profile fits.
    """
    decodes = bool(np.all(np.diff(step.seq_starts) == 1)) and len(manifest.profiles) > DECODE
    order = [DECODE] if decodes else []
    for index in (*order, *(i for i in range(len(manifest.profiles)) if i != DECODE), DECODE):
        if index < len(manifest.profiles):
            profile = manifest.profiles[index]
            grown = {s: max(n, profile.symbols[s].min) if _may_grow(s) else n for s, n in sizes.items()}
            if all(profile.symbols[s].min <= n <= profile.symbols[s].max for s, n in grown.items()):
                return index, grown
    raise InvalidRequestError(
        f"step: none of the engine's profiles takes {sizes}; they are {_ranges_text(manifest.profiles)}"
    )


def _may_grow(symbol: str) -> bool:
    return symbol == "rows" or symbol.startswith("max_blocks.")


def _ranges_text(profiles: tuple[Profile, ...]) -> str:
    return "; ".join(
        f"{p.name}: {', '.join(f'{s} {r.min} to {r.max}' for s, r in p.symbols.items())}" for p in profiles
    )


class BoundContext:
    """An execution context with its last shapes and addresses. It passes them to the library only when they change."""

    def __init__(self, engine: LoadedEngine, profile: int, scratch: int, stream: int):
        self._engine, self._profile = engine, profile
        self._context = engine.make_context(profile, scratch, stream)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def bind_input(self, name: str, shape: tuple[int, ...], address: int) -> None:
        """Binds the shape and the address of an input. It ignores an input that the engine does not have, because the
        engine's model does not need it."""
        if name not in self._engine.tensors:
            return
        if self._shapes.get(name) != shape:
            self._accept(self._context.set_input_shape(name, shape), f"shape {shape} of {name}")
            self._shapes[name] = shape
        self.bind_address(name, address)

    def bind_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) != address:
            self._accept(self._context.set_tensor_address(name, address), f"the address of {name}")
            self._addresses[name] = address

    def enqueue(self, stream: int) -> None:
        self._accept(self._context.execute_async_v3(stream), "to run a step")

    def _accept(self, done: bool, what: str) -> None:
        if not done:
            raise DeviceError(
                f"profile {self._profile}: TensorRT refuses {what} ({self._engine.complaints()}); report it "
                "with io.json"
            )

    def close(self) -> None:
        del self._context


def largest_sizes(manifest: Manifest, tokens: int, rows: int, seqs: int) -> dict[str, int]:
    """Returns the sizes of the largest step for which allocate() makes room."""
    fewest = max(profile.symbols["rows"].min for profile in manifest.profiles)
    widths = {f"max_blocks.{g}": manifest.limit(f"max_blocks.{g}") for g in range(manifest.groups)}
    return {"tokens": tokens, "seqs": seqs, "rows": max(rows, fewest), **widths}
