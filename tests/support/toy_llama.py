"""A small random llama with qkv biases: as a plan written by hand, and as plain numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from support import plan_writer as pw
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter, round_to


@dataclass
class ToyLlama:
    """Weights are rounded to `dtype`, so that plan and numpy forward read the same values."""

    dtype: int = F32
    layers: int = 2
    hidden: int = 56
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    inter: int = 72
    vocab: int = 101
    max_seq_len: int = 2048
    block_size: int = 16
    window: int = 0  # of the odd layers, in a cache group of their own
    chunked: bool = False  # the window begins at a multiple of its length
    sink_tokens: int = 0  # seen besides the window
    # Blocks that stay at a decision, first and last ones that always do, and positions between two decisions.
    budget: tuple[int, int, int, int] | None = None
    eps: float = 1e-5
    seed: int = 0
    w: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def matrix(n: int, k: int) -> np.ndarray:
            return round_to(self.dtype, rng.standard_normal((n, k)) / np.sqrt(k))

        self.w = {"embed": matrix(self.vocab, self.hidden) * 4, "norm": self._norm(rng)}
        self.w["embed"] = round_to(self.dtype, self.w["embed"])
        for i in range(self.layers):
            self.w |= {
                f"{i}.norm1": self._norm(rng),
                f"{i}.norm2": self._norm(rng),
                f"{i}.qkv": matrix(q + 2 * kv, self.hidden) * 2,
                f"{i}.bias": rng.standard_normal(q + 2 * kv).astype(np.float32),
                f"{i}.o": matrix(self.hidden, q),
                f"{i}.gate": matrix(self.inter, self.hidden),
                f"{i}.up": matrix(self.inter, self.hidden),
                f"{i}.down": matrix(self.hidden, self.inter),
            }
        self.inv_freq = (10000.0 ** (-np.arange(0, self.head_dim, 2) / self.head_dim)).astype(np.float32)
        self.scale = float(np.float32(self.head_dim**-0.5))

    def _norm(self, rng: np.random.Generator) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(self.hidden)).astype(np.float32)

    @property
    def groups(self) -> int:
        return 2 if self.window else 1

    def layer_window(self, layer: int) -> int:
        return self.window if layer % 2 else 0

    def plan(self) -> PlanWriter:
        p = PlanWriter(self.vocab, self.max_seq_len, self.block_size, self.dtype)
        if self.budget:
            p.states = [-(-9 * -(-self.max_seq_len // self.block_size) // 64) * 64]
        table = p.panels("embed", self.w["embed"])
        x, angles = p.buffer(TOKENS, F32, self.hidden), p.buffer(TOKENS, F32, self.head_dim)
        p.op(pw.EMBEDDING, "embed", outs=[x], weights=[table], floats=[1.0])
        inv_freq = p.vector("inv_freq", self.inv_freq)
        p.op(pw.ROTARY_TABLE, "rotary", outs=[angles], weights=[inv_freq], floats=[1.0])
        for layer in range(self.layers):
            x = self._plan_layer(p, layer, x, angles)
        last, normed = p.buffer(ROWS, F32, self.hidden), p.buffer(ROWS, self.dtype, self.hidden)
        p.logits = p.buffer(ROWS, F32, self.vocab)
        p.op(pw.GATHER_ROWS, "gather", ins=[x], outs=[last])
        norm = p.vector("norm", self.w["norm"])
        p.op(pw.RMS_NORM, "norm", ins=[last], outs=[normed], weights=[norm], floats=[self.eps, 0.0])
        p.op(pw.MATMUL, "lm_head", ins=[normed], outs=[p.logits], weights=[table], ints=[0, self.vocab])
        return p

    def _plan_layer(self, p: PlanWriter, i: int, x: int, angles: int) -> int:
        """Even layers take the fused forms, odd layers the plain ones: add and swiglu as instructions of their own."""
        q_cols, fused = self.heads * self.head_dim, i % 2 == 0
        qkv_cols = q_cols + 2 * self.kv_heads * self.head_dim
        kv = p.kv_layer(
            self.kv_heads, self.head_dim, self.layer_window(i), group=i % 2 if self.window else 0, chunked=self.chunked,
            sink_tokens=self.sink_tokens,
        )  # fmt: skip
        a, qkv = p.buffer(TOKENS, self.dtype, self.hidden), p.buffer(TOKENS, F32, qkv_cols)
        q, y = p.buffer(TOKENS, self.dtype, q_cols), p.buffer(TOKENS, self.dtype, q_cols)
        norm1, norm2 = (p.vector(f"{i}.{n}", self.w[f"{i}.{n}"]) for n in ("norm1", "norm2"))
        bias = p.vector(f"{i}.bias", np.pad(self.w[f"{i}.bias"], (0, -qkv_cols % 16)))
        w_qkv, w_o, w_down = (p.panels(f"{i}.{n}", self.w[f"{i}.{n}"]) for n in ("qkv", "o", "down"))
        p.op(pw.RMS_NORM, f"{i}.norm1", [x], [a], [norm1], floats=[self.eps, 0.0])
        p.op(pw.MATMUL, f"{i}.qkv", [a], [qkv], [w_qkv, bias], ints=[0, qkv_cols])
        p.op(pw.ROTARY_KV_WRITE, f"{i}.rotary", [qkv, angles], [q], ints=[kv, self.heads, self.head_dim])
        budget = [*self.budget, 1] if self.budget else []
        p.op(pw.PAGED_ATTENTION, f"{i}.attention", [q], [y], ints=[kv, self.heads, *budget], floats=[self.scale, 0.0])
        b, h = p.buffer(TOKENS, self.dtype, self.hidden), p.buffer(TOKENS, self.dtype, self.inter)
        out = p.buffer(TOKENS, F32, self.hidden)
        if fused:
            o = p.buffer(TOKENS, F32, self.hidden)
            p.op(pw.MATMUL, f"{i}.o", [y], [o], [w_o], ints=[0, self.hidden])
            p.op(pw.RMS_NORM, f"{i}.norm2", [o, x], [b, x], [norm2], floats=[self.eps, 0.0])
            w_gate_up = p.panels(f"{i}.gate_up", pw.interleave(self.w[f"{i}.gate"], self.w[f"{i}.up"]))
            p.op(pw.MATMUL, f"{i}.gate_up", [b], [h], [w_gate_up], ints=[1, self.inter])
            p.op(pw.MATMUL, f"{i}.down", [h, x], [out], [w_down], ints=[0, self.hidden])
        else:
            o, gate_up = p.buffer(TOKENS, F32, self.hidden), p.buffer(TOKENS, F32, 2 * self.inter)
            p.op(pw.MATMUL, f"{i}.o", [y], [o], [w_o], ints=[0, self.hidden])
            p.op(pw.ADD, f"{i}.add1", [x, o], [o])
            p.op(pw.RMS_NORM, f"{i}.norm2", [o], [b], [norm2], floats=[self.eps, 0.0])
            w_gate_up = p.panels(f"{i}.gate_up", np.concatenate([self.w[f"{i}.gate"], self.w[f"{i}.up"]]))
            p.op(pw.MATMUL, f"{i}.gate_up", [b], [gate_up], [w_gate_up], ints=[0, 2 * self.inter])
            p.op(pw.SWIGLU, f"{i}.swiglu", [gate_up], [h])
            p.op(pw.MATMUL, f"{i}.down", [h], [out], [w_down], ints=[0, self.hidden])
            p.op(pw.ADD, f"{i}.add2", [out, o], [out])
        return out

    def forward(self, ids: list[int]) -> np.ndarray:
        """Logits [len(ids), vocab] float64, rounded to `dtype` where the engine's activations are."""
        if self.budget:
            return self.forward_within_budget(ids)[0]
        x = self.w["embed"].astype(np.float64)[ids]
        for i in range(self.layers):
            qkv, rest = self._layer(i, x)
            x = rest(self._attention(qkv, self._angles(0, len(ids)), self.layer_window(i)))
        return self._logits(x)

    def forward_within_budget(self, ids: list[int]) -> tuple[np.ndarray, list[set[int]]]:
        """The same with a budget, an interval of positions after the other, and the blocks that are gone after each.

        Every position of an interval sees the blocks that no decision before it took away. A block's score is the sum
        of its shares of the softmax over all positions, heads and layers, and halved at each decision.
        """
        assert self.budget
        kept, sinks, recent, interval = self.budget
        size = self.block_size
        caches = [[np.zeros((0, self.heads, self.head_dim))] * 2 for _ in range(self.layers)]
        gone: set[int] = set()
        after: list[set[int]] = []
        scores = np.zeros(-(-len(ids) // size))
        logits = []
        for begin in range(0, len(ids), interval):
            end = min(begin + interval, len(ids))
            x = self.w["embed"].astype(np.float64)[ids[begin:end]]
            seen = np.arange(end)[None] <= np.arange(begin, end)[:, None]
            seen &= ~np.isin(np.arange(end) // size, list(gone))
            for i in range(self.layers):
                qkv, rest = self._layer(i, x)
                q, k, v = self._heads(qkv, self._angles(begin, end))
                caches[i] = [np.concatenate(pair) for pair in zip(caches[i], (k, v), strict=True)]
                p = self._softmax(q, caches[i][0], seen)
                np.add.at(scores, np.arange(end) // size, p.sum((0, 1)))
                x = rest(np.einsum("hqk,khd->qhd", p, caches[i][1]).reshape(end - begin, -1))
            logits.append(self._logits(x))
            if end % interval == 0:
                blocks = end // size
                held = [block for block in range(blocks) if block not in gone]
                may_go = [block for block in held if sinks <= block < blocks - recent]
                # Of equal scores the younger goes.
                order = sorted(may_go, key=lambda block: (scores[block], -block))
                gone |= set(order[: max(0, len(held) - kept)])
                scores /= 2
            after.append(set(gone))
        return np.concatenate(logits), after

    def _act(self, v: np.ndarray) -> np.ndarray:
        return v if self.dtype == F32 else round_to(self.dtype, v).astype(np.float64)

    def _rms(self, v: np.ndarray, w: np.ndarray) -> np.ndarray:
        return self._act(v / np.sqrt((v * v).mean(-1, keepdims=True) + self.eps) * w)

    def _angles(self, begin: int, end: int) -> np.ndarray:
        return (np.arange(begin, end, dtype=np.float32)[:, None] * self.inv_freq).astype(np.float64)

    def _layer(self, i: int, x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """q, k and v of a layer in one matrix, and what becomes of the layer's attention."""
        w = {k.split(".")[1]: v.astype(np.float64) for k, v in self.w.items() if k.startswith(f"{i}.")}

        def rest(y: np.ndarray) -> np.ndarray:
            out = x + self._act(y) @ w["o"].T
            b = self._rms(out, w["norm2"])
            gate = b @ w["gate"].T
            return out + self._act(gate / (1 + np.exp(-gate)) * (b @ w["up"].T)) @ w["down"].T

        return self._rms(x, w["norm1"]) @ w["qkv"].T + w["bias"], rest

    def _logits(self, x: np.ndarray) -> np.ndarray:
        return self._rms(x, self.w["norm"].astype(np.float64)) @ self.w["embed"].astype(np.float64).T

    def _heads(self, qkv: np.ndarray, angles: np.ndarray) -> list[np.ndarray]:
        """q, k and v, each [tokens, heads, head_dim]: those of a KV head stand once for each of its query heads."""
        t, half = qkv.shape[0], self.head_dim // 2
        heads = qkv.reshape(t, -1, self.head_dim).copy()
        turning = heads[:, : self.heads + self.kv_heads]
        low, high = turning[..., :half].copy(), turning[..., half:].copy()
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turning[..., :half], turning[..., half:] = low * cos - high * sin, high * cos + low * sin
        q, *kv = np.split(self._act(heads), [self.heads, self.heads + self.kv_heads], axis=1)
        return [q, *(np.repeat(a, self.heads // self.kv_heads, axis=1) for a in kv)]

    def _softmax(self, q: np.ndarray, k: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """[heads, queries, keys]"""
        scores = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * self.scale, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    def _attention(self, qkv: np.ndarray, angles: np.ndarray, window: int) -> np.ndarray:
        t = len(qkv)
        q, k, v = self._heads(qkv, angles)
        distance = np.arange(t)[:, None] - np.arange(t)[None, :]
        hidden = (distance < 0) | ((distance >= window) if window else False)
        if window and self.chunked:
            chunk = np.arange(t) // window
            hidden = (distance < 0) | (chunk[:, None] != chunk[None, :])
        if window:
            hidden &= (np.arange(t) >= self.sink_tokens) | (distance < 0)
        return np.einsum("hqk,khd->qhd", self._softmax(q, k, ~hidden), v).reshape(t, -1)
