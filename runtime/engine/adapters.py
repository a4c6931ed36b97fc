"""Loads LoRA adapters into a running engine, and keeps them by name.

An adapter is checked wholly before anything changes. Its matrices are cut and reordered as the build did with those of
the model (engine_format/adapter_places.py), and the engine copies them. A request holds its adapter: one that is
unloaded, or replaced by another of its name, is there until the last of its requests ends, and no new request finds it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.engine_format.adapter_places import AdapterPlaces, ModulePart, ProductPlaces, count_of, numbers_of
from tensorwright.engine_format.file_names import CPU_ADAPTERS
from tensorwright.engine_format.weight_formats import LANES
from tensorwright.errors import AdapterError, InvalidOptionError, OutOfMemoryError, UnknownModelError
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.sizes import format_size

if TYPE_CHECKING:
    from tensorwright.models.peft_adapter import PeftAdapter

MAX_NAME = 256
"""The most characters of an adapter's name."""
REPLACEMENTS = 1
"""How many adapters may live beyond max_loras: a new version of one whose old version requests still use."""

NativeProduct = tuple[int, np.ndarray, list[tuple[int, int, np.ndarray]], np.ndarray | None]
"""What `_runtime.Engine.make_adapter` takes for one product: its instruction, the first matrix, the second ones with
their places, and the factors of the first one's rows, None where the second ones have the factor in them. Matrices are
float32, or the bits of bfloat16."""


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter that requests can name. native: what the engine made of it. rank: the largest of its modules. created:
    the Unix time of its loading."""

    name: str
    path: Path
    native: Any
    rank: int
    modules: int
    created: int

    @property
    def key(self) -> str:
        """A text that is equal for adapters of equal content in engines of equal plans."""
        key: str = self.native.key
        return key


def read_places(engine: EngineDir, what: str) -> AdapterPlaces:
    """Returns where modules lie in the engine. what: the option that needs it. Raises InvalidOptionError for an engine
    that has no adapters."""
    if engine.target != "cpu" or engine.config.ranks > 1:
        raise InvalidOptionError(
            f"{what} needs an engine of target cpu and of one rank, {engine.path} is of target {engine.target!r} and "
            f"has {engine.config.ranks}: merge the adapter into the model with tensorwright merge-lora, and build that"
        )
    if CPU_ADAPTERS not in engine.files:
        raise InvalidOptionError(
            f"{what}: {engine.path} has no {CPU_ADAPTERS}, it was built by an earlier version; build it again"
        )
    return AdapterPlaces.from_bytes(engine.path / CPU_ADAPTERS, engine.text(CPU_ADAPTERS))


def adapter_bytes(places: AdapterPlaces, rank: int) -> int:
    """Returns the bytes of an adapter that changes every module with matrices of this rank, in float32."""
    panels = -(-rank // LANES) * LANES
    return sum(
        4 * (panels * count_of(product.parts[0].inputs) * len(product.modules) + rank * _columns(product))
        for product in places.products
    )


def step_bytes(places: AdapterPlaces, rank: int, tokens: int) -> int:
    """Returns the bytes that steps of so many tokens take for adapters (runtime/core/executor/adapters.cc)."""
    inputs = max((count_of(product.parts[0].inputs) for product in places.products), default=0)
    columns = max((_columns(product) for product in places.products), default=0)
    return 4 * tokens * (inputs + columns + rank * places.most_modules)


def _columns(product: ProductPlaces) -> int:
    return max(part.column + sum(count for _, count, _ in part.outputs) for part in product.parts)


class AdapterTable:
    """The adapters of one engine by name. It is thread-safe.

    maker: the `_runtime.Engine`; None if most is 0. most: how many names there may be. max_rank: of one module.
    """

    def __init__(self, engine: EngineDir, maker: Any, most: int, max_rank: int):
        self._engine, self._maker, self._most, self._max_rank = engine, maker, most, max_rank
        self._loading = threading.Lock()  # one adapter at a time is read
        self._lock = threading.Lock()
        self._adapters: dict[str, LoadedAdapter] = {}

    def load(self, name: str, path: str | Path, created: int) -> LoadedAdapter:
        """Loads an adapter of PEFT's form. One that has the name already is replaced for the requests that come.

        Raises AdapterError, InvalidOptionError, OutOfMemoryError; then nothing has changed.
        """
        check_name(name)
        if self._most == 0:
            raise InvalidOptionError(
                "max_loras must be positive to load an adapter, is 0; open the engine with a larger one"
            )
        from tensorwright.models.peft_adapter import read_adapter  # most programs load no adapter

        with self._loading:
            if name not in self.names and len(self.names) >= self._most:
                raise AdapterError(
                    f"{name}: at most {self._most} adapters may be loaded, which are {', '.join(self.names)}; unload "
                    "one, or raise max_loras"
                )
            places = read_places(self._engine, "an adapter")
            adapter = read_adapter(path, self._max_rank)
            self._check_memory(name, adapter)
            products = make_products(adapter, places)
            native = self._maker.make_adapter(content_key(products), products)
            rank = max(module.rank for module in adapter.modules.values())
            loaded = LoadedAdapter(name, adapter.path, native, rank, len(adapter.modules), created)
            with self._lock:
                replaced = self._adapters.pop(name, None)
                self._adapters[name] = loaded  # the last in the order of loading
            del replaced  # its memory is given back while nobody waits for the lock
        return loaded

    def unload(self, name: str) -> None:
        """Forgets an adapter. Requests that have it go on with it. Raises UnknownModelError."""
        with self._lock:
            gone = self._adapters.pop(name, None)  # its memory is given back behind the lock
            if gone is None:
                raise self._unknown(name)

    def find(self, name: str | None) -> LoadedAdapter | None:
        """Returns the adapter of a name; None for None. Raises UnknownModelError."""
        if name is None:
            return None
        with self._lock:
            if name not in self._adapters:
                raise self._unknown(name)
            return self._adapters[name]

    @property
    def names(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._adapters)

    @property
    def loaded(self) -> dict[str, LoadedAdapter]:
        """A copy of the table, in the order of loading."""
        with self._lock:
            return dict(self._adapters)

    def _unknown(self, name: str) -> UnknownModelError:
        there = f"there are {', '.join(self._adapters)}" if self._adapters else "none is loaded"
        return UnknownModelError(f"the engine has no adapter {name[:MAX_NAME]!r}; {there}")

    def _check_memory(self, name: str, adapter: PeftAdapter) -> None:
        """Raises OutOfMemoryError if the memory does not hold the adapter twice: it is copied once."""
        size = 2 if adapter.is_bfloat16 else 4
        need = 2 * sum(size * module.rank * (module.inputs + module.outputs) for module in adapter.modules.values())
        if need > (free := available_memory()):
            raise OutOfMemoryError(
                f"{name}: loading the adapter takes {format_size(need)} of memory, and {format_size(free)} are "
                "available"
            )


def check_adapters(adapters: Any, most: int | None) -> dict[str, str | Path]:
    """Returns the adapters of the keyword `adapters` of LLM. most: its max_loras. Raises InvalidOptionError."""
    given = {} if adapters is None else adapters
    if not isinstance(given, Mapping):
        raise InvalidOptionError(f"LLM: adapters must be a dict of names and folders, got {type(given).__name__}")
    for name, path in given.items():
        check_name(name)
        if not isinstance(path, (str, Path)) or not str(path).strip():
            raise InvalidOptionError(f"LLM: adapters: {name!r} must have the path of a folder, got {path!r}")
    if isinstance(most, int) and 0 <= most < len(given):
        raise InvalidOptionError(f"LLM: max_loras must be at least {len(given)}, the number of adapters, got {most}")
    return dict(given)


def check_name(name: Any) -> None:
    """Raises InvalidOptionError for what cannot be the name of an adapter."""
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not good:
        raise InvalidOptionError(
            f"the name of an adapter must be a text of 1 to {MAX_NAME} printable characters, got "
            f"{str(name)[:MAX_NAME]!r}"
        )


def make_products(adapter: PeftAdapter, places: AdapterPlaces) -> list[NativeProduct]:
    """Returns what the adapter adds to each product that has a module of it. Raises AdapterError if it does not fit.

    An adapter of bfloat16 stays as it is stored, and its factors stand beside it: no number is rounded. Of any other
    the second matrices are multiplied with the factor, in float32.
    """
    parts = [part for product in places.products for part in product.parts]
    adapter.check_base(places.modules, {part.module: part.transposed for part in parts}, places.refused)
    bfloat16 = adapter.is_bfloat16
    read: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    products = []
    for product in places.products:
        changed = [part for part in product.parts if part.module in adapter.modules]
        if not changed:
            continue
        for part in changed:
            if part.module in read:
                continue
            if bfloat16:
                stored_a, stored_b = adapter.read_stored(part.module)
                read[part.module] = stored_a.data, stored_b.data
            else:
                a, b = adapter.read(part.module)
                read[part.module] = a, _scaled(adapter, part.module, b)
        products.append(_product(product, changed, read, _factors(adapter) if bfloat16 else None))
    return products


def _factors(adapter: PeftAdapter) -> dict[str, np.float32]:
    """Returns the factors of the modules."""
    factors = {name: np.float64(module.scale) for name, module in adapter.modules.items()}
    for name, factor in factors.items():
        if abs(factor) > np.finfo(np.float32).max:
            raise AdapterError(f"{adapter.path}: the factor of {name} is too large for float32")
    return {name: np.float32(factor) for name, factor in factors.items()}


def _scaled(adapter: PeftAdapter, module: str, b: np.ndarray) -> np.ndarray:
    """Returns B times the factor, each number rounded once."""
    scaled = (b.astype(np.float64) * adapter.modules[module].scale).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise AdapterError(f"{adapter.path}: {module} times its factor is too large for float32")
    return scaled


def _product(
    product: ProductPlaces,
    parts: list[ModulePart],
    read: Mapping[str, tuple[np.ndarray, np.ndarray]],
    factors: Mapping[str, np.float32] | None,
) -> NativeProduct:
    """Stacks the first matrices of the modules of one product, and cuts the second ones to its columns."""
    stack: list[np.ndarray] = []
    scales: list[np.ndarray] = []
    first: dict[tuple[Any, ...], int] = {}
    native = []
    for part in sorted(parts, key=lambda part: part.column):
        a, b = read[part.module]
        key = (part.module, part.inputs)
        if key not in first:
            first[key] = sum(map(len, stack))
            stack.append(a[:, numbers_of(part.inputs)])
            if factors is not None:
                scales.append(np.full(len(a), factors[part.module], np.float32))
        native.append((first[key], part.column, np.ascontiguousarray(b[numbers_of(part.outputs)])))
    joined = np.ascontiguousarray(np.concatenate(stack))
    return product.instruction, joined, native, np.concatenate(scales) if scales else None


def content_key(products: list[NativeProduct]) -> str:
    """Returns a digest of all numbers that an adapter adds, and of their places."""
    digest = hashlib.blake2b(digest_size=32)
    for instruction, a, parts, scales in products:
        digest.update(f"{instruction} {a.shape} {a.dtype}".encode())
        digest.update(a.data)
        if scales is not None:
            digest.update(scales.data)
        for start, column, b in parts:
            digest.update(f"{start} {column} {b.shape}".encode())
            digest.update(b.data)
    return digest.hexdigest()
