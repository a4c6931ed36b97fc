"""The launches of ops that compute rows from rows, interpreted, against the definitions in numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support import gpu_carried, gpu_draws, gpu_latent, gpu_mixtures, gpu_rows
from support.gpu_rows import CASES, run
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import GraphError, KernelError
from tensorwright.plugins.causal_conv import launch as causal_conv
from tensorwright.plugins.elementwise import launch as elementwise
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.head_products import launch as head_products
from tensorwright.plugins.latent_attention import launch as latent_kv_write
from tensorwright.plugins.linear_attention import launch as linear_attention
from tensorwright.plugins.quantized_matmul import bytes_launch
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rotary import table_launch
from tensorwright.plugins.route import launch as route
from tensorwright.plugins.selective_scan import launch as selective_scan
from tensorwright.plugins.swiglu import launch as swiglu
from tensorwright.plugins.take_columns import slice_launch


@pytest.mark.parametrize(
    "case", [*CASES, *gpu_mixtures.CASES, *gpu_latent.CASES, *gpu_carried.CASES, *gpu_draws.CASES], ids=str
)
def test_equals_the_definition(interpreter: Interpreter, case: gpu_rows.Case) -> None:
    run(interpreter, case)


@pytest.mark.parametrize(
    ("case", "changed"),
    [
        (gpu_rows.embedding_case("float16", 5, 72, 1.0, 0), {"first": 1}),
        (gpu_rows.embedding_case("float16", 5, 72, 1.0, None), {"scale": 1.01}),
        (gpu_rows.slice_case("float16", 3, 64, 16, 48), {"start": 15, "end": 47}),
        (gpu_rows.quantized_embedding_case("float16", 3, 64, 32), {"first": 1}),
        (gpu_rows.bytes_case("float16", 2, 16, 128, WeightFormat(8, 64)), {"kind": "fp"}),
        (gpu_mixtures.route_case("float32", 3, 8, k=2), {"scale": 1.001}),
        (gpu_mixtures.route_case("float32", 3, 8, k=2), {"normalise": False}),
        (gpu_mixtures.experts_case("float16", 3, 48, 40, 6, 2), {"activation": "relu"}),
        (gpu_mixtures.experts_case("float16", 3, 48, 40, 6, 2), {"first": 1}),
        (gpu_mixtures.experts_case("float16", 3, 48, 40, 6, 2), {"scales_input": True}),
        (gpu_mixtures.experts_case("float16", 3, 48, 40, 6, 2, fmt=WeightFormat(8, 32)), {"activation": "gelu"}),
        (gpu_carried.conv_case("float16", 40, 3, "silu", bias=False), {"activation": "none"}),
        (gpu_carried.scan_case("float16", 4, 2, 12, 16), {"dt_max": 1.4}),
        (gpu_carried.delta_case("float16", 4, 2, 12, 8), {"beta_scale": 1.49}),
        (gpu_rows.table_case([999_983], 16, 1.0), {"scale": 1.000001}),
        (gpu_rows.columns_case("float16", 2, 64, 0, 2, 16), {"eps": 1.0}),
        (gpu_rows.columns_case("float16", 2, 64, 0, 2, 16, layer=True), {"weight_offset": 0.0}),
        (gpu_rows.layer_norm_case("float16", (2, 64), with_sum=True, bias=True), {"eps": 1.0}),
    ],
    ids=str,
)
def test_the_comparison_notices_another_attribute(
    interpreter: Interpreter, case: gpu_rows.Case, changed: dict[str, float]
) -> None:
    with pytest.raises(AssertionError):
        run(interpreter, case, changed)


def test_the_comparison_notices_columns_in_another_order(interpreter: Interpreter) -> None:
    right = gpu_rows.concat_case("float16", 3, 16, 16)
    swapped = dataclasses.replace(right, inputs={"x0": right.inputs["x1"], "x1": right.inputs["x0"]})
    wrong = dataclasses.replace(swapped, expected=lambda x: right.expected({"x0": x["x1"], "x1": x["x0"]}))
    with pytest.raises(AssertionError):
        run(interpreter, wrong)


def test_the_comparison_notices_another_function(interpreter: Interpreter) -> None:
    right = gpu_rows.gated_case("float32", 2, 33, "gelu")
    for wrong in (
        dataclasses.replace(right, attrs={"activation": "gelu_tanh"}),
        dataclasses.replace(right, expected=lambda x: {"y": right.expected({"x": x["x"][:, ::-1]})["y"]}),
    ):
        with pytest.raises(AssertionError):
            run(interpreter, wrong)


def test_what_does_not_fit_is_refused() -> None:
    memory = Memory()
    x = memory.put("x", np.zeros((2, 8)), "float16")
    w = memory.put("w", np.zeros(8), "float32")
    gaps = dataclasses.replace(x, strides=(16, 1))
    program = {"program": "x0 w add"}
    with pytest.raises(KernelError, match="w must be float32"):
        elementwise.launches(program, {"x0": x, "w": dataclasses.replace(w, shape=(4,))}, {"y": x}, None, 80)
    with pytest.raises(KernelError, match="must have strides"):
        elementwise.launches(program, {"x0": gaps, "w": w}, {"y": x}, None, 80)
    with pytest.raises(KernelError, match="reads w, x0; got x0, y"):
        elementwise.launches(program, {"x0": x}, {"y": x}, None, 80)
    with pytest.raises(GraphError, match="no word 'cosh'"):
        elementwise.launches({"program": "x0 cosh"}, {"x0": x}, {"y": x}, None, 80)
    with pytest.raises(KernelError, match="activation must be one of"):
        swiglu.kernels({"activation": "relu2", "channels": 8}, {"x": "float16"}, 80)
    with pytest.raises(KernelError, match="1 to 512 angles"):
        table_launch.kernels({"half": 513}, {}, 80)
    with pytest.raises(KernelError, match="must lie in 8"):
        slice_launch.kernels({"start": 9, "end": 12, "step": 1, "columns": 8}, {"x": "float16", "y": "float16"}, 80)
    with pytest.raises(KernelError, match="group one of"):
        bytes_launch.kernels({"n": 8, "k": 8, "kind": "int", "group": 16}, {"x": "float16", "y": "float16"}, 80)
    with pytest.raises(KernelError, match="the form must be float or fp8 without groups, or int8 or int4"):
        head_products.kernels({"heads": 1, "columns": 8, "n": 8, "k": 8, "form": "int4"}, {"x": "float16"}, 80)
    with pytest.raises(KernelError, match="3 heads of 4 columns must have the 8"):
        head_products.kernels({"heads": 3, "columns": 4, "n": 8, "k": 8}, {"x": "float16"}, 80)
    kinds = {**dict.fromkeys(("x", "row", "kv"), "float16"), "w": "float32", "table": "float32"}
    with pytest.raises(KernelError, match="of which an even number rotates"):
        latent_kv_write.kernels({"heads": 1, "head_dim": 21, "v_dim": 16, "q_columns": 8}, kinds, 80)
    slot = {"slot_numbers": 16, "channels": 8}
    with pytest.raises(KernelError, match="there must be 1 to 16 inputs"):
        causal_conv.kernels({**slot, "activation": "silu", "width": 17}, kinds, 80)
    with pytest.raises(KernelError, match="states must be 1 to 256"):
        selective_scan.kernels({**slot, "states": 257}, kinds, 80)
    with pytest.raises(KernelError, match="a row hold 3 heads"):
        linear_attention.kernels({**slot, "heads": 3, "states": 4, "columns": 40}, kinds, 80)
    with pytest.raises(KernelError, match="the score must be one of softmax, sigmoid"):
        route.kernels({"k": 2, "normalise": True, "score": "sparsemixer", "experts": 8}, {"logits": "float32"}, 80)
    product = gpu_rows.bytes_case("bfloat16", 2, 48, 1080, WeightFormat(8, 32), split=True)
    tensors = {name: memory.put(f"p.{name}", values, dtype) for name, (values, dtype) in product.inputs.items()}
    y = memory.empty("p.y", (2, 48), "bfloat16")
    with pytest.raises(KernelError, match="need a workspace of"):
        bytes_launch.launches(product.attrs, tensors, {"y": y}, None, 80)
    attrs = {"start": 4, "heads": 2, "eps": 1e-5, "weight_offset": 0.0}
    with pytest.raises(KernelError, match="must lie in 8"):
        columns_launch.launches(attrs, {"x": x, "w": dataclasses.replace(w, shape=(3,))}, {"y": x}, None, 80)
