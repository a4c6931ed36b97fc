"""Attention over latent rows on a GPU against its numpy definition: the launches, run by Triton's interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from support.gpu_latent import LatentStep
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter
from tensorwright.plugins.gpu.launch import Launch
from tensorwright.plugins.paged_attention.latent_launch import launches, workspace_bytes
from tensorwright.plugins.paged_attention.tiles import SPLIT

KERNEL, COMBINE = "attention_latent_kernel", "attention_combine_kernel"
MIXED = ((1, 40), (7, 50), (1, 1), (0, 3), (33, 33), (1, 1100), (2, 100))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mixed_steps(interpreter: Interpreter, dtype: str) -> None:
    LatentStep(MIXED, dtype=dtype).check(interpreter)


@pytest.mark.parametrize("context", [1, 31, 32, 33, SPLIT, SPLIT + 1, 2 * SPLIT + 1])
def test_decode_lengths_around_pages_tiles_and_splits(interpreter: Interpreter, context: int) -> None:
    LatentStep(((1, context),), heads=2).check(interpreter)


@pytest.mark.parametrize(
    ("heads", "v_dim", "rest"), [(1, 16, 0), (3, 24, 8), (16, 512, 64), (40, 256, 32), (70, 33, 6)]
)
def test_heads_and_widths(interpreter: Interpreter, heads: int, v_dim: int, rest: int) -> None:
    """70 heads take three tiles of rows in a step with prompts, and five in one of decodes."""
    for sequences in (((1, 70), (19, 41)), ((1, 70), (1, 9))):
        LatentStep(sequences, heads=heads, head_dim=v_dim + rest, v_dim=v_dim, dtype="bfloat16").check(interpreter)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 37, "softcap": 3.0, "block_size": 16},
        {"window": 600, "block_size": 64},
        {"window": 64, "chunked": True},
        {"window": 600, "chunked": True, "dtype": "float32"},
    ],
)
def test_options_crossed(interpreter: Interpreter, options: dict) -> None:
    LatentStep(((1, 300), (40, 300), (1, 1300), (70, 70), (1, 1201)), heads=2, **options).check(interpreter)


def test_company_changes_no_bit(interpreter: Interpreter) -> None:
    """Alone among decodes or in a wider block table: the splits follow from a sequence's own context."""
    alone = LatentStep(((1, 1300),), seed=3)
    together = LatentStep(((1, 9), (1, 1300), (1, 2000)), seed=4, more_blocks=9)
    for step in (alone, together):
        rng = np.random.default_rng(5)
        seq = [context for _, context in step.sequences].index(1300)
        step.q[step.seq_starts[seq]] = rng.standard_normal(step.q.shape[1]).astype(np.float16)
        for block in step.block_tables[seq, : -(-1300 // 32)]:
            step.k[block] = rng.standard_normal(step.k[block].shape).astype(np.float16)
    np.testing.assert_array_equal(together.run(interpreter)[1], alone.run(interpreter)[0])


def _launches(step: LatentStep) -> list[Launch]:
    _, inputs, out, workspace = step.memory()
    return launches(step.attrs, inputs, {"out": out}, workspace, step.sm)


@pytest.mark.parametrize(
    ("sequences", "kernels"),
    [
        ((), []),
        (((0, 4),), []),
        (((1, 9),), [KERNEL]),
        (((1, 900),), [KERNEL, COMBINE]),
        (((9, 900),), [KERNEL]),
        (((2, 9), (1, 900)), [KERNEL, COMBINE]),
    ],
)
def test_what_is_started(sequences: tuple, kernels: list[str]) -> None:
    assert [launch.kernel for launch in _launches(LatentStep(sequences))] == kernels


def _set(name: str, change: Callable) -> Callable:
    def mutate(step: LatentStep, started: list[Launch]) -> list[Launch]:
        found = []
        for launch in started:
            spec = next(s for s in step.specs() if (s.kernel, s.variant) == (launch.kernel, launch.variant))
            names = [argument for argument, _ in spec.signature]
            args = list(launch.args)
            if name in names:
                args[names.index(name)] = change(args[names.index(name)])
            found.append(dataclasses.replace(launch, args=tuple(args)))
        return found

    return mutate


def _regrid(change: Callable) -> Callable:
    def mutate(_: LatentStep, started: list[Launch]) -> list[Launch]:
        return [dataclasses.replace(x, grid=change(*x.grid)) if x.kernel == KERNEL else x for x in started]

    return mutate


MUTATIONS = {
    **{name: _set(name, lambda x, by=by: x + by) for name, by in (
        ("seqs", -1), ("max_blocks", -1), ("scale", 0.1), ("softcap", 1.0), ("window", -30), ("out_stride", 16),
    )},
    "two tiles less": _regrid(lambda x, y, z: (x - 2, y, z)),
    "one part of the heads less": _regrid(lambda x, y, z: (x, y - 1, z)),
    "one split less": _regrid(lambda x, y, z: (x, y, z - 1)),
    "no combine": lambda _, started: started[:1],
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_launch_is_noticed(interpreter: Interpreter, name: str) -> None:
    step = LatentStep(((20, 20), (1, 40), (65, 101), (1, 700)), heads=40, softcap=2.0, window=620)
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
        ({"v_dim": 8}, "a latent row must have 16 to 512 columns"),
        ({"v_dim": 520, "head_dim": 520}, "a latent row must have 16 to 512 columns"),
        ({"head_dim": 200}, "0 to 128 columns beside those of V"),
        ({"block_size": 48}, "block_size must be one of"),
        ({"scale": -1.0}, "scale must be positive"),
        ({"chunked": True}, "chunks must have a length"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        workspace_bytes({**LatentStep(()).attrs, **change}, {"block_tables": (1, 1)})


def test_a_workspace_too_small_is_refused() -> None:
    step = LatentStep(((1, 1000),))
    _, inputs, out, workspace = step.memory()
    assert workspace is not None
    small = dataclasses.replace(workspace, shape=(workspace.shape[0] - 1,))
    for wrong in (None, small):
        with pytest.raises(KernelError, match="the workspace must be"):
            launches(step.attrs, inputs, {"out": out}, wrong, step.sm)
