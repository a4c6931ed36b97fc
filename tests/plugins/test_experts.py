"""experts: against the numpy definition, and that a row's bits depend neither on other rows nor on threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.isa_levels import PRESENT
from support.made_experts import MadeExperts
from support.made_matmul import UNIT, same_bits
from support.plan_writer import BF16, F32
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import EngineError, GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.experts import op, quantized, weight_only
from tensorwright.plugins.experts.gate import apply_gate
from tensorwright.plugins.gated import ACTIVATIONS
from tensorwright.plugins.quantized_matmul.weight_only import restored

pytestmark = pytest.mark.computes

FORMATS = ["", "int8", "int4", "uint4:g32:fp16", "mxfp4", "w4a8", "w8a8", "int4:wo", "fp8"]
SLOPE = 1.2
"""The largest slope of an activation."""


def bound(made: MadeExperts) -> np.ndarray:
    """How far the roundings of float32 sums, and of what lies between the products, may carry each result.

    A quantized product rounds its operand to steps of 1/127 of a group's largest element. The definition does the same;
    where it sees another last bit before, one element of the row may be a step away.
    """
    index, weights = made.routed()
    magnitude = np.zeros((made.hidden, made.hidden))
    scaled = made.gate.get("scales_input", False)
    for slot in range(made.k):
        for row in range(made.hidden):
            expert, share = index[row, slot] - made.first, weights[row, slot]
            if made.total and not 0 <= expert < made.count:
                continue  # another rank has it
            if expert >= made.count:  # an identity
                magnitude[row] += share * (made.k + 60) * UNIT * np.abs(made.x[row])
                continue
            up_down, x = made.gate_up[expert].astype(np.float64), made.x[row].astype(np.float64)
            x, share = (share * x, 1.0) if scaled else (x, share)
            bias = made.up_bias[expert] if made.biased else np.zeros(len(up_down))
            error = (made.hidden + 2) * UNIT * (np.abs(up_down) @ np.abs(x) + np.abs(bias))
            if scaled:
                error += (2.0**-8 if made.dtype == BF16 else 60 * UNIT) * (np.abs(up_down) @ np.abs(x))
                if rounds_rows(made):
                    error += np.abs(up_down).max(axis=1) * np.abs(x).max() / 127 * 1.5
            wide = up_down @ x + bias
            inner = apply_gate(wide[None], {"activation": made.activation, **made.gate})[0]
            inner_error = gate_error(made, wide, error)
            inner_error += (2.0**-8 if made.dtype == BF16 else 10 * UNIT) * np.abs(inner)
            down = np.abs(made.down[expert].astype(np.float64))
            magnitude[row] += share * (down @ (inner_error + (made.inner + 4) * UNIT * np.abs(inner)))
            magnitude[row] += share * (made.k + 60) * UNIT * (down @ np.abs(inner))
            if made.biased:
                magnitude[row] += share * (made.k + 60) * UNIT * np.abs(made.down_bias[expert])
            if rounds_rows(made):
                magnitude[row] += share * down.max(axis=1) * np.abs(inner).max() / 127 * 1.5
    return magnitude


def rounds_rows(made: MadeExperts) -> bool:
    """Whether the products round their operands to 8 bits."""
    return made.fmt is not None and not made.fmt.keeps_activations


def gate_error(made: MadeExperts, wide: np.ndarray, error: np.ndarray) -> np.ndarray:
    """How far an error of what the first product gives may carry the inner row. Limits carry no error further."""
    if made.halves == 1:
        return SLOPE * error * (2 * (np.abs(wide) + error) if made.gate.get("squared", False) else 1.0)
    (gate, up), (of_gate, of_up) = np.split(np.abs(wide), 2), np.split(error, 2)
    return SLOPE * of_gate * (up + made.gate.get("up_offset", 0.0)) + (gate + SLOPE * of_gate) * of_up


def make(fmt: str = "", **options: object) -> MadeExperts:
    return MadeExperts(fmt=parse_format(fmt) if fmt else None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_definition(fmt: str, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = make(fmt, dtype=dtype)
    result = made.run(tmp_path, list(range(made.hidden)))
    assert (np.abs(result - made.expected()) <= bound(made)).all()


GATES: dict[str, dict[str, object]] = {
    "GPT-OSS": {"biased": True, "gate": {"limit": 0.75, "slope": 1.702, "up_offset": 1.0}},
    "Step 3.7": {"gate": {"limit": 0.5, "limits_activated": True}},
    "biases": {"biased": True, "activation": "gelu"},
    "no gate": {"gate": {"gated": False, "squared": True}, "activation": "relu"},
    "Llama 4": {"gate": {"scales_input": True}, "normalise": False, "routing": {"score": "sigmoid"}, "k": 1},
}
"""Options of experts that are two instructions."""


@pytest.mark.parametrize(
    ("gate", "fmt", "dtype"),
    [(gate, fmt, (F32, BF16)[(i + j) % 2]) for i, gate in enumerate(GATES) for j, fmt in enumerate(FORMATS)],
)
def test_definition_of_other_gates(gate: str, fmt: str, dtype: int, tmp_path: Path) -> None:
    made = make(fmt, dtype=dtype, **GATES[gate])
    result = made.run(tmp_path, list(range(made.hidden)))
    assert (np.abs(result - made.expected()) <= bound(made)).all()


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize(
    ("gate", "fmt", "dtype"), [("GPT-OSS", "", BF16), ("GPT-OSS", "int4", F32), ("no gate", "", F32)]
)
def test_other_gates_give_a_row_the_same_bits_alone_and_in_company(
    gate: str, fmt: str, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = make(fmt, dtype=dtype, **GATES[gate])
    alone = made.alone(tmp_path)
    tokens = np.random.default_rng(5).integers(0, made.hidden, 150).tolist()
    assert same_bits(made.run(tmp_path, tokens, threads=3), alone[tokens])
    assert (np.abs(alone - made.expected()) <= bound(made)).all()


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_identities_give_what_they_read(
    fmt: str, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in company; tokens that take identities alone are among them, and any number of identities will do."""
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = make(fmt, dtype=dtype, count=5, identities=6)
    index, _ = made.routed()
    assert {int((row >= made.count).sum()) for row in index} == {0, 1, 2, 3}
    alone = made.alone(tmp_path)
    tokens = np.random.default_rng(5).integers(0, made.hidden, 150).tolist()
    assert same_bits(made.run(tmp_path, tokens, threads=3), alone[tokens])
    assert (np.abs(alone - made.expected()) <= bound(made)).all()


