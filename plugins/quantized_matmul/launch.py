"""Makes the launches of weight-only int4 products: y = x w^T + bias.

    inputs   x [T, K], packed [ceil(K / 8), N] int32, scales [ceil(K / group), N] of x's type, bias [N] (may be absent)
    outputs  y [T, N]: x's type or float32; bias: either, too
attrs: n, k, group, and `narrow` where programs may take fewer columns (GEMM_TILES). Tensor cores multiply float16 and
bfloat16 from one token on, in blocks of 8, 16 or 64 rows. float32 has no tensor cores and uses the GEMV, at most 4
tokens at a time. If this gives a GPU too few blocks, K is split: the parts' sums go through the workspace and are added
in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    MULTIPROCESSORS,
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.quantized_matmul.gpu"
GROUPS = (32, 64, 128)
GEMV_TOKENS = (1, 2, 4)
"""The most rows of x that each specialisation of the GEMV takes."""
GEMM_ROWS = (8, 16, 64)
COLUMNS = 128
"""Columns of a program, but for the tensor cores' programs of few rows."""
GEMM_TILES = ((128, 64), (64, 64), (64, 32))
"""What programs of at most FEW_ROWS rows may take, if `narrow`: (columns, the least words of a split). The first one
that gives nine multiprocessors of ten a program is taken, else the last: a matrix of 2048 x 2048 has 64, 128 and 256
programs. On an H100 128 columns were 5 to 10 % faster than 64 where both gave it enough (docs/gpu.md). Engines of
TensorRT that were built before have kernels of 128 columns alone."""
FEW_ROWS = 16
GEMV_WORDS = {1: 16, 2: 8, 4: 8}
"""Rows of words at once, by rows of x: 8 or 4 KiB, so that registers allow four blocks of 128 threads."""
GEMV_STAGES = 3
"""Two steps are loaded while one is computed: 64 or 32 KiB in four blocks of a multiprocessor."""
NARROW_WORDS = 4
"""Rows if N is no multiple of 16: each word is then loaded alone, which takes registers; only for one token."""
GEMM_WARPS = {8: 4, 16: 4, 64: 8}
"""The warps of a block, by rows. Each takes 16 columns of every 16 * warps."""
GEMM_DEPTH = {8: 128, 16: 128, 64: 64}
"""The most elements of K at once, by rows: twice as many would take a thread's last registers."""
GEMM_STAGES = 3
"""One step is computed while two are loaded, which was the fastest on an H100 (docs/gpu.md). Two blocks fit the
smallest SM's 100 KiB of shared memory."""
SPLIT_UNIT = 16
"""Splits begin at multiples of this many words, 128 elements of K, which is the largest group."""
MIN_SPLIT = 64
"""The least words of a split where GEMM_TILES says nothing else."""
MAX_SPLITS = 16
BLOCKS_OF_AN_SM = {"gemv": 4, "gemm": 2}
"""The wanted number of blocks of threads for each multiprocessor."""
REDUCE_BLOCK = 1024


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of tokens."""
    _check_sizes(attrs)
    if dtypes["x"] == "float32":
        products = [_gemv(attrs, dtypes, tokens) for tokens in _gemv_tokens(attrs)]
    else:
        products = [_gemm(attrs, dtypes, rows, sm) for rows in GEMM_ROWS]
    return (*products, reduce_spec(attrs, dtypes))


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens, two if K is split. `workspace`: any type, of at least `workspace_bytes`."""
    x, y = inputs["x"], outputs["y"]
    check(attrs, inputs, y)
    tokens = x.shape[0]
    if tokens == 0:
        return []
    dtypes = {name: tensor.dtype for name, tensor in {**inputs, "y": y}.items()}
    splits, words = split(attrs, x.dtype, tokens, sm)
    shape = (splits, tokens, attrs["n"])
    needed = _part_bytes(splits, tokens, attrs)
    if needed and (workspace is None or workspace.shape[0] * workspace.item_bytes < needed):
        raise KernelError(f"weight_only_linear: {tokens} tokens need a workspace of {needed} bytes, got {workspace}")
    at = workspace.address if needed and workspace is not None else y.address
    parts = Tensor.dense("parts", at, shape, "float32")
    sizes = {"tokens": tokens, "N": attrs["n"], "splits": splits}
    values = {**inputs, "y": y, "parts": parts, **sizes, "K": attrs["k"], "words_of_a_split": words}
    rows = _rows(attrs, tokens, x.dtype)
    columns, blocks = ceil_div(attrs["n"], _tile(attrs, x.dtype, rows, sm)[0]), ceil_div(tokens, rows)
    if x.dtype == "float32":
        found = [make_launch(_gemv(attrs, dtypes, rows), grid_of(columns, splits, blocks), values)]
    else:
        found = [make_launch(_gemm(attrs, dtypes, rows, sm), grid_of(columns, blocks, splits), values)]
    if splits > 1:
        bias = {"bias": inputs["bias"]} if "bias" in inputs else {}
        grid = grid_of(ceil_div(tokens * attrs["n"], REDUCE_BLOCK))
        found.append(make_launch(reduce_spec(attrs, dtypes), grid, {"parts": parts, "y": y, **bias, **sizes}))
    return found


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns enough for every number of tokens up to that of shapes_max["x"], on every SM."""
    most = shapes_max["x"][0]
    needed = 0
    for dtype in ("float16", "float32"):
        tokens = 1
        while tokens <= most:
            rows = _rows(attrs, tokens, dtype)
            last = min(ceil_div(tokens, rows) * rows, most)
            found = [_part_bytes(split(attrs, dtype, last, sm)[0], last, attrs) for sm in MULTIPROCESSORS]
            if not any(found):  # more tokens give more blocks, and so no splits either
                break
            needed, tokens = max(needed, *found), last + 1
    return needed


def split(attrs: Mapping[str, Any], dtype: str, tokens: int, sm: int) -> tuple[int, int]:
    """Returns (parts of K, words of each part)."""
    words, rows = ceil_div(attrs["k"], 8), _rows(attrs, tokens, dtype)
    columns, least = _tile(attrs, dtype, rows, sm)
    blocks = ceil_div(attrs["n"], columns) * ceil_div(tokens, rows)
    wanted = _multiprocessors(sm) * BLOCKS_OF_AN_SM["gemv" if dtype == "float32" else "gemm"]
    splits = max(min(wanted // max(blocks, 1), words // least, MAX_SPLITS), 1)
    of_each = ceil_div(ceil_div(words, splits), SPLIT_UNIT) * SPLIT_UNIT
    return ceil_div(words, of_each), of_each


def _tile(attrs: Mapping[str, Any], dtype: str, rows: int, sm: int) -> tuple[int, int]:
    """Returns (columns of a program, the least words of a split) for programs of so many rows."""
    if dtype == "float32" or rows > FEW_ROWS or not attrs.get("narrow", False):
        return COLUMNS, MIN_SPLIT
    words = ceil_div(attrs["k"], 8)
    for columns, least in GEMM_TILES:
        programs = ceil_div(attrs["n"], columns) * max(min(words // least, MAX_SPLITS), 1)
        if 10 * programs >= 9 * _multiprocessors(sm):
            return columns, least
    return GEMM_TILES[-1]


def _multiprocessors(sm: int) -> int:
    return MULTIPROCESSORS.get(sm, MULTIPROCESSORS[89])


def _part_bytes(splits: int, tokens: int, attrs: Mapping[str, Any]) -> int:
    return 4 * splits * tokens * attrs["n"] if splits > 1 else 0


def _is_wide(attrs: Mapping[str, Any]) -> bool:
    return bool(attrs["n"] % 16 == 0)


def _gemv_tokens(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    return GEMV_TOKENS if _is_wide(attrs) else GEMV_TOKENS[:1]


def _rows(attrs: Mapping[str, Any], tokens: int, dtype: str) -> int:
    """Returns the rows of x that one program takes."""
    forms = _gemv_tokens(attrs) if dtype == "float32" else GEMM_ROWS
    return min((size for size in forms if size >= tokens), default=forms[-1])


def check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor) -> None:
    """Compares sizes, shapes and types with one another. Raises KernelError."""
    _check_sizes(attrs)
    n, k, group = attrs["n"], attrs["k"], attrs["group"]
    x = inputs["x"]
    tokens = x.shape[0]
    require_shape(x, (tokens, k), x.dtype)
    require_shape(inputs["packed"], (ceil_div(k, 8), n), "int32")
    require_shape(inputs["scales"], (ceil_div(k, group), n), x.dtype)
    for tensor, shape in ((y, (tokens, n)), *(((inputs["bias"], (n,)),) if "bias" in inputs else ())):
        require_shape(tensor, shape, tensor.dtype if tensor.dtype == "float32" else x.dtype)
    require_dense(*inputs.values(), y)


def pointers(dtypes: Mapping[str, str], names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the signature's pointers, with the bias only if there is one. Parts are float32 unless dtypes differs."""
    kinds = {"packed": "int32", "parts": "float32", **dtypes}
    return tuple((name, POINTERS[kinds[name]]) for name in names if name in kinds)


