"""Attention on a GPU against its numpy definition: the launches of enqueue, run by Triton's interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from support.gpu_attention import Step
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter
from tensorwright.plugins.gpu.launch import Launch, Tensor
from tensorwright.plugins.paged_attention.launch import launches, workspace_bytes
from tensorwright.plugins.paged_attention.tiles import SPLIT

FULL = {
    "list": ["attention_list_kernel"],
    "prefill": ["attention_prefill_kernel"],
    **{kernel: [f"attention_{form}{kernel}_kernel" for form in ("listed_", "")] for kernel in ("decode", "combine")},
}
"""The names of each kernel: that with a list first, if there are two."""
MIXED = ((1, 40), (7, 50), (1, 1), (0, 3), (33, 33), (1, 513), (2, 100))
"""Decodes, a prompt, chunks behind a prefix, a context of 1, a sequence that has nothing to do."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kv", ["same", "int8", "fp8"])
def test_mixed_steps(interpreter: Interpreter, dtype: str, kv: str) -> None:
    Step(MIXED, dtype=dtype, int8_kv=kv != "same", e4m3_kv=kv == "fp8").check(interpreter)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 600, "has_sinks": True, "int8_kv": True, "block_size": 64},
        {"window": 600, "int8_kv": True, "e4m3_kv": True, "dtype": "bfloat16"},
        {"window": 600, "chunked": True, "has_slopes": True},
    ],
)
def test_mixed_steps_without_a_list(interpreter: Interpreter, options: dict) -> None:
    """As TensorRT starts them."""
    Step((*MIXED, (1, 1300)), **options, listed=False).check(interpreter)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("context", [1, 2, 31, 32, 33, 63, 64, 65, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 1])
def test_decode_lengths_around_pages_tiles_and_splits(interpreter: Interpreter, context: int, listed: bool) -> None:
    Step(((1, context),), heads=2, kv_heads=1, head_dim=16, listed=listed).check(interpreter)


@pytest.mark.parametrize("context", [2, 63, 64, 65, 129])
def test_prompts_around_tiles(interpreter: Interpreter, context: int) -> None:
    """A group of two: 64 tokens fill a tile of 128 rows."""
    Step(((context, context),), heads=2, kv_heads=1, head_dim=16).check(interpreter)


@pytest.mark.parametrize("head_dim", [16, 24, 40, 64, 80, 96, 128, 192, 256])
def test_head_dims(interpreter: Interpreter, head_dim: int) -> None:
    Step(((1, 70), (9, 41)), head_dim=head_dim, dtype="bfloat16").check(interpreter)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (6, 2), (7, 1), (8, 8), (71, 1), (130, 1)])
def test_groups(interpreter: Interpreter, heads: int, kv_heads: int) -> None:
    """130 heads of one KV head take three programs in decode, two in prefill."""
    Step(((1, 70), (19, 41)), heads=heads, kv_heads=kv_heads, head_dim=16).check(interpreter)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [32, 160])
def test_block_sizes(interpreter: Interpreter, block_size: int, head_dim: int) -> None:
    """Pages smaller and larger than a tile of positions."""
    Step(((1, 200), (5, 135), (1, block_size)), block_size=block_size, head_dim=head_dim).check(interpreter)


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 100, 600, 5000])
def test_windows(interpreter: Interpreter, window: int) -> None:
    """Dropped blocks are page 0, which is NaN here."""
    steps = ((1, 300), (40, 300), (1, 1300), (3, 700), (70, 70), (1, 20))
    Step(steps, heads=2, kv_heads=1, head_dim=16, window=window).check(interpreter)


@pytest.mark.parametrize("chunk", [1, 31, 32, 33, 100, 512, 600, 5000])
def test_chunks(interpreter: Interpreter, chunk: int) -> None:
    """Decodes at both edges of a chunk, and prompts across several."""
    steps = ((1, 1200), (40, 300), (1, 1201), (3, 700), (70, 70), (1, 20))
    Step(steps, heads=2, kv_heads=1, head_dim=16, window=chunk, chunked=True).check(interpreter)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 3.0},
        {"has_slopes": True, "dtype": "float32", "heads": 6},
        {"has_slopes": True, "int8_kv": True, "window": 600, "softcap": 3.0},
        {"has_slopes": True, "has_sinks": True, "dtype": "bfloat16", "head_dim": 80, "block_size": 64},
        {"chunked": True, "window": 64, "has_slopes": True, "int8_kv": True, "dtype": "bfloat16", "block_size": 16},
        {"has_sinks": True},
        {"softcap": 3.0, "has_sinks": True, "window": 37, "dtype": "bfloat16"},
        {"has_sinks": True, "int8_kv": True, "head_dim": 80, "window": 600},
        {"softcap": 30.0, "int8_kv": True, "dtype": "float32", "block_size": 16},
        {"has_slopes": True, "has_sinks": True, "int8_kv": True, "e4m3_kv": True, "head_dim": 80, "window": 37},
        {"has_sinks": True, "window": 37, "int8_kv": True, "dtype": "bfloat16", "heads": 6, "block_size": 64},
        {"softcap": 3.0, "window": 100, "head_dim": 256, "dtype": "bfloat16"},
    ],
)
def test_options_crossed(interpreter: Interpreter, options: dict) -> None:
    Step(((1, 40), (7, 50), (1, 1), (20, 20), (1, 1200)), **options).check(interpreter)


