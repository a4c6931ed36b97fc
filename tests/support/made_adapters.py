"""LoRA adapters of random numbers, as PEFT saves them; and what a graph says with one: the oracle of adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file

from tensorwright.engine_format.adapter_places import AdapterPlaces
from tensorwright.engine_format.file_names import CPU_ADAPTERS
from tensorwright.ir import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import Tensor
from tensorwright.models.peft_adapter import PREFIX, PeftAdapter, read_adapter
from tensorwright.models.read_weights import evaluate
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

PLAIN: dict[str, Any] = {"peft_type": "LORA", "bias": "none", "lora_alpha": 8}


def places_of(engine: Path) -> AdapterPlaces:
    return AdapterPlaces.from_bytes(engine / CPU_ADAPTERS, (engine / CPU_ADAPTERS).read_bytes())


def make_adapter(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    rank: int = 4,
    seed: int = 0,
    spread: float = 0.2,
    dtype: type | str = np.float32,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Writes an adapter of normal noise. shapes: the outputs and inputs of its modules. config: further fields of
    adapter_config.json. dtype: that of numpy, or "bfloat16"."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        a, b = rng.standard_normal((rank, inputs)), rng.standard_normal((outputs, rank))
        tensors[f"{PREFIX}{name}.lora_A.weight"] = spread * a
        tensors[f"{PREFIX}{name}.lora_B.weight"] = spread * b
    if dtype == "bfloat16":
        rounded = {name: torch.from_numpy(values).to(torch.bfloat16) for name, values in tensors.items()}
        torch_save_file(rounded, folder / "adapter_model.safetensors")
    else:
        save_file(
            {name: values.astype(dtype) for name, values in tensors.items()}, folder / "adapter_model.safetensors"
        )
    (folder / "adapter_config.json").write_text(
        json.dumps({**PLAIN, "r": rank, "target_modules": list(shapes), **(config or {})})
    )
    return folder


class _Changes:
    """A source of tensors that has, for each weight of a checkpoint, what an adapter adds to it."""

    def __init__(self, checkpoint: Checkpoint, adapter: PeftAdapter):
        self._checkpoint, self._adapter = checkpoint, adapter

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(name)

    def dtype(self, name: str) -> str:
        return "float32"

    def read_part(self, name: str, ranges: tuple[tuple[int, int], ...]) -> Tensor:
        change = np.zeros(self.shape(name), np.float32)
        module = name.removesuffix(".weight")
        if module in self._adapter.modules:
            a, b = self._adapter.read(module)
            product = self._adapter.modules[module].scale * (b.astype(np.float64) @ a.astype(np.float64))
            change = (product.T if self._adapter.transposed else product).astype(np.float32)
        return Tensor("float32", np.ascontiguousarray(change[tuple(slice(*span) for span in ranges)]))


def with_adapter(graph: Graph, checkpoint: Checkpoint, folder: Path) -> Graph:
    """Returns a cached graph in which every linear has a second one beside it, whose matrix is what the adapter adds:
    the same expression over the changes of the tensors, where the first one has it over the tensors."""
    graph = graph.clone()
    changes = _Changes(checkpoint, read_adapter(folder))
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    for node in [*graph.find("linear"), *graph.find("quantized_linear")]:
        weight = node.operand(1).producer
        matrix = evaluate(weight.attrs["expr"], changes).data if weight.op == "weight" else np.zeros(1)
        if not matrix.any():
            continue
        g = Rewriter(graph, node)
        again = g.add(node.op, *node.inputs, **node.attrs)
        beside = g.linear(node.operand(0), g.constant(matrix, "float32", matrix.shape))
        forward[node.output] = g.add("add", again, beside)
        inserted[id(node)] = g.nodes
    assert forward, "the adapter changes nothing"
    splice(graph, inserted, forward)
    return graph
