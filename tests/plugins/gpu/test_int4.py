"""The launches of weight-only int4 products, interpreted, against the product with the dequantized weights."""

from __future__ import annotations

import dataclasses

import pytest

from support.gpu_int4 import check, make, run, started
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.quantized_matmul import launch


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