def _product(
    kernel: str, attrs: Mapping[str, Any], dtypes: Mapping[str, str], sizes: dict[str, int], warps: int, stages: int
) -> KernelSpec:
    k, group = attrs["k"], attrs["group"]
    tensors = pointers(dtypes, ("x", "packed", "scales", "bias", "y", "parts"))
    integers = ("tokens", "N", "K", "splits", "words_of_a_split")
    wide = ["words_of_a_split", *(["N"] if _is_wide(attrs) else []), *(["K"] if k % 16 == 0 else [])]
    return KernelSpec(
        kernel=kernel,
        module=MODULE,
        signature=(*tensors, *((name, "i32") for name in integers)),
        constants=(*(() if "bias" in dtypes else (("bias", None),)), ("GROUP", group), *sizes.items()),
        aligned=(*(name for name, _ in tensors), *wide),
        num_warps=warps,
        num_stages=stages,
    )


def _check_sizes(attrs: Mapping[str, Any]) -> None:
    n, k, group = attrs["n"], attrs["k"], attrs["group"]
    if group not in GROUPS or min(n, k) < 1 or ceil_div(k, 8) * n >= 2**31:
        raise KernelError(
            f"weight_only_linear: group must be one of {GROUPS} and k / 8 * n below 2^31; "
            f"got group {group}, k {k}, n {n}"
        )


