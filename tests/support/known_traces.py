"""Keeps the traces of tests in build/traces: torch.export takes about a second of processor time for a tiny model, and
the tests trace the same few dozen models several hundred times, on each instruction set again.

A trace is known by everything that the export sees: the class and config of the model, the names, shapes and types of
its parameters, the values of its buffers, the expressions of its weights, and the longest sequence. A model with heads
is known by the values that its heads read too, and heads by the plain attributes of each of their modules. What comes
before the export, such as refusals and the facts of the graph, happens in every trace. Values of weights are no part of
a trace: no parameter has storage while the model is exported.

Traces of other sources, or of another torch or transformers, lie in other folders and are not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.places import ROOT
from tensorwright.ir.graph import Graph
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph

NOT_TRACED = ("_name_or_path", "transformers_version")
"""Keys of a config that say where it came from."""
KEPT_FOR = 24 * 3600
"""Seconds after which a folder of traces of other sources is removed."""


class NotYetExported(NamedTuple):
    """The arguments of an export, which takes place if its graph is not known."""

    model: Any
    max_seq_len: int
    heads: Any = None
    rows: str = "logits"

    def export(self, exporters: Exporters) -> Any:
        return exporters.model(*self)

    def seen(self) -> list[Any]:
        """Returns what the export sees, without the expressions of weights."""
        model = self.model
        config = {key: value for key, value in model.config.to_dict().items() if key not in NOT_TRACED}
        said = [type(model).__qualname__, config, _tensors(model), self.max_seq_len, self.rows]
        if self.heads is not None:
            names = {id(module): name for name, module in model.named_modules()}
            points = [(names[id(point.module)], point.given) for point in self.heads.points]
            said += [points, _modules(self.heads.features), _tensors(self.heads.features)]
        return said


class HeadsNotYetExported(NamedTuple):
    """The arguments of an export of heads."""

    heads: Any
    max_seq_len: int

    def export(self, exporters: Exporters) -> Any:
        return exporters.heads(*self)

    def seen(self) -> list[Any]:
        head = self.heads.head
        return [self.heads.kind, self.heads.width, _modules(head), _tensors(head), self.max_seq_len]


class Exporters(NamedTuple):
    """The functions that export: what the arguments above are for."""

    model: Callable[..., Any]
    heads: Callable[..., Any]


@cache
def folder_of_traces() -> Path:
    """Returns the folder of the traces that these sources and packages make, which are known by a hash of them all."""
    seen = hashlib.sha256(" ".join([sys.version, version("torch"), version("transformers")]).encode())
    rooms = [ROOT / "src", *(package.parent for package in ROOT.glob("*/__init__.py"))]
    for file in [*sorted(file for room in rooms for file in room.rglob("*.py")), Path(__file__)]:
        seen.update(file.name.encode() + file.read_bytes())
    folder = ROOT / "build" / "traces" / seen.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in folder.parent.iterdir():
        with suppress(FileNotFoundError):  # Another worker may remove it at the same time.
            if other.stat().st_mtime < time.time() - KEPT_FOR:
                shutil.rmtree(other, ignore_errors=True)
    return folder


@contextmanager
def known_traces(folder: Path) -> Iterator[None]:
    """Within the context `trace` and `trace_for_engine` take graphs that another trace left in `folder`."""
    from tensorwright.builder.trace import export

    exporters, real_lower = Exporters(export._export, export._export_heads), export.lower

    def lower(program: Any, weights: dict[str, Any], graph: Graph, table: Any, results: int = 1) -> None:
        if not isinstance(program, NotYetExported | HeadsNotYetExported):  # a model of a test's own
            real_lower(program, weights, graph, table, results)
            return
        file = folder / _key(program, weights)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                real_lower(program.export(exporters), weights, graph, table, results)
                _write(file, graph)
        _fill(graph, file.read_text(encoding="utf-8"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_export", NotYetExported)
        patch.setattr(export, "_export_heads", HeadsNotYetExported)
        patch.setattr(export, "lower", lower)
        yield


def _key(program: NotYetExported | HeadsNotYetExported, weights: dict[str, Any]) -> str:
    expressions = {name: str(expression) for name, expression in weights.items()}
    seen = [type(program).__name__, *program.seen(), expressions]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()


def _tensors(module: Any) -> list[Any]:
    parameters = [(name, str(x.dtype), list(x.shape)) for name, x in module.named_parameters(remove_duplicate=False)]
    return [*parameters, *((name, str(x.dtype), list(x.shape), _bits(x)) for name, x in module.named_buffers())]


def _modules(root: Any) -> list[Any]:
    """Returns the class of each module, and its attributes that are neither modules, tensors nor functions. Configs and
    options are among them."""
    return [(name, type(module).__qualname__, _plain_attributes(module)) for name, module in root.named_modules()]


def _plain_attributes(module: Any) -> dict[str, Any]:
    plain = {}
    for name, value in vars(module).items():
        if hasattr(value, "to_dict"):
            plain[name] = {key: each for key, each in value.to_dict().items() if key not in NOT_TRACED}
        elif isinstance(value, str | int | float | tuple | list) or is_dataclass(value):
            plain[name] = repr(value)
    return plain


def _bits(buffer: Any) -> str:
    if buffer.device.type == "meta":
        return "without values"
    import torch

    return hashlib.sha256(buffer.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _write(file: Path, graph: Graph) -> None:
    """The names that the lowering gave to nodes which it dropped are kept too: passes number their values after
    them."""
    names = json.dumps({"names": sorted(graph._names), "counter": graph._counter})
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(f"# {names}\n{print_graph(graph)}", encoding="utf-8")
    unfinished.rename(file)


def _fill(graph: Graph, text: str) -> None:
    known, names = parse_graph(text), json.loads(text.partition("\n")[0].removeprefix("# "))
    graph.nodes, graph.outputs = known.nodes, known.outputs
    graph._names, graph._counter = set(names["names"]), names["counter"]
