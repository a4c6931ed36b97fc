"""Limits what each kernel may take of a multiprocessor, and lists the specialisations that docs/gpu-kernels.md shows.

A budget is a promise about occupancy. It limits the registers of all threads to the 65536 of a multiprocessor, and the
shared memory to what the smallest SM gives to one block, because code of SM 80 also runs on 86 and 89.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.errors import KernelError
from tensorwright.plugins.causal_conv import launch as causal_conv
from tensorwright.plugins.delta_rule import launch as delta_rule
from tensorwright.plugins.draft_features import launch as draft_features
from tensorwright.plugins.draw_tokens import launch as draw_tokens
from tensorwright.plugins.elementwise import launch as elementwise
from tensorwright.plugins.embedding import launch as embedding
from tensorwright.plugins.embedding import quantized_launch as quantized_embedding
from tensorwright.plugins.experts import launch as experts
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import KernelSpec
from tensorwright.plugins.head_products import launch as head_products
from tensorwright.plugins.latent_attention import launch as latent_kv_write
from tensorwright.plugins.layer_norm import launch as layer_norm
from tensorwright.plugins.paged_attention import latent_launch, work_list
from tensorwright.plugins.paged_attention import launch as attention
from tensorwright.plugins.quantized_matmul import bytes_launch, rounded_launch
from tensorwright.plugins.quantized_matmul import dense_launch as int4
from tensorwright.plugins.rg_lru import launch as rg_lru
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rms_norm import launch as rms_norm
from tensorwright.plugins.rotary import launch as rotary
from tensorwright.plugins.rotary import table_launch
from tensorwright.plugins.route import launch as route
from tensorwright.plugins.selective_scan import launch as selective_scan
from tensorwright.plugins.state_space_scan import launch as state_space_scan
from tensorwright.plugins.swiglu import launch as swiglu
from tensorwright.plugins.take_columns import launch as take_columns
from tensorwright.plugins.take_columns import slice_launch

SHOWN_SMS = (80, 86, 89, 90, 120)
MAX_SHARED = {**dict.fromkeys(SHOWN_SMS, 99 * 1024), 90: 227 * 1024}
"""Bytes that a block may have. SM 80 has 163 KiB, but its code must also run on SM 86 and 89."""
REGISTERS = 65536
"""Registers of one multiprocessor. All these SMs have as many."""


@dataclass(frozen=True)
class Budget:
    """The most that a kernel may take, on every SM."""

    registers: int
    shared_bytes: int
    spill_bytes: int = 0


BUDGETS = {
    # Kernels of rows and elements hold a few registers, so that a multiprocessor is full of their threads.
    "gather_rows_kernel": Budget(32, 0),
    "put_rows_kernel": Budget(32, 0),
    "take_columns_kernel": Budget(40, 0),
    "copy_columns_kernel": Budget(32, 0),
    "rotary_table_kernel": Budget(40, 0),
    "gated_kernel": Budget(40, 0),
    "elementwise_kernel": Budget(64, 0),
    "rms_norm_kernel": Budget(96, 1024),
    "add_rms_norm_kernel": Budget(96, 1024),
    "columns_norm_kernel": Budget(96, 1024),
    "add_layer_norm_kernel": Budget(96, 1024),
    "rotary_kv_write_kernel": Budget(64, 4096),
    "latent_kv_write_kernel": Budget(64, 0),
    # A multiprocessor holds 3 blocks of 128 threads, of the GEMM 1 of 256. Where ptxas spills it does so for one block
    # more: 4 bytes are one register, written and read once for each tile.
    "int4_gemv_kernel": Budget(152, 33792, 32),
    "int4_gemm_kernel": Budget(176, 49152, 32),
    # A multiprocessor holds 3 blocks of 128 threads, or 1 of 256.
    "bytes_gemm_kernel": Budget(200, 49152, 32),
    "round_rows_kernel": Budget(64, 1024),
    # As the GEMM of bytes.
    "rounded_gemm_kernel": Budget(200, 81920, 32),
    "rounded_sum_kernel": Budget(64, 0),
    "quantized_rows_kernel": Budget(40, 0),
    "route_kernel": Budget(64, 1024),
    "expert_order_kernel": Budget(64, 1024),
    # A multiprocessor holds 3 blocks of 128 threads, or 1 of 256; two stages of two matrices wait in shared memory.
    # Over int4 the two of a gate take most registers, where one block of 256 threads fits.
    "experts_up_kernel": Budget(255, 81920, 64),
    "experts_down_kernel": Budget(168, 49152, 32),
    "experts_sum_kernel": Budget(40, 0),
    "head_products_kernel": Budget(128, 81920),
    "int4_reduce_kernel": Budget(64, 0),
    # Eight blocks of 128 threads fit a multiprocessor; a tile of 64 x 128 elements goes through shared memory.
    "int4_dequantize_kernel": Budget(64, 20480),
    # A multiprocessor holds 2 blocks of 256 threads, each with a chunk of a row, or 1 of 512 with a row's candidates.
    # What is spilt there are weights of candidates, read again in each sum.
    "draw_maxima_kernel": Budget(64, 1024),
    "draw_sums_kernel": Budget(128, 2048),
    "draw_gather_kernel": Budget(128, 16384),
    "draw_finish_kernel": Budget(128, 4096, 96),
    # A multiprocessor holds one block of 256 threads, with two tiles of K and V on SMs of 99 KiB, three on 90, or two
    # blocks of 128 threads. The spilt values are addresses: 8 bytes are one register, written and read once for each
    # tile. On SM 90 the tiles over an int8 cache spill the most, and were the fastest that were timed.
    "attention_prefill_kernel": Budget(255, 192 * 1024, 448),
    "attention_decode_kernel": Budget(255, 74 * 1024, 64),
    "attention_combine_kernel": Budget(64, 2560),
    "attention_listed_decode_kernel": Budget(255, 74 * 1024, 64),
    "attention_listed_combine_kernel": Budget(64, 2560),
    "attention_list_kernel": Budget(40, 1024),
    # Recurrences: a state of up to 4096 numbers in the registers of 128 threads.
    "carried_conv_kernel": Budget(80, 1024),
    "carried_selective_scan_kernel": Budget(96, 8192),
    "carried_scan_kernel": Budget(128, 4096),
    "carried_delta_rule_kernel": Budget(128, 4096),
    "carried_rg_lru_kernel": Budget(80, 0),
    # A row of q and of the sum over latents is 512 columns wide, in registers both.
    "attention_latent_kernel": Budget(255, 99 * 1024, 256),
}
"""The budget of each kernel, by name. A kernel without a budget may not be shown or shipped."""


def check(kernel: CompiledKernel) -> None:
    """Raises KernelError for a kernel that has no budget or goes over it."""
    budget = BUDGETS.get(kernel.kernel)
    if budget is None:
        raise KernelError(f"{kernel.kernel} has no budget in plugins/gpu/budget.py")
    taken = (kernel.registers, kernel.shared_bytes, kernel.spill_bytes)
    allowed = (budget.registers, min(budget.shared_bytes, MAX_SHARED.get(kernel.sm, 99 * 1024)), budget.spill_bytes)
    if any(a > b for a, b in zip(taken, allowed, strict=True)):
        raise KernelError(
            f"{kernel.kernel} ({kernel.variant}) on SM {kernel.sm}: registers, bytes of shared memory and of spills "
            f"must be at most {allowed}, got {taken}"
        )


def shown(sm: int = 80) -> list[tuple[str, KernelSpec]]:
    """Returns (name, specialisation) of the kernels of an 8 B Llama in float16, and of their other forms.

    The names are the same for every SM; tiles and warps may differ.
    """
    half = dict.fromkeys(("x", "y", "scales", "qkv", "k_pages"), "float16")
    heads = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    product = {"n": 4096, "k": 4096, "group": 128}
    gemv = int4.kernels(product, dict.fromkeys(("x", "y", "scales"), "float32"), sm)
    small = int4.kernels({**product, "n": 2048, "k": 2048}, half, sm)
    *halves, dequantize = int4.kernels(product, half, sm)
    products = (*gemv[:-1], *halves)
    return [
        *_named("RMS norm, 4096 channels", rms_norm.kernels({"channels": 4096}, half, 80)),
        *_named(
            "sum and RMS norm, 4096 channels",
            rms_norm.kernels({"channels": 4096}, {**half, "residual": "float16"}, 80),
        ),
        *_rows(half),
        *_named("rotary and KV write, heads of 128", rotary.kernels({**heads, "rotary_dim": 128}, half, 80)),
        *_named(
            "the same, int8 cache, half of a head turned",
            rotary.kernels({**heads, "rotary_dim": 64}, {**half, "k_pages": "int8"}, 80),
        ),
        *_named(
            "the same, fp8 cache",
            rotary.kernels({**heads, "rotary_dim": 64, "e4m3_kv": 1}, {**half, "k_pages": "int8"}, 80),
        ),
        *((_int4_name(spec), spec) for spec in products),
        *((_int4_name(spec), spec) for spec in (*small[:2], dequantize)),
        *_bytes(half),
        *_mixture(half),
        *_draws(),
        *_attention(sm),
        *_latents(sm),
        *_recurrences(sm),
    ]


def _rows(half: dict[str, str]) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of rows and of single elements. `half`: a type for each name of a tensor."""
    runs = {"start": 0, "heads": 32, "width": 128, "columns": 6144, "in_place": True}
    kinds = {**half, "table": "float16"}
    softcap = {"program": "x0 30.0 div tanh 30.0 mul", "channels": 4096}
    half_of_a_row = {"start": 0, "end": 2048, "step": 1, "columns": 4096}
    summed = {**kinds, "residual": "float16", "b": "float32"}
    return [
        *_named("rows of a table, 4096 columns", embedding.kernels({"channels": 4096}, kinds, 80)),
        *_named("rows to places of a table, 4096 columns", draft_features.kernels({"channels": 4096}, kinds, 80)),
        *_named(
            "columns of a list, 4096 of 4096", take_columns.kernels({"columns": 4096, "channels": 4096}, kinds, 80)
        ),
        *_named("a range of columns", slice_launch.kernels(half_of_a_row, kinds, 80)),
        *_named("rotary table, heads of 128", table_launch.kernels({"half": 64}, kinds, 80)),
        *_named("gate, 14336 columns", swiglu.kernels({"activation": "silu", "channels": 14336}, kinds, 80)),
        *_named(
            "elementwise, a soft cap of float32",
            elementwise.kernels(softcap, dict.fromkeys(("x0", "y"), "float32"), 80),
        ),
        *_named("norm of heads of 128, in place", columns_launch.kernels(runs, kinds, 80)),
        *_named("sum and layer norm, 4096 channels", layer_norm.kernels({"channels": 4096}, summed, 80)),
    ]