@pytest.mark.parametrize("fmt", ["", "w8a8"])
@pytest.mark.parametrize("gate", [None, "GPT-OSS"])
def test_a_rank_computes_the_experts_that_it_has(gate: str | None, fmt: str, tmp_path: Path) -> None:
    """Of 7 experts it has two. Some tokens take none of them and get zeros; all have the same bits in company."""
    made = make(fmt, count=2, first=3, total=7, **(GATES[gate] if gate else {}))
    index, _ = made.routed()
    nothing = ((index < 3) | (index > 4)).all(axis=1)
    assert 0 < nothing.sum() < made.hidden
    alone = made.alone(tmp_path)
    assert (alone[nothing] == 0).all()
    assert (np.abs(alone - made.expected()) <= bound(made)).all()
    tokens = np.random.default_rng(5).integers(0, made.hidden, 150).tolist()
    assert same_bits(made.run(tmp_path, tokens, threads=3), alone[tokens])


@pytest.mark.parametrize(("first", "total"), [(6, 7), (-1, 7), (3, 4), (3, 0)])
@pytest.mark.parametrize("gate", [None, "GPT-OSS"])
def test_experts_of_a_rank_must_lie_among_all(first: int, total: int, gate: str | None, tmp_path: Path) -> None:
    made = make(count=2, first=first, total=total, logit_count=7, **(GATES[gate] if gate else {}))
    with pytest.raises(EngineError, match=f"the experts from {first} on must lie among all {total}"):
        made.run(tmp_path, [0])


