"""Reads and writes cpu/adapters.json, which says where the matrices of the model's modules lie in the plan's products.

A build joins, cuts and reorders matrices: q_proj, k_proj and v_proj become one product, gate_proj and up_proj become
the two halves of a gated one. An adapter has two thin matrices for each module, so whoever loads one must know which
columns of which product are the module's. The file is written for every engine of target cpu and of one rank.

A run (start, count, step) stands for the numbers start, start + step, and so on, `count` of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorwright.engine_format.strict_json import read_object, read_value, write_value
from tensorwright.errors import EngineError

VERSION = 1
MAX_NUMBERS = 1 << 20
"""The most numbers that the runs of one part stand for: no product has as many columns or inputs. Few bytes can name a
run of any length, and whoever loads an adapter writes its numbers out."""


@dataclass(frozen=True)
class ModulePart:
    """Columns of a product that are columns of one module."""

    module: str
    """The name of the module's weight in the checkpoint, without ".weight"."""
    shape: tuple[int, ...]
    """The outputs and the inputs of the whole module."""
    transposed: bool
    """Whether the checkpoint has the module's matrix as [inputs, outputs]."""
    column: int
    """Where the columns begin in an addend of the product (plugins/matmul/kernel.h)."""
    outputs: tuple[tuple[int, ...], ...]
    """Runs: the module's outputs that the columns are, in order."""
    inputs: tuple[tuple[int, ...], ...]
    """Runs: the module's inputs that the product's inputs are, in order."""


@dataclass(frozen=True)
class ProductPlaces:
    """The modules of one product. instruction: its number in the plan."""

    instruction: int
    parts: tuple[ModulePart, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.module for part in self.parts))


@dataclass(frozen=True)
class AdapterPlaces:
    """What an adapter may change, and why it may not change the rest.

    refused: for each other module with a matrix the reason why no adapter may have it.
    """

    products: tuple[ProductPlaces, ...]
    refused: dict[str, str]
    version: int = VERSION

    @property
    def modules(self) -> dict[str, tuple[int, ...]]:
        """The outputs and inputs of every module that an adapter may change."""
        return {part.module: part.shape for product in self.products for part in product.parts}

    @property
    def most_modules(self) -> int:
        """The most modules that one product has."""
        return max((len(product.modules) for product in self.products), default=0)

    def to_text(self) -> str:
        """Returns the content of the file."""
        products = [
            {"instruction": product.instruction, "parts": [write_value(part) for part in product.parts]}
            for product in self.products
        ]
        content = {"version": self.version, "products": products, "refused": self.refused}
        return json.dumps(content, separators=(",", ":")) + "\n"

    @classmethod
    def from_bytes(cls, path: Path, data: bytes) -> AdapterPlaces:
        """Reads the file. Raises EngineError, which names the file."""
        try:
            places: AdapterPlaces = read_value(cls, read_object(path, data), "adapters.json")
            for product in places.products:
                for part in product.parts:
                    _check(part)
                if len({count_of(part.inputs) for part in product.parts}) != 1:
                    raise ValueError(f"product {product.instruction} must have parts, all of as many inputs")
        except ValueError as error:
            raise EngineError(f"{path}: {error}; build the engine again") from error
        if places.version != VERSION:
            raise EngineError(f"{path}: version must be {VERSION}, is {places.version}; build the engine again")
        return places


def _check(part: ModulePart) -> None:
    if len(part.shape) != 2:
        raise ValueError(f"{part.module}: shape must be outputs and inputs, is {list(part.shape)}")
    for runs, size in zip((part.outputs, part.inputs), part.shape, strict=True):
        for run in runs:
            if (
                len(run) != 3
                or run[1] < 1
                or not all(0 <= end < size for end in (run[0], run[0] + (run[1] - 1) * run[2]))
            ):
                raise ValueError(f"{part.module}: a run must be start, count and step within {size}, is {list(run)}")
        if count_of(runs) > MAX_NUMBERS:
            raise ValueError(f"{part.module}: runs must stand for at most {MAX_NUMBERS} numbers")


def runs_of(numbers: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Returns the runs of numbers, in order."""
    runs: list[tuple[int, ...]] = []
    start = 0
    steps = np.diff(numbers)
    while start < len(numbers):
        if start == len(numbers) - 1:
            runs.append((int(numbers[start]), 1, 1))
            break
        step = steps[start]
        others = np.flatnonzero(steps[start:] != step)
        end = start + (int(others[0]) if len(others) else len(steps) - start) + 1
        runs.append((int(numbers[start]), end - start, int(step)))
        start = end
    return tuple(runs)


def count_of(runs: Iterable[tuple[int, ...]]) -> int:
    """Returns how many numbers runs stand for."""
    return sum(count for _, count, _ in runs)


def numbers_of(runs: Iterable[tuple[int, ...]]) -> np.ndarray:
    """Returns the numbers that runs stand for."""
    parts = [start + step * np.arange(count) for start, count, step in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
