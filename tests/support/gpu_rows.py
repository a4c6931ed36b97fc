"""Cases of the GPU kernels that compute rows from rows: what an op gets, and what its definition makes of it.

`run` starts a case's launches on a device or in the interpreter, and compares the results with the definition's.
It has more than 500 lines because each op has its cases here, and they share how an op's arrays are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from tolerances import function_tolerance, rounding_tolerance, sum_tolerance

from tensorwright.engine_format.weight_formats import W8A8, WeightFormat
from tensorwright.plugins.concat import launch as concat
from tensorwright.plugins.draft_features import launch as put_rows
from tensorwright.plugins.elementwise import launch as elementwise
from tensorwright.plugins.elementwise import op as elementwise_op
from tensorwright.plugins.embedding import launch as embedding
from tensorwright.plugins.embedding import quantized_launch
from tensorwright.plugins.embedding.op import rows_of
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.gather_rows import launch as gather_rows
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.layer_norm import launch as layer_norm
from tensorwright.plugins.layer_norm.op import normalise as centred
from tensorwright.plugins.quantized_matmul import bytes_launch, linear, rounded_launch
from tensorwright.plugins.quantized_matmul.fp8 import from_codes, to_codes
from tensorwright.plugins.quantized_matmul.quantize import Quantized, quantize_weights
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rms_norm.op import normalise
from tensorwright.plugins.rotary import rotary_table, table_launch
from tensorwright.plugins.swiglu import launch as swiglu
from tensorwright.plugins.take_columns import launch as take_columns
from tensorwright.plugins.take_columns import slice_launch

DTYPES = ("float32", "float16", "bfloat16")
Arrays = dict[str, np.ndarray]
FLOATS = 4.0
"""Inputs are normal numbers times this, so that activations are tested where they bend and where they are flat."""


@dataclass(frozen=True)
class Case:
    """One call of an op.

    inputs: name -> (values, dtype). outputs: name -> (shape, dtype), or the name of the input that it lies in.
    expected: the definition of every output, not rounded, of the inputs as they are stored. ulps: how far the kernel's
    float32 arithmetic may be from it, in spacings of float32 at the largest number, before the last rounding.
    """

    name: str
    launch: ModuleType
    attrs: Mapping[str, Any]
    of_kernels: Mapping[str, Any]
    inputs: Mapping[str, tuple[np.ndarray, str]]
    outputs: Mapping[str, tuple[tuple[int, ...], str] | str]
    expected: Callable[[Arrays], Arrays]
    ulps: float = 0.0
    error: Callable[[Arrays], np.ndarray] | None = None
    """How far the result may be from the definition before the last rounding, beside `ulps`, of the stored inputs."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """Outputs whose definition reads another output as it is stored."""
    starts: tuple[str, ...] | None = None
    """The kernels that the case is there to start; None means that it does not matter."""

    def __str__(self) -> str:
        return self.name


def run(interpreter: Interpreter, case: Case, changed: Mapping[str, Any] | None = None, sm: int = 80) -> None:
    """Runs a case and compares. changed: other attributes, which must make the comparison fail."""
    memory = Memory()
    inputs = {name: memory.put(name, values, dtype) for name, (values, dtype) in case.inputs.items()}
    stored = {name: memory.array(name) for name in inputs}
    outputs = {
        name: inputs[kind] if isinstance(kind, str) else memory.empty(f"out.{name}", *kind)
        for name, kind in case.outputs.items()
    }
    dtypes = {name: tensor.dtype for name, tensor in {**outputs, **inputs}.items()}
    attrs = {**case.attrs, **(changed or {})}
    specs = case.launch.kernels({**attrs, **case.of_kernels}, dtypes, sm)
    size = case.launch.workspace_bytes(attrs, {name: tensor.shape for name, tensor in inputs.items()})
    workspace = memory.empty("workspace", (size,), "int8") if size else None
    launches = case.launch.launches(attrs, inputs, outputs, workspace, sm)
    assert case.starts is None or [launch.kernel for launch in launches] == list(case.starts)
    interpreter.run(specs, launches, memory)
    got = {name: memory.array(tensor.name) for name, tensor in outputs.items()}
    wanted = case.expected({**stored, **{name: got[name] for name in case.sums.values()}})
    compare(case, got, wanted, dtypes, case.error(stored) if case.error else np.zeros(()))


def compare(case: Case, got: Arrays, wanted: Arrays, dtypes: Mapping[str, str], error: np.ndarray) -> None:
    assert set(got) == set(wanted)
    for name, exact in wanted.items():
        if dtypes[name] == "int32":
            np.testing.assert_array_equal(got[name], exact)
            continue
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        bound = function_tolerance("float32", float(largest), 1) * case.ulps + error
        bound = bound + rounding_tolerance(dtypes[name], np.abs(np.nan_to_num(exact, posinf=0, neginf=0)))
        np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(exact))
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(got[name][~finite], exact[~finite])
        assert (np.abs(got[name].astype(np.float64) - exact)[finite] <= bound[finite]).all(), name


def _floats(seed: int, *shape: int) -> np.ndarray:
    return FLOATS * np.random.default_rng(seed).standard_normal(shape)


# -- rows by their numbers --------------------------------------------------------------------------------------------


def embedding_case(dtype: str, tokens: int, channels: int, scale: float, first: int | None, out: str = "") -> Case:
    vocabulary = 11
    ids = np.random.default_rng(tokens).integers(0, vocabulary, tokens)
    attrs = {"scale": scale} if first is None else {"scale": scale, "first": first}
    if first is not None:
        ids = ids + first - 3  # some lie below the part of the table, none above

    def expected(x: Arrays) -> Arrays:
        rows, inside = rows_of(x["table"], x["ids"], first or 0, 0 if first is None else vocabulary)
        return {"y": rows.astype(np.float64) * np.float32(scale) * inside}

    return Case(
        f"embedding-{dtype}-{out or 'same'}-{tokens}x{channels}-{scale}-{first}",
        embedding,
        attrs,
        {"channels": channels},
        {"table": (_floats(1, vocabulary, channels), dtype), "ids": (ids, "int32")},
        {"y": ((tokens, channels), out or dtype)},
        expected,
        ulps=0.5,
    )


def gather_case(dtype: str, rows: int, channels: int) -> Case:
    tokens = 9
    chosen = np.random.default_rng(rows).integers(0, tokens, rows)
    return Case(
        f"gather_rows-{dtype}-{rows}x{channels}",
        gather_rows,
        {},
        {"channels": channels},
        {"x": (_floats(2, tokens, channels), dtype), "logit_rows": (chosen, "int32")},
        {"y": ((rows, channels), dtype)},
        lambda x: {"y": x["x"][x["logit_rows"]].astype(np.float64)},
    )


def put_case(dtype: str, rows: int, channels: int, table: str = "") -> Case:
    """Rows for distinct places of a table, which keeps its other rows. A negative number names none."""
    places = np.random.default_rng(rows).permutation(9)[:rows] - (rows > 1)

    def expected(x: Arrays) -> Arrays:
        kept = x["table"].astype(np.float64)
        for place, row in zip(x["ids"], x["x"], strict=True):
            if place >= 0:
                kept[place] = row
        return {"table": kept}

    return Case(
        f"put_rows-{dtype}-{table or 'same'}-{rows}x{channels}",
        put_rows,
        {},
        {"channels": channels},
        {
            "x": (_floats(3, rows, channels), dtype),
            "ids": (places, "int32"),
            "table": (_floats(4, 9, channels), table or dtype),
        },
        {"table": "table"},
        expected,
    )


def take_case(dtype: str, rows: int, columns: int, taken: int) -> Case:
    chosen = np.random.default_rng(taken).integers(0, columns, taken)
    return Case(
        f"take_columns-{dtype}-{rows}x{columns}-{taken}",
        take_columns,
        {},
        {"columns": columns, "channels": taken},
        {"x": (_floats(11, rows, columns), dtype), "columns": (chosen, "float32")},
        {"y": ((rows, taken), dtype)},
        lambda x: {"y": x["x"][:, x["columns"].astype(np.int64)].astype(np.float64)},
    )


def slice_case(dtype: str, rows: int, columns: int, start: int, end: int, step: int = 1, out: str = "") -> Case:
    count = len(range(columns)[start:end:step])
    return Case(
        f"slice-{dtype}-{out or 'same'}-{rows}x{columns}-{start}-{end}-{step}",
        slice_launch,
        {"start": start, "end": end, "step": step},
        {"columns": columns},
        {"x": (_floats(12, rows, columns), dtype)},
        {"y": ((rows, count), out or dtype)},
        lambda x: {"y": x["x"][:, start:end:step].astype(np.float64)},
    )


def concat_case(dtype: str, rows: int, *channels: int) -> Case:
    return Case(
        f"concat-{dtype}-{rows}x{'+'.join(map(str, channels))}",
        concat,
        {},
        {"channels": channels},
        {f"x{at}": (_floats(13 + at, rows, count), dtype) for at, count in enumerate(channels)},
        {"y": ((rows, sum(channels)), dtype)},
        lambda x: {"y": np.concatenate([x[f"x{at}"] for at in range(len(channels))], axis=1).astype(np.float64)},
    )


# -- rotary tables ----------------------------------------------------------------------------------------------------


def table_case(positions: list[int], half: int, scale: float) -> Case:
    frequencies = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)

    def expected(x: Arrays) -> Arrays:
        angle = (x["positions"].astype(np.float32)[:, None] * x["inv_freq"]).astype(np.float64)
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        attrs = {"scale": scale}
        (defined,) = rotary_table.reference([x["positions"], x["inv_freq"]], attrs, "float32")
        np.testing.assert_allclose(table * scale, defined, atol=1e-6)
        return {"table": table * np.float64(np.float32(scale))}

    return Case(
        f"rotary_table-{max(positions, default=0)}-{len(positions)}x{half}-{scale}",
        table_launch,
        {"scale": scale},
        {"half": half},
        {"positions": (np.array(positions, np.int32), "int32"), "inv_freq": (frequencies, "float32")},
        {"table": ((len(positions), 2 * half), "float32")},
        expected,
        ulps=2.5,
    )


# -- element by element -----------------------------------------------------------------------------------------------


def gated_case(dtype: str, tokens: int, channels: int, activation: str) -> Case:
    return Case(
        f"gated-{activation}-{dtype}-{tokens}x{channels}",
        swiglu,
        {"activation": activation},
        {"channels": channels},
        {"x": (_floats(3, tokens, 2 * channels), dtype)},
        {"y": ((tokens, channels), dtype)},
        lambda x: {"y": gated(x["x"], activation)},
        ulps=8,
    )


def elementwise_case(
    program: str,
    dtypes: Mapping[str, str],
    shape: tuple[int, ...],
    per_row: str = "",
    in_place: str = "",
    ulps: float = 8,
) -> Case:
    """dtypes: of the operands and of y. Values are positive where the program takes roots."""
    values = {}
    for seed, name in enumerate(dtypes):
        if name != "y":
            size = shape[-1:] if name == "w" else (*shape[:-1], 1) if name in per_row.split() else shape
            values[name] = _floats(seed, *size)
    if "sqrt" in program:
        values = {name: np.abs(x) + 0.25 for name, x in values.items()}

    def expected(x: Arrays) -> Arrays:
        given = [x.get(name) for name in elementwise_op.OPERANDS]
        wide = [None if a is None else a.astype(np.float64) for a in given]
        return {"y": np.broadcast_to(elementwise_op.evaluate(wide, program), shape)}

    kinds = "-".join(f"{name}:{dtype}" for name, dtype in dtypes.items())
    return Case(
        f"elementwise-{program.replace(' ', '_')}-{kinds}-{'x'.join(map(str, shape))}{in_place}",
        elementwise,
        {"program": program},
        {"channels": shape[-1], "per_row": per_row},
        {name: (x, dtypes[name]) for name, x in values.items()},
        {"y": in_place or (shape, dtypes["y"])},
        expected,
        ulps=ulps,
    )


# -- norms ------------------------------------------------------------------------------------------------------------


def _norm_ulps(width: int, largest: float) -> float:
    """Half of the sum's error through the root, and a few roundings, in spacings at the largest number."""
    return float(sum_tolerance("float32", width, largest) / function_tolerance("float32", largest, 1)) + 8


