"""The launches of weight-only int4 products, interpreted, against the product with the dequantized weights."""

from __future__ import annotations

import dataclasses

import pytest

from support.gpu_int4 import check, make, run, run_dense, started
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.quantized_matmul import dense_launch, launch


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 15, 16, 17, 65])
def test_any_number_of_tokens(interpreter: Interpreter, tokens: int) -> None:
    memory = Memory()
    case = make(memory, tokens, 144, 128, 64, "float16")
    run(interpreter, memory, case, started(memory, case))
    check(memory, case)


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_groups_and_types(interpreter: Interpreter, tokens: int, group: int, dtype: str) -> None:
    memory = Memory()
    case = make(memory, tokens, 32, 256, group, dtype, bias=dtype, out="float32")
    run(interpreter, memory, case, started(memory, case))
    check(memory, case)


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize(("n", "k", "group"), [(1, 8, 32), (129, 200, 64), (33, 101, 32), (130, 136, 128)])
def test_tails_of_rows_and_columns(interpreter: Interpreter, tokens: int, n: int, k: int, group: int) -> None:
    memory = Memory()
    case = make(memory, tokens, n, k, group, "float16", bias="float32")
    run(interpreter, memory, case, started(memory, case))
    check(memory, case)


@pytest.mark.parametrize(
    ("tokens", "dtype"), [(1, "bfloat16"), (4, "float16"), (16, "float16"), (17, "bfloat16"), (5, "float32")]
)
def test_a_small_grid_is_split_along_k(interpreter: Interpreter, tokens: int, dtype: str) -> None:
    memory = Memory()
    case = make(memory, tokens, 48, 1080, 32, dtype, bias=dtype)
    launches = started(memory, case)
    assert [one.kernel for one in launches][1:] == ["int4_reduce_kernel"]
    assert launches[0].grid[1:] in ((2, 1), (1, 2), (2, 2))
    run(interpreter, memory, case, launches)
    check(memory, case)


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("group", [32, 128])
def test_narrow_tiles(interpreter: Interpreter, tokens: int, group: int) -> None:
    memory = Memory()
    case = make(memory, tokens, 176, 1032, group, "bfloat16", bias="bfloat16")
    case[0]["narrow"] = True
    launches = started(memory, case)
    assert launches[0].grid == (3, 1, 3)
    run(interpreter, memory, case, launches)
    check(memory, case)


