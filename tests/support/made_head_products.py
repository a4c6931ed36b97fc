"""A plan that multiplies each head of random rows by its own matrix and nothing else, and the definition's result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from support.made_quantized import number
from support.plan_writer import BF16, EMBEDDING, F32, GATHER_ROWS, ROWS, TOKENS, PlanWriter, round_to
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.elementwise.op import encode
from tensorwright.plugins.head_products import op, quantized
from tensorwright.plugins.quantized_matmul.quantize import pack, quantize_weights
from tensorwright.runtime import _runtime

ELEMENTWISE, HEAD_PRODUCTS = 11, 16
QUANTIZED, WEIGHT_ONLY = 2, 3  # layouts in a plan


@dataclass
class MadeHeadProducts:
    """Rows of x that tokens name: as many as a result has columns. stride: the columns of a head of x."""

    heads: int = 3
    stride: int = 50
    inner: int = 38
    width: int = 20
    dtype: int = F32
    fmt: WeightFormat | None = None
    x: np.ndarray = field(init=False)
    w: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(11)
        x, w = (self.vocab, self.heads * self.stride), (self.heads, self.width, self.inner)
        self.x = round_to(self.dtype, rng.standard_normal(x).astype(np.float32))
        self.w = round_to(F32 if self.fmt else self.dtype, rng.standard_normal(w).astype(np.float32))

    @property
    def vocab(self) -> int:
        return self.heads * self.width

    def expected(self) -> np.ndarray:
        """The result for each token, [vocab, vocab]."""
        definition = quantized.reference if self.fmt else op.reference
        return definition([self.x, self.w], {"format": self.fmt}, "float32")[0]

    def plan(self) -> PlanWriter:
        plan = PlanWriter(self.vocab, 4096, 16, self.dtype)
        columns = self.x.shape[1]
        x = plan.buffer(TOKENS, F32, columns)
        plan.op(EMBEDDING, "x", outs=[x], weights=[plan.panels("x", self.x)], floats=[1.0])
        if self.dtype == BF16:
            wide, x = x, plan.buffer(TOKENS, BF16, columns)
            ints, floats = encode("x0")
            plan.op(ELEMENTWISE, "round", [wide], [x], ints=ints, floats=floats)
        y = plan.buffer(TOKENS, F32, self.vocab)
        plan.op(HEAD_PRODUCTS, "heads", [x], [y], [self._matrices(plan)], ints=[self.heads])
        plan.logits = plan.buffer(ROWS, F32, self.vocab)
        plan.op(GATHER_ROWS, "gather", [y], [plan.logits])
        return plan

    def _matrices(self, plan: PlanWriter) -> int:
        rows = -(-self.width // 16) * 16
        if self.fmt is None:
            padded = [np.pad(m, ((0, rows - self.width), (0, 0))) for m in self.w]
            return plan.panels("w", np.concatenate(padded))
        content = b"".join(pack(quantize_weights(m, self.fmt), self.fmt, self.inner).tobytes() for m in self.w)
        layout = WEIGHT_ONLY if self.fmt.keeps_activations else QUANTIZED
        index = plan.weight("w", number(self.fmt), layout, rows * self.heads, self.inner, content)
        plan.weights[index] = (*plan.weights[index][:-1], self.fmt.group)
        return index

    def run(self, folder: Path, tokens: list[int], threads: int = 2) -> np.ndarray:
        executor = _runtime.CpuExecutor(*self.plan().write(folder), threads, "map")
        executor.allocate([], len(tokens), len(tokens), 1)
        every = list(range(len(tokens)))
        return executor.step(tokens, every, [0, len(tokens)], [len(tokens)], every, [])