@pytest.mark.parametrize(("window", "listed", "grid"), [
    (0, False, (2, 64, 8)), (700, False, (2, 64, 3)), (0, True, (16, 64, 1)), (700, True, (4, 64, 1)),
])  # fmt: skip
def test_contexts_of_more_than_the_most_splits(
    interpreter: Interpreter, window: int, listed: bool, grid: tuple
) -> None:
    """64 KV heads: at most 8 splits, so those of 4500 positions are of 1024, or by a list of 576."""
    step = Step(((1, 4500), (1, 9)), heads=64, kv_heads=64, head_dim=16, window=window, listed=listed)
    kept = [launch for launch in _launches(step) if launch.kernel in FULL["decode"]]
    assert kept[0].grid == grid
    narrow = _first_head(step, interpreter)
    worst = np.abs(narrow - step.expected()[:, : narrow.shape[1]]).max()
    assert worst <= step.tolerance()


def _first_head(step: Step, interpreter: Interpreter) -> np.ndarray:
    """The first KV head's columns: all 64 would take a minute."""

    def fewer(started: list[Launch]) -> list[Launch]:
        narrow = (*FULL["decode"], *FULL["combine"])
        return [dataclasses.replace(x, grid=(x.grid[0], 1, x.grid[2])) if x.kernel in narrow else x for x in started]

    return step.run(interpreter, fewer)[:, : step.head_dim]


