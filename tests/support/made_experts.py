"""A plan that routes rows to random experts and nothing else, and what the definitions make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from support.made_quantized import number
from support.plan_writer import (
    BF16,
    EMBEDDING,
    F32,
    GATHER_ROWS,
    I32,
    MATMUL,
    ROWS,
    TOKENS,
    PlanWriter,
    interleave,
    round_to,
)
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.elementwise.op import encode
from tensorwright.plugins.experts import op as experts
from tensorwright.plugins.experts import quantized
from tensorwright.plugins.experts.gate import DEFAULTS
from tensorwright.plugins.quantized_matmul.quantize import pack, quantize_weights
from tensorwright.plugins.route import op as route
from tensorwright.runtime import _runtime

ELEMENTWISE, ROUTE, EXPERTS, ROUTE_BY_SCORE, EXPERTS_UP, EXPERTS_DOWN = 11, 14, 15, 28, 29, 30
QUANTIZED, WEIGHT_ONLY = 2, 3  # layouts in a plan
ABSENT = -1
FLOATS = ("scale", "epsilon", "least", "jitter")


@dataclass
class MadeExperts:
    """`hidden` rows of x and of logits, which tokens name. The vocabulary of the plan has as many tokens.

    logit_count: the experts that the route knows; 0 means those that there are. routing: attributes of the route beside
    k and normalise. corrected: whether the route has a bias. scaled: whether it has a number for each expert. gate:
    attributes of the experts beside the activation. biased: whether the experts' products have biases. identities: the
    experts behind `count` that give what they read. first, total: of how many experts those of the plan are which, if
    other ranks have the rest.
    """

    hidden: int = 40
    inner: int = 24
    count: int = 7
    logit_count: int = 0
    k: int = 3
    normalise: bool = True
    activation: str = "silu"
    dtype: int = F32
    fmt: WeightFormat | None = None
    routing: dict[str, Any] = field(default_factory=dict)
    corrected: bool = False
    scaled: bool = False
    gate: dict[str, Any] = field(default_factory=dict)
    biased: bool = False
    identities: int = 0
    first: int = 0
    total: int = 0
    x: np.ndarray = field(init=False)
    logits: np.ndarray = field(init=False)
    gate_up: np.ndarray = field(init=False)
    down: np.ndarray = field(init=False)
    correction: np.ndarray = field(init=False)
    expert_scales: np.ndarray = field(init=False)
    up_bias: np.ndarray = field(init=False)
    down_bias: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.x = round_to(self.dtype, normal(self.hidden, self.hidden))
        self.logits = round_to(self.dtype, 3 * normal(self.hidden, self.known))
        self.gate_up = round_to(self.weights, normal(self.count, self.halves * self.inner, self.hidden))
        self.down = round_to(self.weights, normal(self.count, self.hidden, self.inner))
        self.correction = normal(self.logits.shape[1]) / 4
        self.up_bias, self.down_bias = normal(*self.gate_up.shape[:2]), normal(*self.down.shape[:2])
        self.expert_scales = 1 + normal(self.logits.shape[1]) / 2

    @property
    def known(self) -> int:
        """The experts that the route knows."""
        return self.logit_count or self.total or self.count + self.identities

    @property
    def halves(self) -> int:
        """The runs of rows of the first product: gate and up, or up alone."""
        return 2 if self.gate.get("gated", True) else 1

    @property
    def weights(self) -> int:
        """The type that matrices are rounded to before they are stored."""
        return F32 if self.fmt else self.dtype

    def expected(self) -> np.ndarray:
        """The result for each token, [hidden, hidden]."""
        index, weights = self.routed()
        inner = "bfloat16" if self.dtype == BF16 else "float32"
        attrs = {"activation": self.activation, "inner": inner, "format": self.fmt, **self.gate}
        attrs |= {"identities": self.identities} if self.identities else {}
        attrs |= {"first": self.first, "total": self.total} if self.total else {}
        definition = quantized.reference if self.fmt else experts.reference
        biases = [self.up_bias, self.down_bias] if self.biased else []
        (y,) = definition([self.x, index, weights, self.gate_up, self.down, *biases], attrs, "float32")
        return y

    def routed(self) -> list[np.ndarray]:
        vectors = (self.correction if self.corrected else None, self.expert_scales if self.scaled else None)
        operands = [self.logits, *vectors]
        return route.reference(operands, {"k": self.k, "normalise": self.normalise, **self.routing}, "float32")

    def plan(self, observed: str = "y") -> PlanWriter:
        """observed: y, or the weights of the route."""
        plan = PlanWriter(self.hidden, 4096, 16, self.dtype)
        wide = self._table(plan, "x", self.x)
        logits = self._table(plan, "logits", self.logits)
        x = wide
        if self.dtype == BF16:
            x = plan.buffer(TOKENS, BF16, self.hidden)
            ints, floats = encode("x0")
            plan.op(ELEMENTWISE, "round", [wide], [x], ints=ints, floats=floats)
        index, weights = plan.buffer(TOKENS, I32, self.k), plan.buffer(TOKENS, F32, self.k)
        self._route(plan, logits, index, weights)
        y = plan.buffer(TOKENS, F32, self.hidden)
        up = self._matrices(plan, "gate_up", self.gate_up, self.halves == 2)
        down = self._matrices(plan, "down", self.down, False)
        activation = experts.ACTIVATIONS.index(self.activation)
        if self.gate or self.biased:
            self._halves(plan, [x, index, weights], [up, down], activation, y)
        else:
            ints = [self.count, activation, self.identities, self.first, self.total]
            plan.op(EXPERTS, "experts", [x, index, weights], [y], [up, down], ints=ints)
        if observed == "weights":  # as the first columns of a row of the vocabulary's width
            y = plan.buffer(TOKENS, F32, self.hidden)
            identity = plan.panels("identity", np.eye(self.hidden, self.k, dtype=np.float32))
            plan.op(MATMUL, "widen", [weights], [y], [identity], ints=[0, self.hidden])
        plan.logits = plan.buffer(ROWS, F32, self.hidden)
        plan.op(GATHER_ROWS, "gather", [y], [plan.logits])
        return plan

    def _route(self, plan: PlanWriter, logits: int, index: int, weights: int) -> None:
        attrs = {"k": self.k, "normalise": self.normalise, **route.DEFAULTS, **self.routing}
        if not (self.routing or self.corrected or self.scaled):
            plan.op(ROUTE, "route", [logits], [index, weights], ints=[self.k, int(self.normalise)])
            return
        ints = [route.SCORES.index(v) if k == "score" else int(v) for k, v in attrs.items() if k not in FLOATS]
        vectors = [
            plan.vector("correction", self.correction) if self.corrected else ABSENT,
            plan.vector("expert_scales", self.expert_scales) if self.scaled else ABSENT,
        ]
        floats = [attrs[name] for name in FLOATS]
        plan.op(ROUTE_BY_SCORE, "route", [logits], [index, weights], vectors, ints=ints, floats=floats)

    def _halves(self, plan: PlanWriter, ins: list[int], matrices: list[int], activation: int, y: int) -> None:
        """Adds both halves of experts that have biases, or another gate than matmul."""
        gate = {**DEFAULTS, **self.gate}
        inner = plan.buffer(TOKENS, self.dtype, self.k * self.inner)
        biases = [[plan.vector(n, b.reshape(-1))] if self.biased else [] for n, b in (
            ("up_bias", self.up_bias), ("down_bias", self.down_bias)
        )]  # fmt: skip
        scaled = gate["scales_input"]
        flags = (int(gate[flag]) for flag in ("gated", "squared", "limits_activated"))
        part = [self.first, self.total]
        ints = [self.count, activation, *flags, *part]
        floats = [gate["slope"], gate["limit"], gate["up_offset"]]
        first = ins if scaled else ins[:2]
        plan.op(EXPERTS_UP, "up", first, [inner], [matrices[0], *biases[0]], ints=ints, floats=floats)
        second = [inner, ins[1]] if scaled else [inner, *ins[1:]]
        plan.op(EXPERTS_DOWN, "down", second, [y], [matrices[1], *biases[1]], ints=[self.count, *part])

    def _table(self, plan: PlanWriter, name: str, rows: np.ndarray) -> int:
        buffer = plan.buffer(TOKENS, F32, rows.shape[1])
        plan.op(EMBEDDING, name, outs=[buffer], weights=[plan.panels(name, rows)], floats=[1.0])
        return buffer

    def _matrices(self, plan: PlanWriter, name: str, matrices: np.ndarray, gated: bool) -> int:
        padded = [interleave(*np.split(m, 2)) if gated else m for m in matrices]
        if self.fmt is None:
            rows = -(-padded[0].shape[0] // 16) * 16
            stacked = np.concatenate([np.pad(m, ((0, rows - len(m)), (0, 0))) for m in padded])
            return plan.panels(name, stacked)
        content = b"".join(_packed(self.fmt, m.tobytes(), *m.shape) for m in padded)
        rows = -(-padded[0].shape[0] // 16) * 16 * self.count
        layout = WEIGHT_ONLY if self.fmt.keeps_activations else QUANTIZED
        index = plan.weight(name, number(self.fmt), layout, rows, matrices.shape[2], content)
        plan.weights[index] = (*plan.weights[index][:-1], self.fmt.group)
        return index

    def run(self, folder: Path, tokens: list[int], threads: int = 2, observed: str = "y") -> np.ndarray:
        """What one step of all these tokens gives, [tokens, hidden]."""
        return _step(self._executor(folder, len(tokens), threads, observed), tokens)

    def alone(self, folder: Path) -> np.ndarray:
        """What a step of its own gives for each token, on one thread, [hidden, hidden]."""
        executor = self._executor(folder, 1, 1)
        return np.concatenate([_step(executor, [token]) for token in range(self.hidden)])

    def _executor(self, folder: Path, most: int, threads: int, observed: str = "y") -> _runtime.CpuExecutor:
        """Returns one for steps of at most so many tokens. It keeps nothing from one step to the next."""
        executor = _runtime.CpuExecutor(*self.plan(observed).write(folder), threads, "map")
        executor.allocate([], most, most, 1)
        return executor


def _step(executor: _runtime.CpuExecutor, tokens: list[int]) -> np.ndarray:
    every = list(range(len(tokens)))
    return executor.step(tokens, every, [0, len(tokens)], [len(tokens)], every, [])


@lru_cache(maxsize=1024)
def _packed(fmt: WeightFormat, matrix: bytes, rows: int, k: int) -> bytes:
    """The panels of a float32 matrix [rows, k]. The definition takes half a second for the matrices of one plan, and a
    test writes the same plan for each of its steps."""
    values = np.frombuffer(matrix, np.float32).reshape(rows, k)
    return pack(quantize_weights(values, fmt), fmt, k).tobytes()