def _bytes(half: dict[str, str]) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of weights of 8 bits: all of int8 in groups, and the largest of fp8."""
    product = {"n": 4096, "k": 4096, "group": 128, "kind": "int"}
    sums = bytes_launch.kernels(product, half, 80)[:-1]
    fp8 = bytes_launch.kernels({**product, "group": 0, "kind": "fp"}, half, 80)[-2]
    table = {"channels": 4096, "group": 128}
    return [
        *((f"int8 GEMM, groups of 128, {dict(spec.constants)['ROWS']} rows", spec) for spec in sums),
        (f"fp8 GEMM, {dict(fp8.constants)['ROWS']} rows", fp8),
        *_named("rows of an int8 table, 4096 columns", quantized_embedding.kernels(table, half, 80)),
        *_rounded(half),
    ]


def _rounded(half: dict[str, str]) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of products whose activations are rounded to int8."""
    rows, *products, total = rounded_launch.kernels({"n": 4096, "k": 4096}, half, 80)
    return [
        ("w8a8, rows of x rounded", rows),
        *((f"w8a8 GEMM, {dict(spec.constants)['ROWS']} rows", spec) for spec in products),
        ("w8a8, sum of parts", total),
    ]


def _mixture(half: dict[str, str]) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of a mixture of 128 experts of 768, of which a token takes 8, beside rows of 2048."""
    chosen = {"k": 8, "normalise": True, "experts": 128}
    attrs = {"activation": "silu", "experts": 128, "hidden": 2048, "inner": 768, "k": 8}
    order, *products, total = experts.kernels(attrs, half, 80)
    stage = {"experts_up_kernel": "first product", "experts_down_kernel": "second product"}
    return [
        *_named("route, 8 of 128 experts", route.kernels(chosen, {"logits": "float32"}, 80)),
        ("experts, order of the pairs", order),
        *((f"experts, {stage[spec.kernel]}, {dict(spec.constants)['ROWS']} rows", spec) for spec in products),
        *(
            (f"experts of int4, {stage[spec.kernel]}, {dict(spec.constants)['ROWS']} rows", spec)
            for spec in experts.kernels({**attrs, "form": "int4", "group": 128}, half, 80)[1:-1]
        ),
        ("experts, sum of the slots", total),
    ]


def _draws() -> list[tuple[str, KernelSpec]]:
    """Returns the kernels that draw tokens from rows of 128,256 logits."""
    maxima, sums, gather, finish = draw_tokens.kernels({"columns": 128_256, "max_rows": 512}, {}, 80)
    return [
        ("tokens, largest logits", maxima),
        ("tokens, weights within each level", sums),
        ("tokens, candidates", gather),
        ("tokens, draw", finish),
    ]


def _attention(sm: int) -> list[tuple[str, KernelSpec]]:
    """Returns an 8 B Llama's kernels; those with an int8 cache, a window and sinks; those of a Gemma's heads of 256."""
    llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "scale": 0.0884, "window": 0, "softcap": 0.0, "has_sinks": 0,
             "int8_kv": 0}  # fmt: skip
    forms = {
        "heads of 128": llama,
        "int8 cache, window, sinks": {**llama, "int8_kv": 1, "window": 4096, "has_sinks": 1},
        "fp8 cache": {**llama, "int8_kv": 1, "e4m3_kv": 1},
        "heads of 256, window, soft cap": {**llama, "head_dim": 256, "window": 4096, "softcap": 50.0},
        "slopes, chunks": {**llama, "kv_heads": 32, "has_slopes": 1, "window": 8192, "chunked": True},
    }
    plain = {"q": "float16"}
    found = []
    for name, attrs in forms.items():
        prefill, decode, _ = attention.kernels(attrs, plain, sm)
        found += [(f"attention, prefill, {name}", prefill), (f"attention, decode, {name}", decode)]
    widest = forms["heads of 256, window, soft cap"]
    found.append(("attention, sum of decode's splits", attention.kernels(widest, plain, sm)[2]))
    listed = {**plain, "work": "int32"}
    found += _named("attention, list of the work of decodes", work_list.kernels(llama, listed, sm))
    for name, attrs in forms.items():
        decode = attention.kernels(attrs, listed, sm)[1]
        found.append((f"attention, listed decode, {name}", decode))
    return [*found, ("attention, sum of listed splits", attention.kernels(widest, listed, sm)[2])]


def _latents(sm: int) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of a DeepSeek-V2-Lite: 16 heads over latents of 512 columns beside 64 that rotate."""
    rows = {"heads": 16, "head_dim": 576, "v_dim": 512}
    attrs = {**rows, "scale": 0.1147, "window": 0, "softcap": 0.0}
    decodes, prompts, _ = latent_launch.kernels(attrs, {"q": "float16"}, sm)
    absorbed = {"heads": 16, "columns": 192, "n": 512, "k": 128}
    kinds = dict.fromkeys(("x", "kv", "table"), "float16")
    return [
        *_named("rows of latents and of q", latent_kv_write.kernels({**rows, "q_columns": 192}, kinds, sm)),
        *(
            (f"products of heads, {dict(spec.constants)['ROWS']} rows", spec)
            for spec in head_products.kernels(absorbed, kinds, sm)
        ),
        ("attention over latents, decodes", decodes),
        ("attention over latents, prompts", prompts),
    ]