def _gemv(attrs: Mapping[str, Any], dtypes: Mapping[str, str], tokens: int) -> KernelSpec:
    words = GEMV_WORDS[tokens] if _is_wide(attrs) else NARROW_WORDS
    sizes = {"TOKENS": tokens, "WORDS": words, "COLUMNS": COLUMNS, "STAGES": GEMV_STAGES}
    return _product("int4_gemv_kernel", attrs, dtypes, sizes, warps=4, stages=2)


def _gemm(attrs: Mapping[str, Any], dtypes: Mapping[str, str], rows: int, sm: int) -> KernelSpec:
    columns, _ = _tile(attrs, dtypes["x"], rows, sm)
    depth, warps = min(attrs["group"], GEMM_DEPTH[rows]), GEMM_WARPS[rows]
    sizes = {"DEPTH": depth, "ROWS": rows, "COLUMNS": columns, "STAGES": GEMM_STAGES, "WARPS": warps}
    return _product("int4_gemm_kernel", attrs, dtypes, sizes, warps=warps, stages=GEMM_STAGES)


def reduce_spec(attrs: Mapping[str, Any], dtypes: Mapping[str, str]) -> KernelSpec:
    tensors = pointers(dtypes, ("parts", "bias", "y"))
    aligned = (*(name for name, _ in tensors), *(("N",) if _is_wide(attrs) else ()))
    return KernelSpec(
        kernel="int4_reduce_kernel",
        module=MODULE,
        signature=(*tensors, ("tokens", "i32"), ("N", "i32"), ("splits", "i32")),
        constants=(*(() if "bias" in dtypes else (("bias", None),)), ("BLOCK", REDUCE_BLOCK)),
        aligned=aligned,
        num_warps=4,
    )
