"""What a step of a Llama model takes on this GPU if our kernels and cuBLAS make all of it: a probe, not an engine.

    python benchmarks/gpu/gpu_step.py [--shapes 1b 8b] [--json FILE]

Norms, rotary embedding with the KV write, attention and int4 products are our kernels; dense products, SwiGLU, the
gather and argmax are torch's. A CUDA graph replays the step, and the same step is started from Python without one. The
weights are random. First the logits of a small model are compared with torch's own in float32, so that what is timed
is a step and not a row of launches. The floor is each weight and each key and value read once at the rate of a copy,
or the operations at the rate of a large product, whichever takes longer. Needs a GPU, torch with CUDA, cuda-bindings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_ceilings import copy_rate, product_rate
from gpu_device import Device

from tensorwright.errors import MissingDependencyError
from tensorwright.plugins.gpu.launch import KernelSpec, Tensor
from tensorwright.plugins.paged_attention import launch as attention
from tensorwright.plugins.quantized_matmul import launch as int4
from tensorwright.plugins.rms_norm import launch as norm
from tensorwright.plugins.rotary import launch as rotary

DTYPE, BLOCK_SIZE, GROUP, EPS = "bfloat16", 32, 128, 1e-5
REPEATS, EAGER_REPEATS = 30, 5


@dataclass(frozen=True)
class Shape:
    """A Llama model. The head of the logits is a matrix of its own."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Returns name -> (N, K) of the products of a layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    def weights(self) -> int:
        """Returns the number of weights that a step reads, the head among them."""
        return self.layers * sum(n * k for n, k in self.products.values()) + self.vocab * self.hidden

    def attrs(self) -> dict[str, Any]:
        return {
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "rotary_dim": self.head_dim,
            "scale": self.head_dim**-0.5, "window": 0, "softcap": 0.0, "has_sinks": 0, "int8_kv": 0,
            "block_size": BLOCK_SIZE, "eps": EPS, "weight_offset": 0.0, "channels": self.hidden,
        }  # fmt: skip


SHAPES = {
    "tiny": Shape(256, 512, 2, 8, 2, 64, 1024),
    "1b": Shape(2048, 8192, 16, 32, 8, 64, 128256),
    "8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),
}
CASES = (("decode", 1, 1, 1024), ("decode", 8, 1, 1024), ("decode", 64, 1, 1024), ("decode", 1, 1, 16384),
         ("prefill", 1, 2048, 2048), ("prefill", 1, 8192, 8192))  # fmt: skip
"""(kind, sequences, tokens of each, context)"""


LINE = (
    "{case:34} graph {graph_ms:8.3f} ms, eager {eager_ms:8.3f} (started {started_ms:7.3f}), {launches} calls, "
    "floor {floor_ms:7.3f}: {share:.0%}"
)


def specs(sm: int, shapes: tuple[str, ...] = tuple(SHAPES)) -> Iterator[KernelSpec]:
    """Yields the kernels of all cases."""
    for shape in (SHAPES[name] for name in shapes):
        yield from _kernels(shape, sm)


def _kernels(shape: Shape, sm: int) -> Iterator[KernelSpec]:
    attrs = shape.attrs()
    yield from norm.kernels(attrs, {"x": DTYPE}, sm)
    yield from norm.kernels(attrs, {"x": DTYPE, "residual": DTYPE}, sm)
    yield from rotary.kernels(attrs, {"qkv": DTYPE, "k_pages": DTYPE}, sm)
    yield from attention.kernels(attrs, {"q": DTYPE}, sm)
    for n, k in shape.products.values():
        yield from int4.kernels({"n": n, "k": k, "group": GROUP}, dict.fromkeys(("x", "scales", "y"), DTYPE), sm)


