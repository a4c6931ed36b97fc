"""The compiled code of every GPU kernel, for SM 80 and 90, emulated, against the definitions in numpy.

The launches are the real ones. Shapes are small, and cross every edge of a tile. tests/gpu runs the same on a GPU.
Attention over whole tiles is run for both SMs; the types of numbers and of caches take turns, so that each of them is
run for both. So do the other cases, so that each kernel is run for both, by different cases. What costs most of the
time is Triton's compiler, not the emulator.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import gpu_carried, gpu_draws, gpu_int4, gpu_latent, gpu_mixtures, gpu_rms_norm, gpu_rotary, gpu_rows
from support.gpu_attention import Step
from support.gpu_latent import LatentStep
from support.ptx.emulator import SMS, Emulator
from tensorwright.plugins.gpu import budget
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import Launch


def set_of(case: gpu_rows.Case) -> tuple[Any, ...]:
    """What a case shows of an op beside types and shapes: its function, the form of its weights, which attributes."""
    return case.launch, *map(case.attrs.get, ("program", "kind", "activation", "form")), *sorted(case.attrs)


def types_of(case: gpu_rows.Case) -> tuple[Any, ...]:
    """The element types of a case, with what computes other code for each: programs, quantized weights."""
    types = (tuple(dtype for _, dtype in case.inputs.values()), *map(str, case.outputs.values()))
    program = case.attrs.get("program")
    kind = types[0] if program is None else types
    return case.launch, program, case.attrs.get("kind"), "form" in case.attrs, kind


def covering(cases: list[gpu_rows.Case]) -> list[gpu_rows.Case]:
    """So many cases that each set and all types are met, not every set with every type; the others differ in their
    shapes. Sets that few cases have come first, since their cases meet types too."""
    found: list[gpu_rows.Case] = []
    seen: set[Any] = set()
    sizes = Counter(map(set_of, cases))
    for case in sorted(cases, key=lambda case: sizes[set_of(case)]):
        new = {set_of(case), ("types", *types_of(case))}
        if not new <= seen:
            found.append(case)
            seen |= new
    return found


CASES = [
    *covering([*gpu_rows.CASES, *gpu_mixtures.CASES, *gpu_latent.CASES, *gpu_carried.CASES, *gpu_draws.CASES]),
    gpu_mixtures.experts_case("bfloat16", 40, 72, 70, 2, 1, only=1),
]
MIXED = ((1, 40), (7, 50), (1, 1), (0, 3), (33, 33), (1, 1100), (2, 100))
"""Decodes with and without splits, prompts, chunks behind a prefix, a sequence that has nothing to do."""
LONG = ((90, 410), (1, 200))
"""A chunk before which whole tiles of positions lie, of which none is masked."""
PLAIN: dict[str, Any] = {"int8_kv": False}
INT8: dict[str, Any] = {"int8_kv": True}
FP8: dict[str, Any] = {"int8_kv": True, "e4m3_kv": True}
IN_TURN: list[tuple[dict[str, Any], int]] = [
    ({"dtype": "float32", **PLAIN}, 80),
    ({"dtype": "float32", **INT8}, 90),
    ({"dtype": "float32", **FP8}, 80),
    ({"dtype": "float16", **PLAIN}, 90),
    ({"dtype": "float16", **FP8}, 80),
    ({"dtype": "bfloat16", **INT8}, 80),
    ({"dtype": "bfloat16", "head_dim": 128, **FP8, "heads": 2, "kv_heads": 1}, 90),
]
"""The types with the caches that no other step has, each for one SM."""
FOR_BOTH_SMS: list[dict[str, Any]] = [{"dtype": "bfloat16", "head_dim": 128, "sequences": LONG}]
STEPS: list[dict[str, Any]] = [
    *(step for step, _ in IN_TURN),
    *FOR_BOTH_SMS,
    {"head_dim": 128, **INT8, "sequences": LONG, "heads": 2, "kv_heads": 1},
    {"dtype": "bfloat16", "softcap": 3.0, "has_sinks": True, "window": 37, "head_dim": 80, "block_size": 16},
    {"dtype": "bfloat16", "head_dim": 256, "window": 100, "sequences": LONG, "heads": 2, "kv_heads": 1},
    {"dtype": "bfloat16", "has_slopes": True, "head_dim": 64},
    {"window": 96, "chunked": True, "sequences": LONG},
    {"dtype": "bfloat16", "listed": False},
    {"has_slopes": True, "window": 96, "chunked": True, "sequences": LONG, "listed": False},
]
LATENT_STEPS: list[dict[str, Any]] = [
    *({"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")),
    {"dtype": "bfloat16", "heads": 20, "head_dim": 144, "v_dim": 128, "sequences": LONG},
    {"head_dim": 96, "v_dim": 96, "window": 37, "softcap": 3.0, "block_size": 16},
]
INT4 = [
    *((tokens, 129, 200, 64, "float32") for tokens in (1, 3, 4)),
    *((tokens, 129, 200, 64, "float16") for tokens in (1, 16, 65)),
    *((tokens, 80, 512, 128, "bfloat16") for tokens in (8, 9, 17)),
    (5, 48, 1080, 32, "bfloat16"),
    (2, 48, 1080, 32, "float32"),
]
"""Tokens, N, K, group, dtype."""


def norm(runner: Any, rows: int, channels: int, with_sum: bool, dtype: str) -> None:
    gpu_rms_norm.check(gpu_rms_norm.run(runner, rows, channels, dtype, with_sum), dtype)


def rotary(runner: Any, cache: str, head_dim: int, rotary_dim: int, dtype: str, kv_heads: int = 2) -> None:
    memory, attrs = Memory(), {"heads": 5, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    attrs["e4m3_kv"] = int(cache == "fp8")
    case = gpu_rotary.make(memory, 17, attrs, dtype, dtype if cache == "same" else "int8")
    if kv_heads:
        memory.blocks["slots"].data[1] = -1
    gpu_rotary.run(runner, memory, case, attrs)
    gpu_rotary.check(memory, attrs)


def int4(runner: Any, tokens: int, n: int, k: int, group: int, dtype: str, narrow: bool) -> None:
    memory = Memory()
    case = gpu_int4.make(memory, tokens, n, k, group, dtype, bias=dtype)
    case[0]["narrow"] = narrow
    gpu_int4.run(runner, memory, case, gpu_int4.started(memory, case, runner.sm), runner.sm)
    gpu_int4.check(memory, case)


def dense_int4(runner: Any, n: int, k: int, group: int, dtype: str) -> None:
    memory = Memory()
    gpu_int4.run_dense(runner, memory, gpu_int4.make(memory, 300, n, k, group, dtype, bias=dtype), runner.sm)


def rows(runner: Any, case: gpu_rows.Case) -> None:
    gpu_rows.run(runner, case, sm=runner.sm)


def attention(runner: Any, options: dict[str, Any]) -> None:
    Step(**{"sequences": MIXED, **options}, sm=runner.sm).check(runner)


def latent(runner: Any, options: dict[str, Any]) -> None:
    LatentStep(**{"sequences": MIXED, **options}, sm=runner.sm).check(runner)


def named(name: str, work: Callable[..., None], *arguments: Any) -> tuple[str, Callable[[Any], None]]:
    return name, functools.partial(
        work, **dict(zip(list(inspect.signature(work).parameters)[1:], arguments, strict=False))
    )


def name_of(step: dict[str, Any]) -> str:
    return "attention-" + "-".join(f"{option}:{value}" for option, value in step.items())


WORK = dict(
    [
        *(named(str(case), rows, case) for case in CASES),
        *(named(f"norm-{dtype}-3x65", norm, 3, 65, False, dtype) for dtype in gpu_rms_norm.DTYPES),
        *(named(f"norm-{dtype}-2x576-sum", norm, 2, 576, True, dtype) for dtype in gpu_rms_norm.DTYPES),
        *(named(f"rotary-{dtype}-same", rotary, "same", 16, 16, dtype) for dtype in gpu_rms_norm.DTYPES),
        *(named(f"rotary-{dtype}-int8", rotary, "int8", 80, 32, dtype) for dtype in gpu_rms_norm.DTYPES),
        *(named(f"rotary-{dtype}-fp8", rotary, "fp8", 80, 32, dtype) for dtype in gpu_rms_norm.DTYPES),
        named("rotary-bfloat16-no-pages", rotary, "same", 16, 16, "bfloat16", 0),
        *(named(f"int4-{'-'.join(map(str, each))}", int4, *each, False) for each in INT4),
        *(named(f"int4-narrow-{tokens}", int4, tokens, 80, 520, 64, "bfloat16", True) for tokens in (1, 9)),
        *(named(f"int4-dense-{dtype}", dense_int4, 129, 200, 64, dtype) for dtype in ("float16", "bfloat16")),
        *(named(name_of(step), attention, step) for step in STEPS),
        *(named("latent-" + "-".join(f"{k}:{v}" for k, v in step.items()), latent, step) for step in LATENT_STEPS),
    ]
)
"""What is run: takes an emulator, or what else has `sm` and `run`, and compares the results."""


def test_attention_has_every_type_with_every_cache() -> None:
    """The types and the caches each for both SMs."""
    met = set()
    for options in STEPS:
        step = Step(sequences=MIXED, **{key: options[key] for key in options.keys() & {"dtype", "int8_kv", "e4m3_kv"}})
        met |= {(step.dtype, (step.int8_kv, step.e4m3_kv), sm) for sm in turns()[name_of(options)]}
    types, caches = {dtype for dtype, _, _ in met}, {cache for _, cache, _ in met}
    assert (len(types), len(caches)) == (3, 3)
    assert {(dtype, cache) for dtype, cache, _ in met} == set(itertools.product(types, caches))
    assert {(dtype, sm) for dtype, _, sm in met} == set(itertools.product(types, SMS))
    assert {(cache, sm) for _, cache, sm in met} == set(itertools.product(caches, SMS))


FIRST = {case.launch: str(case) for case in reversed(CASES)}.values()
"""One case of each op: what a fast run has of them, beside attention and int4."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST or name.startswith(("attention", "int4")) else pytest.mark.slow)
        for name in WORK
    ],
)
def test_equals_the_definition(kernel_cache: Path, name: str) -> None:
    for sm in turns()[name]:
        print(f"for SM {sm}")  # pytest shows it if the comparison fails
        WORK[name](Emulator(sm, cache=kernel_cache))


