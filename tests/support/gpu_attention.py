"""Steps for the attention kernels of a GPU: pages in any order, ragged sequences, the launches and the definition."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from tolerances import gpu_attention_tolerance

from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor
from tensorwright.plugins.paged_attention import launch, op, work_list
from tensorwright.plugins.paged_attention.attention import first_seen
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.paged_attention.quantize import KV_LEVELS, quantize_heads, quantize_heads_e4m3
from tensorwright.plugins.paged_attention.tiles import Attention
from tensorwright.plugins.quantized_matmul.fp8 import to_codes
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

NAN = np.float32(np.nan)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    return from_bfloat16_bits(to_bfloat16_bits(x)).reshape(x.shape) if dtype == "bfloat16" else x.astype(np.float32)


@dataclass
class Step:
    """`sequences`: (queries, context) of each. Slots that nobody wrote are NaN, in the pages 0 and -1 too: page 0
    stands in block tables where a window has dropped a block, -1 where there never was one."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    int8_kv: bool = False
    e4m3_kv: bool = False
    """Whether the bytes of int8 pages are E4M3 numbers."""
    block_size: int = 32
    dtype: str = "float16"
    sm: int = 80
    seed: int = 0
    more_blocks: int = 1
    has_slopes: bool = False
    chunked: bool = False
    listed: bool = True
    """Whether the work of decodes is listed on the device, as on target cuda; TensorRT's plugin has no list."""
    rng: np.random.Generator = field(init=False)
    launch: ClassVar[Any] = launch

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.scale = self.head_dim**-0.5
        self.tokens = sum(queries for queries, _ in self.sequences)
        q = self.rng.standard_normal((self.tokens, self.heads * self.head_dim))
        self.q = rounded(q, self.dtype)
        self.sinks = self.rng.standard_normal(self.heads).astype(np.float32) * 2
        self.slopes = (2.0 ** -self.rng.uniform(0, 8, self.heads)).astype(np.float32)
        self.seq_starts = np.cumsum([0, *(queries for queries, _ in self.sequences)]).astype(np.int32)
        self.context_lens = np.array([context for _, context in self.sequences], np.int32)
        self._make_pages()

    def _make_pages(self) -> None:
        counts = [-(-context // self.block_size) for _, context in self.sequences]
        width = max(counts, default=0) + self.more_blocks
        free = iter(self.rng.permutation(sum(counts)) + 1)
        page = (sum(counts) + 1, self.kv_heads, self.block_size, self.head_dim)
        self.k, self.v = np.full((2, *page), NAN)
        self.block_tables = np.full((len(counts), width), -1, np.int32)
        for seq, (queries, context) in enumerate(self.sequences):
            dropped = int(first_seen(np.int64(context - queries), self.window, self.chunked)) // self.block_size
            for i in range(counts[seq]):
                if i < dropped:
                    self.block_tables[seq, i] = 0
                    continue
                block = self.block_tables[seq, i] = next(free)
                filled = min(context - i * self.block_size, self.block_size)
                shape = (self.kv_heads, filled, self.head_dim)
                self.k[block, :, :filled] = rounded(self.rng.standard_normal(shape), self.dtype)
                self.v[block, :, :filled] = rounded(self.rng.standard_normal(shape), self.dtype)
        if self.int8_kv:
            to_numbers = quantize_heads_e4m3 if self.e4m3_kv else partial(quantize_heads, levels=KV_LEVELS)
            (self.k, self.k_scales), (self.v, self.v_scales) = (to_numbers(x) for x in (self.k, self.v))

    @property
    def quantized(self) -> str:
        """The quantized type of the cache, or nothing."""
        return ("fp8" if self.e4m3_kv else "int8") if self.int8_kv else ""

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "scale": self.scale,
            "window": self.window, "softcap": self.softcap, "has_sinks": int(self.has_sinks),
            "int8_kv": int(self.int8_kv), "block_size": self.block_size, "has_slopes": int(self.has_slopes),
            "e4m3_kv": int(self.e4m3_kv), "chunked": self.chunked,
        }  # fmt: skip

    def memory(self) -> tuple[Memory, dict[str, Tensor], Tensor, Tensor | None]:
        """(memory, operands, out, workspace); what nobody writes of the last two is NaN."""
        memory = Memory()
        kv = "int8" if self.int8_kv else self.dtype
        inputs = {
            "q": memory.put("q", self.q, self.dtype),
            "k_pages": memory.put("k_pages", self._stored(self.k), kv),
            "v_pages": memory.put("v_pages", self._stored(self.v), kv),
            "seq_starts": memory.put("seq_starts", self.seq_starts, "int32"),
            "context_lens": memory.put("context_lens", self.context_lens, "int32"),
            "block_tables": memory.put("block_tables", self.block_tables, "int32"),
        }
        if self.int8_kv:
            inputs["k_scales"] = memory.put("k_scales", self.k_scales, "float32")
            inputs["v_scales"] = memory.put("v_scales", self.v_scales, "float32")
        for name, vector in self.vectors().items():
            if vector is not None:
                inputs[name] = memory.put(name, vector, "float32")
        shapes = {"block_tables": self.block_tables.shape}
        if self.listed:
            columns = work_list.columns(Attention.of(self.attrs, self.dtype))
            inputs["work"] = memory.empty("work", (len(self.sequences), columns), "int32")
            shapes["work"] = inputs["work"].shape
        size = self.launch.workspace_bytes(self.attrs, shapes) // 4
        workspace = memory.empty("workspace", (size,), "float32") if size else None
        return memory, inputs, memory.empty("out", (self.tokens, self.out_columns), self.dtype), workspace

    def _stored(self, x: np.ndarray) -> np.ndarray:
        return to_codes(x).view(np.int8) if self.e4m3_kv else x

    @property
    def out_columns(self) -> int:
        return self.heads * self.head_dim

    def vectors(self) -> dict[str, np.ndarray | None]:
        """The operands with one number for each head."""
        return {"sinks": self.sinks if self.has_sinks else None, "slopes": self.slopes if self.has_slopes else None}

    def specs(self) -> tuple[KernelSpec, ...]:
        """The kernels of a step: of the list, if there is one, and of attention."""
        if not self.listed:
            return self.launch.kernels(self.attrs, {"q": self.dtype}, self.sm)
        dtypes = {"q": self.dtype, "work": "int32"}
        return *work_list.kernels(self.attrs, dtypes, self.sm), *self.launch.kernels(self.attrs, dtypes, self.sm)

    def launches(self, inputs: dict[str, Tensor], out: Tensor, workspace: Tensor | None) -> list[Launch]:
        """What a step starts."""
        listing = {name: inputs[name] for name in ("q", "seq_starts", "context_lens", "block_tables")}
        first = work_list.launches(self.attrs, listing, inputs, None, self.sm) if self.listed else []
        return first + self.launch.launches(self.attrs, inputs, {"out": out}, workspace, self.sm)

    def run(self, interpreter: Interpreter, change: Any = None) -> np.ndarray:
        """What the launches write; `change` may alter their list first."""
        memory, inputs, out, workspace = self.memory()
        started = self.launches(inputs, out, workspace)
        interpreter.run(self.specs(), change(started) if change else started, memory)
        return memory.array("out").astype(np.float32)

    def expected(self) -> np.ndarray:
        # the definition multiplies what no query sees by zero, so there it must not be NaN
        arrays = [self.k, self.v, *((self.k_scales, self.v_scales) if self.int8_kv else ())]
        k, v, *scales = (np.nan_to_num(x) for x in arrays)
        cache = self.cache(k, v, *scales)
        some = np.diff(self.seq_starts) > 0  # the definition does not know sequences without a token
        starts = np.append(self.seq_starts[:-1][some], self.tokens)
        operands = [self.q, cache, starts, self.context_lens[some], self.block_tables[some]]
        attrs = {**self.attrs, "layer": 0}
        return op.reference([*operands, *self.vectors().values()], attrs, "float32")[0]

    def cache(self, k: np.ndarray, v: np.ndarray, *scales: np.ndarray) -> PagedCache:
        return PagedCache(k, v, self.quantized or "float32", *scales)

    def tolerance(self) -> float:
        q, (k, v) = np.abs(self.q).max(initial=0), (np.nanmax(np.abs(x), initial=0) for x in self._values())
        longest = int(self.context_lens.max(initial=1))
        return gpu_attention_tolerance(
            self.dtype, q, k, v, self.head_dim, longest, self.scale, self.softcap, self.quantized,
            longest if self.has_slopes else 0.0,
        )  # fmt: skip

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.int8_kv:
            return self.k, self.v
        return self.k * self.k_scales[..., None], self.v * self.v_scales[..., None]

    def check(self, interpreter: Interpreter) -> None:
        got, wanted = self.run(interpreter), self.expected()
        worst = np.abs(got - wanted).max(initial=0)
        assert worst <= self.tolerance(), f"off by {worst}, allowed {self.tolerance()}"
