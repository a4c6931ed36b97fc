"""A small attention-only language model as an engine of target onnx, written by hand, and as plain numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.fake_runtime import engine_config, write_checksums, write_engine
from tensorwright.engine_format.onnx_manifest import INPUTS, CacheLayer, OnnxManifest

VOCAB = 257  # the byte tokenizer's
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 4, 2, 8, 2
MAX_SEQ_LEN = 64
WINDOW = 12  # of the second layer
FILES = (
    "config.json", "generation_config.json", "graph.txt", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx.data",
    "onnx/io.json",
)  # fmt: skip


class OnnxModel:
    """Embedding and positions, two layers of attention with a residual, and the embedding again."""

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)

        def matrix(*shape: int) -> np.ndarray:
            return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

        self.w = {"embed": matrix(VOCAB, HIDDEN) * 12, "where": matrix(MAX_SEQ_LEN, HIDDEN) * 6}
        for i in range(LAYERS):
            self.w[f"qkv.{i}"] = matrix(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM) * 2
            self.w[f"o.{i}"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        self.w["head"] = matrix(HIDDEN, VOCAB)

    def forward(self, tokens: list[int]) -> np.ndarray:
        """Logits [tokens, VOCAB] in float64."""
        w = {name: value.astype(np.float64) for name, value in self.w.items()}
        x, count = w["embed"][tokens] + w["where"][: len(tokens)], len(tokens)
        past = np.arange(count)[:, None] - np.arange(count)[None, :]
        for i in range(LAYERS):
            row = (x @ w[f"qkv.{i}"]).reshape(count, -1, HEAD_DIM)
            q, k, v = np.split(row, [HEADS, HEADS + KV_HEADS], axis=1)
            k, v = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (k, v))
            scores = np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
            seen = (past >= 0) & ((past < WINDOW) if i else True)
            scores = np.where(seen, scores, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(count, -1) @ w[f"o.{i}"]
        return x @ w["head"]

    def generate(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.forward(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def save(self, folder: Path) -> None:
        """model.onnx, model.onnx.data and io.json."""
        nodes = [
            helper.make_node("Gather", ["embed", "token_ids"], ["tokens"]),
            helper.make_node("Gather", ["where", "positions"], ["places"]),
            helper.make_node("Add", ["tokens", "places"], ["x.0"]),
            *[node for i in range(LAYERS) for node in _layer(i)],
            helper.make_node("Reshape", [f"x.{LAYERS}", "flat"], ["rows"]),
            helper.make_node("Gather", ["rows", "logit_rows"], ["wanted"]),
            helper.make_node("MatMul", ["wanted", "head"], ["logits"]),
        ]
        weights = {**self.w, "flat": np.array([-1, HIDDEN], np.int64)}
        graph = helper.make_graph(
            nodes, "toy", *_values(), [numpy_helper.from_array(value, name) for name, value in weights.items()]
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        folder.mkdir(parents=True)
        onnx.save(
            model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=128
        )
        (folder / "io.json").write_text(json.dumps(io_json()))


def _layer(i: int) -> list[Any]:
    cache = [f"{kind}_{part}.{i}" for kind in ("past", "present") for part in ("k", "v")]
    attention = helper.make_node(
        "GroupQueryAttention", [f"qkv_row.{i}", "", "", *cache[:2], "seqlens_k", "total_sequence_length"],
        [f"heads.{i}", *cache[2:]], domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS,
        local_window_size=WINDOW if i else -1,
    )  # fmt: skip
    return [
        helper.make_node("MatMul", [f"x.{i}", f"qkv.{i}"], [f"qkv_row.{i}"]),
        attention,
        helper.make_node("MatMul", [f"heads.{i}", f"o.{i}"], [f"out.{i}"]),
        helper.make_node("Add", [f"x.{i}", f"out.{i}"], [f"x.{i + 1}"]),
    ]


def _values() -> tuple[list[Any], list[Any]]:
    ints = {
        "token_ids": ["batch", "seq"], "positions": ["batch", "seq"], "seqlens_k": ["batch"],
        "total_sequence_length": [], "logit_rows": ["rows"],
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name, shape in ints.items()]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", VOCAB])]
    slot = ["batch", KV_HEADS, MAX_SEQ_LEN, HEAD_DIM]
    for i in range(LAYERS):
        inputs += [helper.make_tensor_value_info(f"past_{part}.{i}", TensorProto.FLOAT, slot) for part in "kv"]
        outputs += [helper.make_tensor_value_info(f"present_{part}.{i}", TensorProto.FLOAT, slot) for part in "kv"]
    return inputs, outputs


def io_json() -> dict[str, Any]:
    layers = tuple(
        CacheLayer(
            f"past_k.{i}", f"past_v.{i}", f"present_k.{i}", f"present_v.{i}", KV_HEADS, HEAD_DIM, "float32",
            WINDOW if i else 0,
        )
        for i in range(LAYERS)
    )  # fmt: skip
    inputs = dict.fromkeys(INPUTS, "int32")
    return OnnxManifest(layers, "float32", VOCAB, MAX_SEQ_LEN, 21, {"com.microsoft": 1}, inputs).to_dict()


SLOT_BYTES = MAX_SEQ_LEN * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4


def write_onnx_engine(path: Path, model: OnnxModel) -> Path:
    limits = {"max_seq_len": MAX_SEQ_LEN, "block_size": MAX_SEQ_LEN, "kv_block_bytes": SLOT_BYTES}
    write_engine(path, engine_config(target="onnx", limits=limits))
    model.save(path / "onnx")
    seal(path)
    return path


def seal(path: Path) -> None:
    """Makes the checksums true again."""
    write_checksums(path, [name for name in FILES if (path / name).exists()])