class Noted(Exception):
    """Ends a piece of work before it runs anything."""


class Recorder:
    """Runs nothing, and notes what would run."""

    def __init__(self, sm: int):
        self.sm, self.kernels = sm, set[str]()

    def run(self, _: Any, launches: Sequence[Launch], memory: Memory) -> None:
        self.kernels |= {launch.kernel for launch in launches}
        raise Noted


def kernels_of(name: str, sm: int) -> set[str]:
    recorder = Recorder(sm)
    with contextlib.suppress(Noted):
        WORK[name](recorder)
    return recorder.kernels


@functools.cache
def turns() -> dict[str, list[int]]:
    """Returns the SMs that each piece of work is run for: that for which its kernels were run less often before, and a
    second one if a kernel is run for it by nothing else."""
    started = {(name, sm): kernels_of(name, sm) for name in WORK for sm in SMS}
    found = {name_of(step): list(SMS) for step in FOR_BOTH_SMS} | {name_of(step): [sm] for step, sm in IN_TURN}
    runs = Counter((kernel, sm) for name, sms in found.items() for sm in sms for kernel in started[name, sm])
    for name in [name for name in WORK if name not in found]:
        sm = min(SMS, key=lambda sm: sum(runs[kernel, sm] for kernel in started[name, sm]))
        found[name] = [sm]
        runs.update((kernel, sm) for kernel in started[name, sm])
    for name, sm in started:
        if any(not runs[kernel, sm] for kernel in started[name, sm]):
            found[name].append(sm)
            runs.update((kernel, sm) for kernel in started[name, sm])
    return found


@pytest.mark.parametrize("sm", SMS)
def test_each_kernel_that_engines_start_is_run(sm: int) -> None:
    """A kernel without a budget is not shipped (plugins/gpu/budget.py)."""
    kernels = {kernel for name, sms in turns().items() if sm in sms for kernel in kernels_of(name, sm)}
    assert kernels == set(budget.BUDGETS)