def columns_case(
    dtype: str,
    rows: int,
    columns: int,
    start: int,
    heads: int,
    width: int,
    *,
    layer: bool = False,
    per_head: bool = False,
    bias: bool = False,
    in_place: bool = False,
) -> Case:
    attrs = {"start": start, "heads": heads, "eps": 1e-5, "weight_offset": 1.0}
    shape = (heads, width) if per_head else (width,)
    inputs = {"x": (_floats(4, rows, columns) + 1.0, dtype), "w": (_floats(5, *shape), "float32")}
    inputs |= {"b": (_floats(6, *shape), "float32")} if bias else {}

    def expected(x: Arrays) -> Arrays:
        y = x["x"].astype(np.float64)
        runs = y[:, start : start + heads * width].reshape(rows, heads, width)
        made = centred(runs, x["w"], x.get("b"), 1e-5, 1.0) if layer else normalise(runs, x["w"], 1e-5, 1.0)
        y[:, start : start + heads * width] = made.reshape(rows, heads * width)
        return {"y": y}

    form = ("layer" if layer else "rms") + "-per_head" * per_head + "-bias" * bias + "-in_place" * in_place
    more = {"channels": width, "per_head": per_head} if layer else {"width": width}
    return Case(
        f"columns-{form}-{dtype}-{rows}x{columns}-{start}-{heads}x{width}",
        layer_norm if layer else columns_launch,
        attrs,
        {**more, "columns": columns, "in_place": in_place},
        inputs,
        {"y": "x" if in_place else ((rows, columns), dtype)},
        expected,
        ulps=_norm_ulps(width, 1.0),
    )