def test_company_changes_no_bit_without_a_list(interpreter: Interpreter) -> None:
    """Alone or in a batch, of a wider block table too: the splits follow from a sequence's own context."""
    alone = Step(((1, 1300),), seed=3, listed=False)
    together = Step(((5, 9), (1, 1300), (1, 2000), (40, 90)), seed=4, more_blocks=9, listed=False)
    for step in (alone, together):
        rng = np.random.default_rng(5)
        seq = [context for _, context in step.sequences].index(1300)
        step.q[step.seq_starts[seq]] = rng.standard_normal(step.q.shape[1]).astype(np.float16)
        for pages in (step.k, step.v):
            for block in step.block_tables[seq, : -(-1300 // 32)]:
                pages[block] = rng.standard_normal(pages[block].shape).astype(np.float16)
    got = together.run(interpreter)
    np.testing.assert_array_equal(got[together.seq_starts[1]], alone.run(interpreter)[0])


def _launches(step: Step) -> list[Launch]:
    _, inputs, out, workspace = step.memory()
    return step.launches(inputs, out, workspace)


@pytest.mark.parametrize(
    ("sequences", "kernels"),
    [
        ((), []),
        (((0, 4),), []),
        (((1, 9),), ["decode"]),
        (((1, 900),), ["decode", "combine"]),
        (((9, 900),), ["prefill"]),
        (((1, 9), (1, 9)), ["decode"]),
        (((2, 9), (1, 900)), ["prefill", "decode", "combine"]),
    ],
)
def test_what_is_started(sequences: tuple, kernels: list[str]) -> None:
    """Two sequences of two tokens may be one of both and one of none, so both kernels look."""
    for listed in (False, True):
        names = ["list", *kernels] if listed and "decode" in kernels else kernels
        got = [launch.kernel for launch in _launches(Step(sequences, listed=listed))]
        assert got == [FULL[kernel][0 if listed else -1] for kernel in names]


def _set(kernel: str, name: str, change: Callable) -> Callable:
    def mutate(step: Step, started: list[Launch]) -> list[Launch]:
        full = FULL[kernel][0]
        spec = next(spec for spec in step.specs() if spec.kernel == full)
        at = [argument for argument, _ in spec.signature].index(name)
        swap = {full: lambda x: dataclasses.replace(x, args=(*x.args[:at], change(x.args[at]), *x.args[at + 1 :]))}
        return [swap.get(launch.kernel, lambda x: x)(launch) for launch in started]

    return mutate


def _regrid(kernel: str, change: Callable) -> Callable:
    def mutate(_: Step, started: list[Launch]) -> list[Launch]:
        return [
            dataclasses.replace(launch, grid=change(*launch.grid)) if launch.kernel == FULL[kernel][0] else launch
            for launch in started
        ]

    return mutate


def _moved(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, address=tensor.address + 64)


CHANGES = (
    ("prefill", "max_blocks", 1), ("prefill", "q_stride", 16), ("prefill", "out_stride", 16), ("prefill", "seqs", -2),
    ("prefill", "window", 1), ("prefill", "scale", 0.1), ("prefill", "softcap", 1.0), ("decode", "max_blocks", -1),
    ("decode", "q_stride", 16), ("decode", "out_stride", 16), ("decode", "window", 1), ("decode", "scale", 0.1),
    ("decode", "softcap", 1.0), ("combine", "items", 1), ("combine", "out_stride", 16), ("list", "items", 1),
    ("list", "window", -200),
)  # fmt: skip
MUTATIONS = {
    **{f"{kernel} {name} + {by}": _set(kernel, name, lambda x, by=by: x + by) for kernel, name, by in CHANGES},
    "prefill one tile less": _regrid("prefill", lambda x, y, z: (x - 1, y, z)),
    "prefill half the heads": _regrid("prefill", lambda x, y, z: (x, y - 1, z)),
    "decode one item less": _regrid("decode", lambda x, y, z: (x - 1, y, z)),
    "decode one head less": _regrid("decode", lambda x, y, z: (x, y - 1, z)),
    "list one sequence less": _regrid("list", lambda x, y, z: (x - 1, y, z)),
    "combine one head less": _regrid("combine", lambda x, y, z: (x, y - 1, z)),
    "no list": lambda _, started: [launch for launch in started if launch.kernel not in FULL["list"]],
    "no combine": lambda _, started: [launch for launch in started if launch.kernel not in FULL["combine"]],
    "pages moved": _set("decode", "k_pages", _moved),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_launch_is_noticed(interpreter: Interpreter, name: str) -> None:
    """An argument or a grid that is off makes the comparison red, or touches what is nobody's memory."""
    sequences, window = ((3, 3), (1, 40), (1, 700)), 600
    if name.startswith("prefill"):
        sequences, window = ((20, 20), (1, 40), (65, 101)), 50
    elif name.startswith("decode window"):
        sequences, window = ((1, 40), (1, 60)), 20
    step = Step(sequences, softcap=2.0, window=window, head_dim=16)
    try:
        got = step.run(interpreter, lambda started: MUTATIONS[name](step, started))
    except KernelError as error:
        noticed = "outside every tensor" in str(error)
    else:
        noticed = not np.abs(got - step.expected()).max() <= step.tolerance()
    assert noticed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, "head_dim must be 16 to 256"),
        ({"head_dim": 260}, "head_dim must be 16 to 256"),
        ({"block_size": 48}, "block_size must be one of"),
        ({"scale": -1.0}, "scale must be positive"),
        ({"heads": 5}, "must be a multiple"),
        ({"e4m3_kv": 1}, "pages of E4M3 numbers must be int8"),
        ({"chunked": True}, "chunks must have a length"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        workspace_bytes({**Step(()).attrs, **change}, {"block_tables": (1, 1)})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"strides": (144, 1)}),
        ("k_pages", {"shape": (3, 2, 64, 32)}),
        ("v_pages", {"dtype": "bfloat16"}),
        ("context_lens", {"shape": (3,)}),
        ("block_tables", {"dtype": "float32"}),
    ],
)
def test_operands_are_checked(name: str, change: dict) -> None:
    step = Step(((1, 40), (7, 50)))
    _, inputs, out, workspace = step.memory()
    inputs[name] = dataclasses.replace(inputs[name], **change)
    with pytest.raises(KernelError, match=f"{name}.* must "):
        launches(step.attrs, inputs, {"out": out}, workspace, step.sm)


def test_a_workspace_too_small_is_refused() -> None:
    for listed in (False, True):
        step = Step(((1, 1000),), listed=listed)
        _, inputs, out, workspace = step.memory()
        assert workspace is not None
        needed = (launches(step.attrs, inputs, {"out": out}, workspace, step.sm)[0].grid[0 if listed else 2]) * 4 * 34
        small = dataclasses.replace(workspace, shape=(needed - 1,))
        for wrong in (None, small):
            with pytest.raises(KernelError, match=rf"the workspace must be float32 \[{needed}\]"):
                launches(step.attrs, inputs, {"out": out}, wrong, step.sm)