def workspace_numbers(shape: Shape, seqs: int, rows: int, context: int) -> int:
    """Returns how many float32 numbers the kernels of a step need besides their operands."""
    tables = {"block_tables": (seqs, -(-context // BLOCK_SIZE))}
    products = [
        int4.workspace_bytes({"n": n, "k": k, "group": GROUP}, {"x": (rows, k)}) for n, k in shape.products.values()
    ]
    return max(attention.workspace_bytes(shape.attrs(), tables), *products) // 4 + 1


class Step:
    """One step: its tensors on the GPU, and the calls that make it, in order. A test computes on "cpu"."""

    def __init__(
        self, device: Any, shape: Shape, seqs: int, tokens: int, context: int, weights: str, place: str = "cuda"
    ) -> None:
        import torch

        self.torch, self.device, self.shape, self.weights, self.place = torch, device, shape, weights, place
        self.seqs, self.tokens, self.context = seqs, tokens, context
        self._make_weights()
        self._make_state()
        self.calls = self._calls()

    def _random(self, *size: int, scale: float) -> Any:
        torch = self.torch
        return torch.empty(size, dtype=torch.bfloat16, device=self.place).normal_(0.0, scale)

    def _make_weights(self) -> None:
        torch, shape = self.torch, self.shape
        torch.manual_seed(0)
        self.layers = []
        for _ in range(shape.layers):
            layer = {
                "norm1": torch.ones(shape.hidden, device=self.place),
                "norm2": torch.ones(shape.hidden, device=self.place),
            }
            for name, (n, k) in shape.products.items():
                if self.weights == "int4":
                    words = torch.randint(-(2**31), 2**31 - 1, (k // 8, n), dtype=torch.int32, device=self.place)
                    layer[name] = words, self._random(k // GROUP, n, scale=0.1 * k**-0.5)
                else:
                    layer[name] = self._random(n, k, scale=k**-0.5)
            self.layers.append(layer)
        self.embedding = self._random(shape.vocab, shape.hidden, scale=1.0)
        self.head = self._random(shape.vocab, shape.hidden, scale=shape.hidden**-0.5)
        self.norm = torch.ones(shape.hidden, device=self.place)

    def _make_state(self) -> None:
        """Makes a batch whose sequences have `context` positions, the last `tokens` of them in this step."""
        torch, shape, seqs, tokens, context = self.torch, self.shape, self.seqs, self.tokens, self.context
        width = -(-context // BLOCK_SIZE)
        order = torch.randperm(seqs * width, device=self.place).reshape(seqs, width)
        position = torch.arange(context - tokens, context, device=self.place)
        self.slots = (order[:, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE).reshape(-1).int()
        self.tables = order.int()
        self.starts = (torch.arange(seqs + 1, device=self.place) * tokens).int()
        self.lengths = torch.full((seqs,), context, dtype=torch.int32, device=self.place)
        self.ids = torch.randint(0, shape.vocab, (seqs * tokens,), device=self.place)
        self.last = (torch.arange(1, seqs + 1, device=self.place) * tokens - 1).long()
        angle = position[:, None] * 10000.0 ** (
            -torch.arange(shape.head_dim // 2, device=self.place) * 2 / shape.head_dim
        )
        self.table = torch.cat([angle.cos(), angle.sin()], -1).float().repeat(seqs, 1)
        pages = (seqs * width, shape.kv_heads, BLOCK_SIZE, shape.head_dim)
        self.pages = [(self._random(*pages, scale=1.0), self._random(*pages, scale=1.0)) for _ in range(shape.layers)]

    def _tensor(self, name: str, value: Any) -> Tensor:
        kind = {"torch.bfloat16": "bfloat16", "torch.float32": "float32", "torch.int32": "int32"}[str(value.dtype)]
        return Tensor.dense(name, value.data_ptr(), tuple(value.shape), kind)

    def _ours(self, module: Any, attrs: dict[str, Any], ins: dict[str, Any], outs: dict[str, Any]) -> list[Any]:
        """Returns calls that start `module`'s kernels on a stream."""
        dtypes = {name: self._tensor(name, value).dtype for name, value in {**ins, **outs}.items()}
        inputs = {name: self._tensor(name, value) for name, value in ins.items()}
        outputs = {name: self._tensor(name, value) for name, value in outs.items()}
        sm, workspace = self.device.sm, self._tensor("workspace", self.workspace)
        found = module.launches(attrs, inputs, outputs, workspace, sm)
        same = {t.address: t.address for t in (*inputs.values(), *outputs.values(), workspace)}
        return self.device.prepared(list(module.kernels(attrs, dtypes, sm)), found, same)

    def _product(self, x: Any, weight: Any, out: Any) -> list[Callable[[int], None]]:
        if isinstance(weight, tuple):
            words, scales = weight
            attrs = {"n": words.shape[1], "k": 8 * words.shape[0], "group": GROUP}
            return self._ours(int4, attrs, {"x": x, "packed": words, "scales": scales}, {"y": out})
        return [lambda _: self.torch.mm(x, weight.T, out=out)]

    def _calls(self) -> list[Callable[[int], None]]:
        torch, shape, rows = self.torch, self.shape, self.seqs * self.tokens
        attrs, made = shape.attrs(), {name: n for name, (n, _) in shape.products.items()}

        self.held: list[Any] = []  # launches know addresses alone

        def empty(*size: int) -> Any:
            self.held.append(torch.empty(size, dtype=torch.bfloat16, device=self.place))
            return self.held[-1]

        self.workspace = torch.empty(
            workspace_numbers(shape, self.seqs, rows, self.context), dtype=torch.float32, device=self.place
        )
        residual = [empty(rows, shape.hidden), empty(rows, shape.hidden)]
        y, delta, q = empty(rows, shape.hidden), empty(rows, shape.hidden), empty(rows, shape.heads * shape.head_dim)
        qkv, gate_up = empty(rows, made["qkv"]), empty(rows, made["gate_up"])
        gate, up = gate_up.chunk(2, 1)
        active, mixed = empty(rows, shape.intermediate), empty(rows, shape.heads * shape.head_dim)
        self.logits, kept = empty(self.seqs, shape.vocab), empty(self.seqs, shape.hidden)
        self.tokens_out = torch.empty(self.seqs, dtype=torch.int64, device=self.place)
        calls: list[Callable[[int], None]] = [
            lambda _: torch.index_select(self.embedding, 0, self.ids, out=residual[0])
        ]
        now = 0
        for at, (layer, (k_pages, v_pages)) in enumerate(zip(self.layers, self.pages, strict=True)):
            pages = {"k_pages": k_pages, "v_pages": v_pages}
            if at == 0:
                calls += self._ours(norm, attrs, {"x": residual[0], "w": layer["norm1"]}, {"y": y})
            else:
                calls += self._ours(norm, attrs, {"x": delta, "residual": residual[now], "w": layer["norm1"]},
                                    {"y": y, "sum": residual[1 - now]})  # fmt: skip
                now = 1 - now
            calls += self._product(y, layer["qkv"], qkv)
            calls += self._ours(rotary, attrs, {"qkv": qkv, "table": self.table, "slots": self.slots, **pages},
                                {"q": q, **pages})  # fmt: skip
            ragged = {"seq_starts": self.starts, "context_lens": self.lengths, "block_tables": self.tables}
            calls += self._ours(attention, attrs, {"q": q, **pages, **ragged}, {"out": mixed})
            calls += self._product(mixed, layer["o"], delta)
            calls += self._ours(norm, attrs, {"x": delta, "residual": residual[now], "w": layer["norm2"]},
                                {"y": y, "sum": residual[1 - now]})  # fmt: skip
            now = 1 - now
            calls += self._product(y, layer["gate_up"], gate_up)
            calls.append(lambda _: torch.ops.aten.silu.out(gate, out=active))
            calls.append(lambda _: torch.mul(active, up, out=active))
            calls += self._product(active, layer["down"], delta)
        calls += self._ours(norm, attrs, {"x": delta, "residual": residual[now], "w": self.norm},
                            {"y": y, "sum": residual[1 - now]})  # fmt: skip
        calls.append(lambda _: torch.index_select(y, 0, self.last, out=kept))
        calls += self._product(kept, self.head, self.logits)
        calls.append(lambda _: torch.argmax(self.logits, 1, out=self.tokens_out))
        return calls

    def run(self) -> None:
        """Starts the step on torch's current stream."""
        stream = self.torch.cuda.current_stream().cuda_stream if self.place == "cuda" else 0
        for call in self.calls:
            call(stream)

    def eager_seconds(self) -> tuple[float, float]:
        """Returns (wall seconds of a step started from Python, seconds until all of it was started)."""
        started, walls = [], []
        for _ in range(EAGER_REPEATS + 1):
            begin = time.perf_counter()
            self.run()
            started.append(time.perf_counter() - begin)
            self.torch.cuda.synchronize()
            walls.append(time.perf_counter() - begin)
        return statistics.median(walls[1:]), statistics.median(started[1:])

    def graph_seconds(self) -> float:
        torch, graph = self.torch, self.torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            self.run()
        times = []
        for _ in range(REPEATS + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        return statistics.median(times[3:])

    def floor(self, copy: float, product: float) -> float:
        """Returns the seconds that bytes or operations take at the ceilings."""
        shape, rows = self.shape, self.seqs * self.tokens
        layers = shape.weights() - shape.vocab * shape.hidden
        head = shape.vocab * shape.hidden
        per_weight = 0.5 + 2 / GROUP if self.weights == "int4" else 2.0
        kv = 4 * shape.kv_heads * shape.head_dim * shape.layers * self.seqs * self.context
        visible = sum(range(self.context - self.tokens + 1, self.context + 1)) * self.seqs
        operations = 2 * (rows * layers + self.seqs * head) + 4 * shape.heads * shape.head_dim * shape.layers * visible
        return max((layers * per_weight + head * 2 + kv) / copy, operations / product)


def reference(step: Step) -> Any:
    """Returns the logits of the step in float32, by torch alone. Call it before `run`, which writes the cache."""
    torch, shape, seqs, tokens = step.torch, step.shape, step.seqs, step.tokens

    def normed(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)

    def rotated(x: Any) -> Any:
        half = shape.head_dim // 2
        cos, sin = step.table[:, None, :half], step.table[:, None, half:]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = step.embedding[step.ids].float()
    where = step.tables.long()
    rows = torch.arange(step.context, device=step.place)
    mask = rows[None] > rows[step.context - tokens :, None]
    for layer, pages in zip(step.layers, step.pages, strict=True):
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        parts = (normed(x) @ layer["qkv"].float().T).reshape(seqs * tokens, -1, shape.head_dim).split(heads, 1)
        q, k, v = rotated(parts[0]), rotated(parts[1]), parts[2]
        outs = []
        for seq in range(seqs):
            mine = slice(seq * tokens, (seq + 1) * tokens)
            held = [page[where[seq]].float().transpose(0, 1).flatten(1, 2)[:, : step.context] for page in pages]
            for whole, new in zip(held, (k, v), strict=True):
                whole[:, step.context - tokens :] = new[mine].transpose(0, 1)
            keys, values = (whole.repeat_interleave(shape.heads // shape.kv_heads, 0) for whole in held)
            scores = q[mine].transpose(0, 1) @ keys.transpose(1, 2) * shape.head_dim**-0.5
            weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
            outs.append((weights @ values).transpose(0, 1).flatten(1))
        x = x + torch.cat(outs) @ layer["o"].float().T
        gate, up = (normed(x) @ layer["gate_up"].float().T).chunk(2, 1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer["down"].float().T
    return normed(x)[step.last] @ step.head.float().T


def largest_error(device: Any, place: str = "cuda") -> float:
    """Returns the largest distance of the tiny model's logits from torch's, against the largest logit: bfloat16 gives
    one to two hundredths. Takes decode steps of one and three sequences, and a prefill."""
    found = 0.0
    for seqs, tokens, context in ((1, 1, 700), (3, 1, 40), (2, 70, 100)):
        step = Step(device, SHAPES["tiny"], seqs, tokens, context, "bfloat16", place)
        wanted = reference(step)
        step.run()
        if place == "cuda":
            step.torch.cuda.synchronize()
        found = max(found, float((step.logits.float() - wanted).abs().max() / wanted.abs().max()))
    return found


def measure(device: Device, names: list[str], copy: float, product: float) -> list[dict[str, Any]]:
    import torch

    rows = []
    for name in names:
        for weights in ("bfloat16", "int4"):
            for kind, seqs, tokens, context in CASES:
                torch.cuda.empty_cache()
                step = Step(device, SHAPES[name], seqs, tokens, context, weights)
                wall, started = step.eager_seconds()
                seconds, floor = step.graph_seconds(), step.floor(copy, product)
                case = f"{name} {weights} {kind} {seqs} x {context if tokens == 1 else tokens}"
                rows.append({"case": case, "graph_ms": seconds * 1e3, "eager_ms": wall * 1e3,
                             "started_ms": started * 1e3, "launches": len(step.calls), "floor_ms": floor * 1e3,
                             "share": floor / seconds})  # fmt: skip
                print(LINE.format(**rows[-1]), flush=True)
                del step
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["1b", "8b"])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    import torch

    torch.zeros(1, device="cuda")
    error = largest_error(device)
    print(f"SM {device.sm}; logits of the tiny model: off by {error:.2%} of the largest")
    copy, (product, whose) = copy_rate(device), product_rate(device)
    print(f"copy {copy / 1e9:.0f} GB/s, product {product / 1e12:.0f} TFLOP/s ({whose})")
    rows = measure(device, args.shapes, copy, product)
    if args.json:
        facts = {"sm": device.sm, "error": error, "copy": copy, "product": product, "cases": rows}
        Path(args.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if error > 0.04:
        sys.exit("the logits are wrong")


if __name__ == "__main__":
    main()