def layer_norm_case(dtype: str, shape: tuple[int, ...], *, with_sum: bool, bias: bool, per_head: bool = False) -> Case:
    of_w = shape[-2:] if per_head else shape[-1:]
    inputs = {"x": (_floats(7, *shape) + 1.0, dtype), "w": (_floats(8, *of_w), "float32")}
    inputs |= {"b": (_floats(9, *of_w), "float32")} if bias else {}
    inputs |= {"residual": (_floats(10, *shape), dtype)} if with_sum else {}

    def expected(x: Arrays) -> Arrays:
        rows = x["x"].astype(np.float64)
        if not with_sum:
            return {"y": centred(rows, x["w"], x.get("b"), 1e-5, 0.0)}
        stored = x["sum"].astype(np.float64)
        return {"y": centred(stored, x["w"], x.get("b"), 1e-5, 0.0), "sum": rows + x["residual"]}

    heads = {"per_head": True, "heads": shape[-2]} if per_head else {}
    return Case(
        f"layer_norm-{dtype}-{'x'.join(map(str, shape))}" + "-sum" * with_sum + "-bias" * bias + "-heads" * per_head,
        layer_norm,
        {"eps": 1e-5, "weight_offset": 0.0},
        {"channels": shape[-1], **heads},
        inputs,
        {"y": (shape, dtype), **({"sum": (shape, dtype)} if with_sum else {})},
        expected,
        ulps=_norm_ulps(shape[-1], 1.0),
        sums={"y": "sum"} if with_sum else {},
    )