def test_a_number_behind_the_identities_is_refused(tmp_path: Path) -> None:
    made = make(count=3, identities=2, logit_count=6)
    with pytest.raises(EngineError, match="experts: index must be 0 to 4, is 5"):
        made.run(tmp_path, list(range(made.hidden)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("hidden", "inner", "count", "k"), [(16, 1, 1, 1), (17, 33, 5, 5), (70, 16, 3, 1)])
def test_sizes(hidden: int, inner: int, count: int, k: int, activation: str, tmp_path: Path) -> None:
    made = make(hidden=hidden, inner=inner, count=count, k=k, activation=activation, normalise=False)
    result = made.run(tmp_path, list(range(hidden)))
    assert (np.abs(result - made.expected()) <= bound(made)).all()


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_company(
    fmt: str, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps of one row and of hundreds, in any order, on any number of threads."""
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = make(fmt, dtype=dtype, inner=40)
    alone = made.alone(tmp_path)
    rng = np.random.default_rng(5)
    for size, threads in ((2, 1), (40, 2), (150, 3), (700, 2)):
        tokens = rng.integers(0, made.hidden, size).tolist()
        assert same_bits(made.run(tmp_path, tokens, threads=threads), alone[tokens])


def test_the_bits_are_those_of_every_instruction_set_for_whole_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("int8")
    results = []
    for level in PRESENT:
        monkeypatch.setenv("TENSORWRIGHT_ISA", level)
        results.append(made.run(tmp_path, list(range(made.hidden))))
    assert all(same_bits(result, results[0]) for result in results)


def test_a_plan_whose_route_knows_more_experts_is_refused_when_it_runs(tmp_path: Path) -> None:
    made = make(count=5, logit_count=7)
    made.logits[:, 6] = 100
    with pytest.raises(EngineError, match="index must be 0 to 4, is 6"):
        made.run(tmp_path, [0, 1])


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (1, Value("index", "float32", ("tokens", 2)), "index must be integers"),
        (2, Value("weights", "float32", ("tokens", 3)), "one for each of weights"),
        (3, Value("up", "float32", (4, 12, 7)), "up and down must be"),
        (4, Value("down", "float32", (4, 8, 5)), "up and down must be"),
    ],
)
def test_operands_that_do_not_fit(at: int, value: Value, message: str) -> None:
    operands = [
        Value("x", "float32", ("tokens", 8)),
        Value("index", "int32", ("tokens", 2)),
        Value("weights", "float32", ("tokens", 2)),
        Value("gate_up", "float32", (4, 12, 8)),
        Value("down", "float32", (4, 8, 6)),
    ]
    attrs: dict[str, object] = {"activation": "silu"}
    bias = Value("down_bias", "float32", (4, 8))
    assert op.infer([*operands, None, bias], attrs) == op.infer(operands, attrs)
    with pytest.raises(GraphError, match=r"a bias must be \[4, 12\], got \[4, 8\]"):
        op.infer([*operands, bias], attrs)
    for wrong, reason in (
        ({"squared": True}, "only an activation without a gate may be squared"),
        ({"slope": 2.0, "activation": "relu"}, "slope is for silu alone"),
        ({"activation": "tanh"}, "activation must be one of silu"),
    ):
        with pytest.raises(GraphError, match=reason):
            op.infer(operands, {**attrs, **wrong})
    assert op.infer(operands, attrs) == quantized.OP.infer(operands, attrs) == [("float32", ("tokens", 8))]
    operands[at] = value
    with pytest.raises(GraphError, match=message):
        op.infer(operands, attrs)


@pytest.mark.parametrize("name", ["int4:g32", "int8:g64", "fp8"])
def test_weight_only_experts_are_experts_of_the_restored_matrices(name: str) -> None:
    rng, fmt = np.random.default_rng(0), parse_format(name)
    x, weights = rng.standard_normal((5, 40)).astype(np.float32), rng.random((5, 2)).astype(np.float32)
    index = np.stack([rng.permutation(3)[:2] for _ in range(5)])
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 48, 40), (3, 40, 24)))
    (got,) = weight_only.reference([x, index, weights, up, down], {"activation": "silu", "format": fmt}, "float32")
    kept = [np.stack([restored(w, fmt, w.shape[1], "float32") for w in matrices]) for matrices in (up, down)]
    (wanted,) = op.reference([x, index, weights, *kept], {"activation": "silu"}, "float32")
    np.testing.assert_array_equal(got, wanted)
    (exact,) = op.reference([x, index, weights, up, down], {"activation": "silu"}, "float32")
    assert np.abs(got - exact).max() > 0