def _recurrences(sm: int) -> list[tuple[str, KernelSpec]]:
    """Returns the kernels of published sizes: Mamba 2.8B, Mamba-2 2.7B, Qwen3-Next and RecurrentGemma 2B."""
    kinds = {**dict.fromkeys(("x", "row"), "bfloat16"), **dict.fromkeys(("w", "bias"), "float32")}
    slot = {"slot_numbers": 1 << 20}
    conv = {**slot, "activation": "silu", "channels": 5120, "width": 4}
    selective = {**slot, "states": 16, "channels": 5120}
    scan = {**slot, "heads": 80, "groups": 1, "states": 128, "dt_min": 0.0, "dt_max": 1e38, "columns": 5376}
    delta = {**slot, "heads": 32, "key_heads": 16, "width": 128, "beta_scale": 1.0, "columns": 8192, "steps": 32}
    return [
        *_named("convolution of 4, with states", causal_conv.kernels(conv, kinds, sm)),
        *_named("selective scan, 16 states", selective_scan.kernels(selective, kinds, sm)),
        *_named("scan, 128 x 64 states", state_space_scan.kernels(scan, kinds, sm)),
        *_named("delta rule, 128 x 128 states", delta_rule.kernels(delta, kinds, sm)),
        *_named("gated linear recurrence", rg_lru.kernels({**slot, "channels": 2560}, kinds, sm)),
    ]


def _named(name: str, specs: tuple[KernelSpec, ...]) -> list[tuple[str, KernelSpec]]:
    return [(name, spec) for spec in specs]


def _int4_name(spec: KernelSpec) -> str:
    constants = dict(spec.constants)
    if "TOKENS" in constants:
        return f"int4 GEMV, float32, groups of 128, {constants['TOKENS']} tokens"
    if "ROWS" in constants:
        narrow = ", 64 columns" if constants["COLUMNS"] == 64 else ""
        return f"int4 GEMM, groups of 128, {constants['ROWS']} rows{narrow}"
    return "int4, words to numbers" if "COLUMNS" in constants else "int4, sum of K's parts"