# -- weights of 8 bits ------------------------------------------------------------------------------------------------


def restored(x: Arrays, fmt: WeightFormat, columns: int) -> np.ndarray:
    """Returns the rows of values [N, S] and scales [N, groups], in float64."""
    numbers = from_codes(x["values"].view(np.uint8)) if fmt.kind == "fp" else x["values"]
    group = fmt.group or columns
    scales = np.repeat(x["scales"].astype(np.float64), group, axis=1)[:, :columns]
    return numbers[:, :columns].astype(np.float64) * scales


def weights_of(fmt: WeightFormat, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int8 values [N, S] and float32 scales. Bytes that are behind a row of K are large, and no zeros."""
    made = quantize_weights(np.random.default_rng(n + k).standard_normal((n, k)).astype(np.float32), fmt)
    rows = made.values.reshape(n, -1)
    values = to_codes(rows).view(np.int8) if fmt.kind == "fp" else rows.copy()
    values[:, k:] = 99
    return values, made.scales.reshape(n, -1)


def bytes_case(
    dtype: str,
    tokens: int,
    n: int,
    k: int,
    fmt: WeightFormat,
    *,
    bias: str = "",
    out: str = "",
    split: bool | None = None,
) -> Case:
    values, scales = weights_of(fmt, n, k)
    inputs = {"x": (_floats(20, tokens, k), dtype), "values": (values, "int8"), "scales": (scales, dtype)}
    inputs |= {"bias": (_floats(21, n), bias)} if bias else {}

    def expected(x: Arrays) -> Arrays:
        y = x["x"].astype(np.float64) @ restored(x, fmt, k).T
        return {"y": y + x["bias"].astype(np.float64) if bias else y}

    def error(x: Arrays) -> np.ndarray:
        magnitude = np.abs(x["x"].astype(np.float64)) @ np.abs(restored(x, fmt, k)).T
        magnitude += np.abs(x["bias"].astype(np.float64)) if bias else 0.0
        return sum_tolerance("float32", k + 1, magnitude)

    kernels = ("bytes_gemm_kernel", *(("int4_reduce_kernel",) if split else ()))
    return Case(
        f"bytes-{fmt}-{dtype}-{out or 'same'}-{tokens}-{n}x{k}" + f"-{bias}" * bool(bias),
        bytes_launch,
        {"n": n, "k": k, "kind": fmt.kind, "group": fmt.group},
        {},
        inputs,
        {"y": ((tokens, n), out or dtype)},
        expected,
        error=error,
        starts=None if split is None else kernels,
    )


def rounded_case(
    dtype: str,
    tokens: int,
    n: int,
    k: int,
    *,
    bias: str = "",
    out: str = "",
    split: bool | None = None,
    spoilt: bool = False,
) -> Case:
    """A product of w8a8, whose sums are exact. spoilt: rows of x with a NaN, an infinity, zeros and tiny numbers."""
    values, scales = weights_of(W8A8, n, k)
    x = _floats(22, tokens, k)
    if spoilt:
        x[0, 3], x[1, 5], x[2], x[3] = np.nan, np.inf, 0, 1e-38
    inputs = {"x": (x, dtype), "values": (values, "int8"), "scales": (scales, "float32")}
    inputs |= {"bias": (_floats(21, n), bias)} if bias else {}

    def expected(x: Arrays) -> Arrays:
        w = Quantized(x["values"].reshape(n, 1, -1), x["scales"])
        y = linear.product(x["x"].astype(np.float32), w, W8A8)
        return {"y": (y + x["bias"].astype(np.float32) if bias else y).astype(np.float64)}

    kernels = ("round_rows_kernel", "rounded_gemm_kernel", *(("rounded_sum_kernel",) if split else ()))
    return Case(
        f"rounded-{dtype}-{out or 'same'}-{tokens}-{n}x{k}" + f"-{bias}" * bool(bias) + "-spoilt" * spoilt,
        rounded_launch,
        {"n": n, "k": k},
        {},
        inputs,
        {"y": ((tokens, n), out or dtype)},
        expected,
        starts=None if split is None else kernels,
    )


def quantized_embedding_case(dtype: str, tokens: int, channels: int, group: int, first: int = 0) -> Case:
    fmt, vocabulary = WeightFormat(8, group), 9
    values, scales = weights_of(fmt, vocabulary, channels)
    ids = np.random.default_rng(tokens).integers(-2, vocabulary, tokens) + first

    def expected(x: Arrays) -> Arrays:
        rows, inside = rows_of(restored(x, fmt, channels), x["ids"], first, vocabulary)
        return {"y": rows * np.float64(np.float32(1.7)) * inside}

    return Case(
        f"quantized_embedding-{dtype}-{tokens}x{channels}-{group}-{first}",
        quantized_launch,
        {"group": group, "scale": 1.7, "first": first},
        {"channels": channels},
        {"values": (values, "int8"), "scales": (scales, dtype), "ids": (ids, "int32")},
        {"y": ((tokens, channels), dtype)},
        expected,
        ulps=1,
    )


SAME = {dtype: dict.fromkeys(("x0", "x1", "y"), dtype) for dtype in DTYPES}
CASES = [
    *(embedding_case(dtype, 5, 72, 3.7, None) for dtype in DTYPES),
    embedding_case("bfloat16", 3, 65, 1.0, None),
    embedding_case("bfloat16", 2, 1100, 1.0, None, "float32"),
    embedding_case("float16", 9, 64, 0.5, 20),
    embedding_case("float16", 4, 8, 1.0, -2),
    embedding_case("float16", 0, 64, 1.0, None),
    *(gather_case(dtype, 4, 64) for dtype in DTYPES),
    gather_case("float16", 1, 1),
    gather_case("bfloat16", 3, 1025),
    *(put_case(dtype, 9, 64) for dtype in DTYPES),
    put_case("float32", 3, 1025, "bfloat16"),
    put_case("float16", 1, 1),
    put_case("float16", 0, 8),
    *(bytes_case(dtype, 3, 40, 128, WeightFormat(8, 64), bias=dtype, out="float32") for dtype in DTYPES),
    *(bytes_case(dtype, 5, 33, 96, WeightFormat(8, 0, "fp"), bias="float32") for dtype in DTYPES),
    *(bytes_case("bfloat16", tokens, 130, 256, WeightFormat(8, 128)) for tokens in (0, 1, 8, 16, 17)),
    bytes_case("float16", 2, 3, 101, WeightFormat(8, 32), bias="float16"),
    bytes_case("float16", 2, 16, 200, WeightFormat(8, 128, "fp")),
    bytes_case("bfloat16", 64, 48, 1080, WeightFormat(8, 32), bias="bfloat16", split=True),
    bytes_case("float32", 9, 48, 1536, WeightFormat(8, 0, "fp"), split=True),
    bytes_case("float16", 65, 48, 1024, WeightFormat(8, 128), split=False),
    *(rounded_case(dtype, 5, 40, 128, bias=dtype, out="float32", spoilt=True) for dtype in DTYPES),
    *(rounded_case("bfloat16", tokens, 130, 256) for tokens in (0, 1, 8, 16, 17)),
    rounded_case("float16", 2, 3, 101, bias="float16"),
    rounded_case("bfloat16", 64, 48, 1080, bias="bfloat16", split=True),
    rounded_case("float32", 9, 48, 1536, split=True),
    rounded_case("float16", 65, 48, 1024, split=False),
    *(quantized_embedding_case(dtype, 6, 72, 32) for dtype in DTYPES),
    quantized_embedding_case("float16", 3, 1100, 128, 50),
    *(take_case(dtype, 3, 40, 48) for dtype in DTYPES),
    take_case("float16", 2, 3, 1100),
    *(slice_case(dtype, 3, 64, 16, 48) for dtype in DTYPES),
    slice_case("bfloat16", 2, 37, 3, -1, 3, "float32"),
    slice_case("float16", 2, 2100, 1000, 2**63 - 1),
    slice_case("float16", 0, 8, 0, 4),
    *(concat_case(dtype, 3, 64, 32) for dtype in DTYPES),
    concat_case("float16", 2, 1, 7, 1030, 2, 3),
    concat_case("float16", 0, 8, 8),
    table_case([0, 1, 2, 17, 4095], 32, 1.0),
    table_case([999_983, 524_287, 131_071], 64, 1.1386),
    table_case([7], 5, 1.0),
    table_case([], 8, 1.0),
    *(gated_case(dtype, 3, 48, "silu") for dtype in DTYPES),
    *(gated_case("float32", 2, 33, activation) for activation in ACTIVATIONS),
    gated_case("bfloat16", 2, 1030, "gelu_tanh"),
    gated_case("float16", 0, 8, "silu"),
    *(elementwise_case("x0 x1 add", SAME[dtype], (3, 40)) for dtype in DTYPES),
    elementwise_case("x0 30.0 div tanh 30.0 mul", {"x0": "float32", "y": "float32"}, (2, 600), in_place="x0"),
    elementwise_case("x0", {"x0": "bfloat16", "y": "float32"}, (3, 33), ulps=0),
    elementwise_case("x0", {"x0": "float32", "y": "float16"}, (2, 64), ulps=0),
    elementwise_case("x0 w mul", {"x0": "float16", "w": "float32", "y": "float16"}, (3, 24)),
    elementwise_case("x0 x1 sigmoid mul x2 add x3 sub", {**dict.fromkeys(("x0", "x1", "x2", "x3", "y"), "bfloat16")},
                     (5, 17), per_row="x1"),
    elementwise_case("x0 x1 mul", SAME["float16"], (2, 3, 16), per_row="x0"),
    elementwise_case("x0 0.5 maximum 2.0 minimum", {"x0": "float32", "y": "float32"}, (1, 1)),
    *(elementwise_case(f"x0 {word}", {"x0": "float32", "y": "float32"}, (1, 1030)) for word in elementwise_op.UNARY),
    *(elementwise_case(f"x0 x1 {word}", SAME["float32"], (1, 64)) for word in elementwise_op.BINARY),
    elementwise_case("x0 x1 add", SAME["float16"], (0, 64)),
    *(columns_case(dtype, 3, 96, 16, 3, 16) for dtype in DTYPES),
    *(columns_case(dtype, 3, 96, 16, 3, 16, in_place=True) for dtype in DTYPES),
    columns_case("bfloat16", 2, 3 * 128, 0, 3, 128),
    columns_case("float16", 2, 37, 5, 4, 7, in_place=True),
    columns_case("float16", 2, 2300, 4, 1, 1100),
    columns_case("float32", 2, 40, 0, 40, 1),
    columns_case("float16", 0, 40, 0, 1, 8),
    columns_case("bfloat16", 2, 96, 16, 3, 16, layer=True),
    columns_case("float32", 2, 90, 7, 9, 7, layer=True, per_head=True, bias=True),
    columns_case("float16", 2, 64, 0, 2, 16, layer=True, bias=True, in_place=True),
    *(layer_norm_case(dtype, (3, 64), with_sum=False, bias=True) for dtype in DTYPES),
    *(layer_norm_case(dtype, (3, 63), with_sum=True, bias=True) for dtype in DTYPES),
    layer_norm_case("float16", (2, 4096), with_sum=True, bias=False),
    layer_norm_case("float16", (2, 3, 24), with_sum=False, bias=True, per_head=True),
    layer_norm_case("float16", (0, 64), with_sum=True, bias=True),
]  # fmt: skip