@pytest.mark.parametrize(
    ("n", "k", "blocks"),
    [(2048, 2048, 128), (3072, 2048, 192), (2048, 8192, 256), (16384, 2048, 256), (512, 2048, 64), (14336, 4096, 224)],
)
def test_small_matrices_keep_multiprocessors_busy(n: int, k: int, blocks: int) -> None:
    """Of 132 multiprocessors at one token: those of a 1 B Llama got 64, 96, 256 and 256 programs of 128 columns."""
    attrs = {"n": n, "k": k, "group": 128, "narrow": True}
    columns = launch._tile(attrs, "float16", 8, 90)[0]
    assert -(-n // columns) * launch.split(attrs, "float16", 1, 90)[0] == blocks


@pytest.mark.parametrize(
    ("n", "k", "group", "dtype", "pieces"),
    [(129, 200, 64, "float16", 1), (600, 136, 128, "bfloat16", 3), (80, 64, 32, "bfloat16", 1)],
)
def test_many_rows_are_a_dense_product(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, n: int, k: int, group: int, dtype: str, pieces: int
) -> None:
    monkeypatch.setattr(dense_launch, "PIECE_BYTES", 256 * k * 2)
    memory = Memory()
    case = make(memory, dense_launch.MAX_ROWS + 1, n, k, group, dtype, bias=dtype, out="float32")
    assert run_dense(interpreter, memory, case) == pieces


def test_what_is_no_dense_product() -> None:
    """Few rows, float32, and rows that are not aligned."""
    for rows, k, dtype in ((dense_launch.MAX_ROWS, 64, "float16"), (400, 64, "float32"), (400, 68, "float16")):
        memory = Memory()
        attrs, inputs, outputs, _ = make(memory, rows, 32, k, 32, dtype)
        got = dense_launch.launches(attrs, inputs, outputs, None, 80)
        assert got == launch.launches({**attrs, "narrow": True}, inputs, outputs, None, 80)
    memory = Memory()
    attrs, inputs, outputs, _ = make(memory, 400, 32, 64, 32, "float16")
    assert dense_launch.workspace_bytes(attrs, {"x": (256, 64)}) == launch.workspace_bytes(attrs, {"x": (256, 64)})
    with pytest.raises(KernelError, match="400 tokens need a workspace of 4096 bytes"):
        dense_launch.launches(attrs, inputs, outputs, None, 80)


def test_a_large_grid_is_not_split_and_the_workspace_holds_the_most() -> None:
    attrs = {"n": 4096, "k": 4096, "group": 128}
    assert launch.split(attrs, "float16", 1, 90)[0] == 8
    assert launch.split(attrs, "float16", 2048, 90) == (1, 512)
    assert launch.split({**attrs, "n": 128256}, "float16", 1, 90) == (1, 512)
    for most in (1, 3, 16, 100, 1000):
        needed = launch.workspace_bytes(attrs, {"x": (most, 4096)})
        used = [
            4 * splits * tokens * 4096
            for tokens in range(1, most + 1)
            for sm in launch.MULTIPROCESSORS
            for dtype in ("float16", "float32")
            if (splits := launch.split(attrs, dtype, tokens, sm)[0]) > 1
        ]
        assert needed == max(used)


@pytest.mark.parametrize("name", ["N", "K", "words_of_a_split", "scales", "packed"])
def test_a_wrong_argument_is_noticed(interpreter: Interpreter, name: str) -> None:
    memory = Memory()
    case = make(memory, 3, 64, 256, 32, "float16")
    (good,) = started(memory, case)
    spec = next(s for s in launch.kernels(case[0], {"x": "float16", "scales": "float16", "y": "float16"}, 80)
                if s.variant == good.variant and s.kernel == good.kernel)  # fmt: skip
    index = [argument for argument, _ in spec.signature].index(name)
    args = list(good.args)
    old = args[index]
    args[index] = dataclasses.replace(old, address=old.address + 64) if isinstance(old, Tensor) else old // 2

    def run_and_check() -> None:
        run(interpreter, memory, case, [dataclasses.replace(good, args=tuple(args))])
        check(memory, case)

    with pytest.raises((AssertionError, KernelError)):  # wrong values, or an access outside
        run_and_check()


def test_a_flipped_bit_is_noticed(interpreter: Interpreter) -> None:
    memory = Memory()
    case = make(memory, 1, 64, 256, 32, "bfloat16", out="float32")
    memory.blocks["packed"].data[3, 5] ^= 1 << 8
    run(interpreter, memory, case, started(memory, case))
    with pytest.raises(AssertionError):
        check(memory, case)


def test_what_does_not_fit_is_refused() -> None:
    memory = Memory()
    case = make(memory, 1, 40, 1024, 32, "float16")
    attrs, inputs, outputs, _ = case
    for change, message in (
        ({"packed": dataclasses.replace(inputs["packed"], shape=(64, 40))}, r"packed must be int32 \[128, 40\]"),
        ({"scales": dataclasses.replace(inputs["scales"], dtype="float32")}, "scales must be float16"),
    ):
        with pytest.raises(KernelError, match=message):
            launch.launches(attrs, {**inputs, **change}, outputs, None, 80)
    with pytest.raises(KernelError, match="need a workspace of 320 bytes"):
        launch.launches(attrs, inputs, outputs, None, 80)
    with pytest.raises(KernelError, match="group must be one of"):
        launch.kernels({**attrs, "group": 48}, {"x": "float16", "scales": "float16", "y": "float16"}, 80)
