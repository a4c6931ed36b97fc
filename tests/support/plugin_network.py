"""A small decoder made of our plugin nodes and MatMul, as ONNX: all that TensorRT's parser can meet of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as Onnx
from onnx import helper

TYPES = {"float32": Onnx.FLOAT, "float16": Onnx.FLOAT16, "bfloat16": Onnx.BFLOAT16, "int8": Onnx.INT8}
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Network:
    """What varies. `group`: of an int4 matrix at the end, 0 for none."""

    dtype: str = "float16"
    layers: int = 2
    int8_kv: bool = False
    rotary_dim: int = 16
    sinks: bool = False
    group: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    bias: bool = False

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dtype(self) -> str:
        return "int8" if self.int8_kv else self.dtype

    def page(self) -> tuple[int, int, int]:
        return self.kv_heads, BLOCK_SIZE, self.head_dim

    def profile(self, tokens: tuple[int, ...], seqs: tuple[int, ...]) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the inputs at minimum, optimum and maximum."""
        pages, blocks = (2, 16, 4096), (1, 2, 64)
        shapes: dict[str, list[tuple[int, ...]]] = {
            "hidden": [(t, self.channels) for t in tokens],
            "table": [(t, self.rotary_dim) for t in tokens],
            "slots": [(t,) for t in tokens],
            "seq_starts": [(s + 1,) for s in seqs],
            "context_lens": [(s,) for s in seqs],
            "block_tables": [(s, b) for s, b in zip(seqs, blocks, strict=True)],
        }
        if not self.rotary_dim:
            del shapes["table"]
        for layer in range(self.layers):
            for side in "kv":
                shapes[f"{side}_pages.{layer}"] = [(p, *self.page()) for p in pages]
                if self.int8_kv:
                    shapes[f"{side}_scales.{layer}"] = [(p, self.kv_heads, BLOCK_SIZE) for p in pages]
        return shapes


class _Maker:
    """Nodes and weights, gathered."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._random = np.random.default_rng(5)

    def weight(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        if dtype == "int32":
            values = self._random.integers(-(2**31), 2**31, shape)
        else:
            values = self._random.standard_normal(shape) / 8
        kind = Onnx.INT32 if dtype == "int32" else TYPES[dtype]
        self.weights.append(helper.make_tensor(name, kind, shape, values.ravel()))
        return name

    def input(self, name: str, dtype: int, dims: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def plugin(self, op: str, name: str, inputs: list[str], outputs: list[str], **attrs: Any) -> None:
        ours = {"plugin_version": "1", "plugin_namespace": "tensorwright"}
        node = helper.make_node(op, inputs, outputs, name=name, domain="tensorwright", **attrs, **ours)
        self.nodes.append(node)

    def matmul(self, module: str, x: str, shape: tuple[int, int]) -> str:
        weight = self.weight(f"{module}.weight", shape, self.net.dtype)
        self.nodes.append(helper.make_node("MatMul", [x, weight], [f"{module}/out"], name=f"{module}/MatMul"))
        return f"{module}/out"


def make_network(net: Network) -> bytes:
    """hidden [tokens, C] -> logits; pages in and out."""
    make = _Maker(net)
    kind = TYPES[net.dtype]
    hidden = make.input("hidden", kind, ["tokens", net.channels])
    if net.rotary_dim:
        make.input("table", Onnx.FLOAT, ["tokens", net.rotary_dim])
    for name, dims in (
        ("slots", ["tokens"]),
        ("seq_starts", ["starts"]),
        ("context_lens", ["seqs"]),
        ("block_tables", ["seqs", "max_blocks"]),
    ):
        make.input(name, Onnx.INT32, dims)
    norm = make.weight("layers.0.norm.weight", (net.channels,), "float32")
    make.plugin("RmsNorm", "layers.0.norm", [hidden, norm], ["normed"], eps=1e-5, weight_offset=0.0)
    x, residual = "normed", hidden
    for layer in range(net.layers):
        x, residual = _layer(make, layer, x, residual)
    _head(make, x)
    graph = helper.make_graph(make.nodes, "decoder", make.inputs, make.outputs, make.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tensorwright", 1)]
    return onnx.ModelProto.SerializeToString(helper.make_model(graph, opset_imports=opsets), deterministic=True)


def _layer(make: _Maker, layer: int, x: str, residual: str) -> tuple[str, str]:
    net, module = make.net, f"layers.{layer}"
    sizes = {"heads": net.heads, "kv_heads": net.kv_heads, "head_dim": net.head_dim, "int8_kv": int(net.int8_kv)}
    qkv = make.matmul(f"{module}.qkv", x, (net.channels, (net.heads + 2 * net.kv_heads) * net.head_dim))
    pages = _pages(make, layer)
    outs = [f"{name.split('.')[0]}_out.{layer}" for name in pages]
    table = ["table"] if net.rotary_dim else []
    rotated = f"{module}.q"
    write = [qkv, *table, "slots", *pages]
    make.plugin("RotaryKvWrite", f"{module}.write", write, [rotated, *outs], **sizes, rotary_dim=net.rotary_dim)
    sinks = [make.weight(f"{module}.sinks", (net.heads,), "float32")] if net.sinks else []
    attend = [rotated, *outs, "seq_starts", "context_lens", "block_tables", *sinks]
    extra = {"scale": net.head_dim**-0.5, "window": 0, "softcap": 0.0, "has_sinks": int(net.sinks)}
    make.plugin("PagedAttention", f"{module}.attention", attend, [f"{module}.attended"], **sizes, **extra)
    out = make.matmul(f"{module}.o", f"{module}.attended", (net.channels, net.channels))
    norm = make.weight(f"{module}.post.weight", (net.channels,), "float32")
    results = [f"{module}.normed", f"{module}.sum"]
    make.plugin("AddRmsNorm", f"{module}.post", [out, residual, norm], results, eps=1e-5, weight_offset=1.0)
    return results[0], results[1]


def _pages(make: _Maker, layer: int) -> list[str]:
    net, names = make.net, []
    for side in "kv":
        dims = ["pages", *net.page()]
        names.append(make.input(f"{side}_pages.{layer}", TYPES[net.kv_dtype], dims))
        make.outputs.append(helper.make_tensor_value_info(f"{side}_pages_out.{layer}", TYPES[net.kv_dtype], dims))
    for side in "kv" if net.int8_kv else "":
        dims = ["pages", net.kv_heads, BLOCK_SIZE]
        names.append(make.input(f"{side}_scales.{layer}", Onnx.FLOAT, dims))
        make.outputs.append(helper.make_tensor_value_info(f"{side}_scales_out.{layer}", Onnx.FLOAT, dims))
    return names


def _head(make: _Maker, x: str) -> None:
    net, n = make.net, 64
    if net.group:
        packed = make.weight("head.packed", (net.channels // 8, n), "int32")
        scales = make.weight("head.scales", (net.channels // net.group, n), net.dtype)
        bias = [make.weight("head.bias", (n,), net.dtype)] if net.bias else []
        sizes = {"n": n, "k": net.channels, "group": net.group}
        make.plugin("WeightOnlyLinear", "head", [x, packed, scales, *bias], ["logits"], **sizes)
    else:
        make.nodes.append(helper.make_node("Identity", [make.matmul("head", x, (net.channels, n))], ["logits"]))
    make.outputs.append(helper.make_tensor_value_info("logits", TYPES[net.dtype], ["tokens", n]))
