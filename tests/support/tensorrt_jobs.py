"""Small ONNX models and jobs for the process that builds TensorRT engines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tensorwright.builder.emit.tensorrt.job import Job

MISSING = [name for name in ("tensorrt_rtx", "triton", "onnx") if find_spec(name) is None]
needs_rtx = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def write_model(path: Path, *, inner: int = 32, op: str | None = None) -> Path:
    """Gather, Gather, MatMul, Cast. inner: rows of the matrix, 32 fit; op: a node of our domain in between,
    RmsNorm fits."""
    rng = np.random.default_rng(0)
    table = numpy_helper.from_array(rng.standard_normal((64, 32)).astype(np.float16), "embedding")
    matrix = numpy_helper.from_array(rng.standard_normal((inner, 64)).astype(np.float16), "lm_head")
    norm = numpy_helper.from_array(rng.standard_normal(32).astype(np.float32), "norm")
    x = "rows"
    nodes = [
        helper.make_node("Gather", ["embedding", "token_ids"], ["x"], name="model.embed_tokens/Gather"),
        helper.make_node("Gather", ["x", "logit_rows"], ["rows"], name="model/Gather"),
    ]
    if op is not None:
        attrs = {"plugin_version": "1", "plugin_namespace": "tensorwright", "eps": 1e-5, "weight_offset": 0.0}
        node = helper.make_node(op, [x, "norm"], ["y"], name=f"model.layers.0/{op}", domain="tensorwright", **attrs)
        nodes.append(node)
        x = "y"
    nodes.append(helper.make_node("MatMul", [x, "lm_head"], ["product"], name="lm_head/MatMul"))
    nodes.append(helper.make_node("Cast", ["product"], ["logits"], to=TensorProto.FLOAT, name="lm_head/Cast"))
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, [n]) for n in ("token_ids", "logit_rows")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["logit_rows", 64])]
    graph = helper.make_graph(nodes, "model", inputs, outputs, [table, matrix, norm])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tensorwright", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def make_job(model: Path, *, sms: tuple[int, ...] = (80, 89)) -> Job:
    shapes = dict.fromkeys(("token_ids", "logit_rows"), ((1,), (8,), (16,)))
    plan, layers = model.with_suffix(".plan"), model.with_suffix(".layers")
    return Job("tensorrt-rtx", str(model), str(plan), str(layers), sms, sms, (shapes, shapes))
