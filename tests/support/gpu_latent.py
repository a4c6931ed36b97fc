"""Latent attention on a GPU: steps for its attention kernel, and cases of the kernels of rows beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tolerances import sum_tolerance

from support.gpu_attention import NAN, Step
from support.gpu_rows import DTYPES, Arrays, Case
from support.gpu_stored import numbers_of, stacked
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.head_products import launch as head_products
from tensorwright.plugins.head_products.op import heads_of
from tensorwright.plugins.latent_attention import latent_kv_write as definition
from tensorwright.plugins.latent_attention import launch as latent_kv_write
from tensorwright.plugins.paged_attention import latent_launch
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.quantized_matmul.rows_launch import Form


@dataclass
class LatentStep(Step):
    """A step over a cache of latent rows, whose first v_dim columns are V too."""

    kv_heads: int = 1
    head_dim: int = 40
    v_dim: int = 32
    listed: bool = False
    launch: ClassVar[Any] = latent_launch

    @property
    def attrs(self) -> dict[str, Any]:
        return {**super().attrs, "v_dim": self.v_dim}

    @property
    def out_columns(self) -> int:
        return self.heads * self.v_dim

    def memory(self) -> tuple[Memory, dict[str, Tensor], Tensor, Tensor | None]:
        memory, inputs, out, workspace = super().memory()
        del inputs["v_pages"]
        return memory, inputs, out, workspace

    def cache(self, k: np.ndarray, v: np.ndarray, *scales: np.ndarray) -> PagedCache:
        return PagedCache(k, v[..., :0], "float32", v_dim=self.v_dim)

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        return self.k, self.k[..., : self.v_dim]


def write_case(dtype: str, tokens: int, heads: int, latent: int, rest: int, columns: int, *, rotates: bool) -> Case:
    """latent_kv_write of `heads` heads with `columns` columns of q; one token's slot is negative."""
    blocks, block_size, rng = 3, 16, np.random.default_rng(tokens + heads)
    slots = rng.permutation(blocks * block_size)[:tokens]
    slots[1:2] = -1
    inputs: dict[str, tuple[np.ndarray, str]] = {
        "q_latent": (rng.standard_normal((tokens, heads * latent)), dtype),
        "q": (rng.standard_normal((tokens, heads * columns)), dtype),
        "kv": (rng.standard_normal((tokens, latent + rest)), dtype),
        "slots": (slots, "int32"),
        "k_pages": (np.full((blocks, 1, block_size, latent + rest), NAN), dtype),
    }
    if rotates:
        angles = rng.uniform(-9, 9, (tokens, rest // 2))
        inputs["table"] = (np.concatenate([np.cos(angles), np.sin(angles)], axis=1), "float32")
    attrs = {"heads": heads, "head_dim": latent + rest, "v_dim": latent, "q_columns": columns}

    def expected(x: Arrays) -> Arrays:
        kept = np.flatnonzero(x["slots"] >= 0)
        cache = PagedCache(x["k_pages"].astype(np.float32), x["k_pages"][..., :0], "float32", v_dim=latent)
        wide = [x[name].astype(np.float32) for name in ("q_latent", "q", "kv")]
        table = x.get("table")
        y, _ = definition.reference([*wide, table, np.maximum(x["slots"], 0), cache], attrs, "float32")
        some = [array[kept] for array in wide]
        turned = None if table is None else table[kept]
        _, written = definition.reference([*some, turned, x["slots"][kept], cache], attrs, "float32")
        return {"y": y.astype(np.float64), "k_pages": written.k.astype(np.float64)}

    return Case(
        f"latent_kv_write-{dtype}-{tokens}x{heads}-{latent}+{rest}-{columns}" + "-rotates" * rotates,
        latent_kv_write,
        attrs,
        {},
        inputs,
        {"y": ((tokens, heads * (latent + rest)), dtype), "k_pages": "k_pages"},
        expected,
    )


def products_case(
    dtype: str, rows: int, heads: int, columns: int, n: int, k: int, fmt: WeightFormat | None = None
) -> Case:
    rng = np.random.default_rng(rows + heads)
    inputs: dict[str, tuple[np.ndarray, str]] = {"x": (rng.standard_normal((rows, heads * columns)), dtype)}
    attrs: dict[str, Any] = {"heads": heads, "columns": columns, "n": n, "k": k}
    if fmt is None:
        inputs["w"] = (rng.standard_normal((heads, n, k)), dtype)
    else:
        values, scales = stacked(fmt, (heads, n, k))
        inputs |= {"w": (values, "int8"), "scales": (scales, dtype)}
        form = Form.of(fmt)
        attrs |= {"form": form.name, "group": form.group}

    def operands(x: Arrays) -> tuple[np.ndarray, np.ndarray]:
        w = x["w"] if fmt is None else numbers_of(x["w"], x["scales"], fmt, k)
        return heads_of(x["x"], heads, k).astype(np.float64), w.astype(np.float64)

    def expected(x: Arrays) -> Arrays:
        read, w = operands(x)
        return {"y": np.einsum("thk,hnk->thn", read, w).reshape(rows, heads * n)}

    def error(x: Arrays) -> np.ndarray:
        read, w = operands(x)
        sizes = np.einsum("thk,hnk->thn", np.abs(read), np.abs(w)).reshape(rows, heads * n)
        return sum_tolerance("float32", k + 1, sizes)

    return Case(
        f"head_products-{fmt or 'float'}-{dtype}-{rows}x{heads}-{columns}-{n}x{k}",
        head_products,
        attrs,
        {},
        inputs,
        {"y": ((rows, heads * n), dtype)},
        expected,
        error=error,
    )


CASES = [
    *(write_case(dtype, 3, 5, 32, 8, 20, rotates=True) for dtype in DTYPES),
    write_case("bfloat16", 4, 2, 33, 6, 6, rotates=True),
    write_case("float16", 4, 2, 40, 5, 9, rotates=False),
    write_case("float16", 3, 3, 24, 0, 4, rotates=False),
    write_case("float16", 0, 3, 24, 8, 12, rotates=True),
    *(products_case(dtype, 5, 3, 20, 33, 12) for dtype in DTYPES),
    products_case("bfloat16", 17, 2, 96, 70, 96),
    products_case("float16", 65, 2, 70, 24, 70),
    products_case("float16", 0, 2, 16, 16, 16),
    *(products_case(dtype, 3, 2, 80, 33, 72, WeightFormat(4, 32)) for dtype in DTYPES),
    products_case("bfloat16", 18, 2, 130, 20, 130, WeightFormat(8, 128)),
    products_case("float16", 4, 3, 40, 40, 37, WeightFormat(8, 0, "fp")),
]
