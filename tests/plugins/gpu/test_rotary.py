"""The launches of rotary_kv_write, interpreted, against the definition in numpy: q, pages and scales."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tolerances import SUBNORMAL

from support.gpu_rotary import ATTRS, check, make, near, run
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.rotary import launch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cache", ["same", "int8", "fp8"])
@pytest.mark.parametrize("rotary_dim", [0, 4, 16])
def test_equals_the_definition(interpreter: Interpreter, dtype: str, cache: str, rotary_dim: int) -> None:
    memory, attrs = Memory(), {**ATTRS, "rotary_dim": rotary_dim, "e4m3_kv": int(cache == "fp8")}
    case = make(memory, 5, attrs, dtype, dtype if cache == "same" else "int8")
    run(interpreter, memory, case, attrs)
    check(memory, attrs)


def test_a_bound_admits_what_correct_rounding_does() -> None:
    """Near zero numbers of float16 are subnormal: their spacing does not shrink with them."""
    for dtype, rounded in (("float16", np.float16), ("float32", np.float32)):
        exact = np.random.default_rng(0).standard_normal(100_000) * np.logspace(0, np.log10(SUBNORMAL[dtype]), 100_000)
        near(exact.astype(rounded), exact, dtype)
        with pytest.raises(AssertionError):
            near(np.nextafter(exact.astype(rounded), rounded(2)), exact, dtype)


@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17])
def test_any_number_of_tokens(interpreter: Interpreter, tokens: int) -> None:
    memory = Memory()
    run(interpreter, memory, make(memory, tokens, ATTRS, "bfloat16", "int8", tokens), ATTRS)
    check(memory, ATTRS)


@pytest.mark.parametrize("rotary_dim", [0, 6, 16])
def test_a_layer_without_keys_of_its_own_writes_q_alone(interpreter: Interpreter, rotary_dim: int) -> None:
    memory, attrs = Memory(), {**ATTRS, "kv_heads": 0, "rotary_dim": rotary_dim}
    case = make(memory, 5, attrs, "float16", "float16")
    assert not {"slots", "k_pages", "v_pages"} & set(case[0])
    run(interpreter, memory, case, attrs)
    check(memory, attrs)


@pytest.mark.parametrize("cache", ["float16", "int8"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(32, 8, 128, 128), (9, 3, 64, 64), (71, 1, 64, 64), (5, 5, 80, 32), (3, 1, 7, 6), (2, 2, 256, 64)],
)
def test_shapes_of_models(
    interpreter: Interpreter, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, cache: str
) -> None:
    attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    memory = Memory()
    run(interpreter, memory, make(memory, 3, attrs, "float16", cache), attrs)
    check(memory, attrs)


def test_a_negative_slot_is_not_written(interpreter: Interpreter) -> None:
    memory = Memory()
    case = make(memory, 3, ATTRS, "float16", "int8")
    memory.blocks["slots"].data[1] = -1
    run(interpreter, memory, case, ATTRS)
    check(memory, ATTRS)


@pytest.mark.parametrize("e4m3", [0, 1])
def test_infinities_zeros_and_tiny_heads_of_a_cache_of_bytes(interpreter: Interpreter, e4m3: int) -> None:
    """Their scales are NaN or 0; a head of one number rounds to 127 or -127, or to 448 or -448. With small elements
    beside a large one, E4M3 has subnormal numbers."""
    memory, attrs = Memory(), {**ATTRS, "rotary_dim": 0, "e4m3_kv": e4m3}
    case = make(memory, 5, attrs, "float32", "int8")
    k = memory.blocks["qkv"].data.reshape(5, 8, 16)[:, 4:]
    k[0, 0, 3], k[0, 1, 15], k[1, 2, 0] = np.inf, np.nan, -np.inf
    k[2, :] = 0
    k[3, 0] = 2.0**-112
    k[4, 1] = -3
    k[4, 2] = np.float32(448) * 2.0 ** -np.arange(16)
    k[4, 3] = np.append(np.linspace(-0.02, 0.02, 15), 448)
    run(interpreter, memory, case, attrs)
    check(memory, attrs)


@pytest.mark.parametrize("name", ["page_stride", "head_stride", "block_size"])
def test_a_wrong_stride_is_noticed(interpreter: Interpreter, name: str) -> None:
    memory = Memory()
    inputs, outputs = make(memory, 17, ATTRS, "float16", "float16")
    (spec,) = launch.kernels(ATTRS, {"qkv": "float16", "k_pages": "float16"}, 80)
    (good,) = launch.launches(ATTRS, inputs, outputs, None, 80)
    args = list(good.args)
    args[[argument for argument, _ in spec.signature].index(name)] //= 2

    def run_and_check() -> None:
        interpreter.run([spec], [dataclasses.replace(good, args=tuple(args))], memory)
        check(memory, ATTRS)

    with pytest.raises((AssertionError, KernelError)):  # wrong values, or an access outside
        run_and_check()


def test_what_does_not_fit_is_refused() -> None:
    memory = Memory()
    inputs, outputs = make(memory, 2, ATTRS, "float16", "float16")
    elsewhere = dataclasses.replace(outputs["k_pages"], address=outputs["k_pages"].address + 256)
    for more_in, more_out, attrs, message in (
        ({}, {"k_pages": elsewhere}, {}, "in place"),
        ({"slots": inputs["qkv"]}, {}, {}, "must be int32"),
        ({"v_pages": dataclasses.replace(inputs["v_pages"], dtype="int8")}, {}, {}, "v_pages must be float16"),
        ({}, {}, {"rotary_dim": 3}, "must be float32|rotary_dim must be even"),
    ):
        with pytest.raises(KernelError, match=message):
            launch.launches({**ATTRS, **attrs}, {**inputs, **more_in}, {**outputs, **more_out}, None, 80)
    with pytest.raises(KernelError, match="pages must be float16 or int8"):
        launch.kernels(ATTRS, {"qkv": "float16", "k_pages": "float32"}, 80)
