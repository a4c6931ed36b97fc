"""A real model for the stand-in of TensorRT: its cached graph in the interpreter, on the device's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.fake_runtime import write_checksums
from support.made_manifest import make_manifest, make_profiles
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, KvLayer, Manifest
from tensorwright.ir import Graph
from tensorwright.ir.interpret import run
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.plugins.paged_attention.cache import PagedCache

BLOCK = 32


def manifest_of(graph: Graph, max_seq_len: int) -> Manifest:
    """Of an engine of this graph, which has one cache group, in float32 unless its layers say int8."""
    facts = graph.facts
    layers = facts.kv_layers
    return make_manifest(
        dtype="float32",
        kv_dtype=layers[0].dtype_or("float32"),
        block_size=BLOCK,
        vocab_size=facts.vocab_size,
        max_seq_len=max_seq_len,
        layers=tuple(KvLayer(0, layer.kv_heads, layer.head_dim) for layer in layers),
        group_windows=(layers[0].window,),
        profiles=make_profiles(1, tokens=64, seqs=8, max_blocks=-(-max_seq_len // BLOCK)),
    )


class GraphNetwork:
    """(inputs, outputs) -> None, for FakeTensorRt."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, manifest: Manifest):
        self.graph, self.manifest = graph, manifest
        read, known = checkpoint_weights(checkpoint), {}

        def weights(expr: Any) -> torch.Tensor:
            if str(expr) not in known:
                known[str(expr)] = read(expr)
            return known[str(expr)]

        self.weights = weights

    def __call__(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        named: dict[str, Any] = {
            name.removesuffix(".0"): torch.from_numpy(array.copy())
            for name, array in inputs.items()
            if array.dtype == np.int32
        }
        named |= {f"kv_cache.{layer}": self._cache(layer, inputs) for layer in range(len(self.manifest.layers))}
        for value, data in run(self.graph, {v.name: named[v.name] for v in self.graph.inputs}, self.weights):
            if value is self.graph.outputs[0]:
                outputs["logits"][:] = data.numpy()
            elif value.dtype == "kv" and value.node is not None and value.node.op == "rotary_kv_write":
                self._keep(value.node.attrs["layer"], data, outputs)

    def _cache(self, layer: int, inputs: dict[str, np.ndarray]) -> PagedCache:
        k, v = (inputs[f"{kind}_pages.{layer}"].astype(np.float32) for kind in "kv")
        if self.manifest.kv_dtype != "int8":
            return PagedCache(k, v, "float32")
        return PagedCache(k, v, "int8", *(inputs[f"{kind}_scales.{layer}"].copy() for kind in "kv"))

    def _keep(self, layer: int, cache: PagedCache, outputs: dict[str, np.ndarray]) -> None:
        for kind, pages, scales in (("k", cache.k, cache.k_scale), ("v", cache.v, cache.v_scale)):
            outputs[f"{kind}_pages_out.{layer}"][:] = pages
            if scales is not None:
                outputs[f"{kind}_scales_out.{layer}"][:] = scales


def to_tensorrt(engine: Path, manifest: Manifest, plan: bytes) -> None:
    """Makes a copied cpu engine one of target tensorrt-rtx, whose plan is `plan`: config.json and checksums follow."""
    import json
    import shutil

    shutil.rmtree(engine / "cpu")
    (engine / "tensorrt").mkdir()
    (engine / ENGINE_FILE).write_bytes(plan)
    (engine / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    config["target"] = manifest.flavour
    config["limits"] |= {"block_size": BLOCK, "kv_block_bytes": sum(manifest.block_bytes)}
    (engine / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = [p.relative_to(engine).as_posix() for p in engine.rglob("*") if p.is_file()]
    write_checksums(engine, [n for n in names if n not in ("checksums.txt", "build-report.json")])
