"""The launches of rms_norm and add_rms_norm, interpreted, against the definitions in numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.gpu_rms_norm import ATTRS, DTYPES, check, run
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.rms_norm import launch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize(("rows", "channels"), [(0, 64), (1, 64), (3, 1), (2, 63), (17, 65), (2, 576), (2, 4096)])
def test_equals_the_definition(interpreter: Interpreter, rows: int, channels: int, dtype: str, with_sum: bool) -> None:
    check(run(interpreter, rows, channels, dtype, with_sum), dtype)


def test_the_comparison_notices_a_wrong_epsilon_offset_and_row(interpreter: Interpreter) -> None:
    for change in ({"eps": 1e-2}, {"weight_offset": 0.0}):
        memory = run(interpreter, 2, 64, "float16", True)
        memory.blocks["w"].data = memory.blocks["w"].data.copy()
        inputs = {name: memory.blocks[name].tensor for name in ("x", "residual", "w")}
        outputs = {name: memory.blocks[name].tensor for name in ("y", "sum")}
        specs = launch.kernels({"channels": 64}, {"x": "float16", "residual": "float16"}, 80)
        interpreter.run(specs, launch.launches({**ATTRS, **change}, inputs, outputs, None, 80), memory)
        with pytest.raises(AssertionError):
            check(memory, "float16")
    memory = run(interpreter, 2, 64, "float16", False)
    memory.blocks["y"].data[[0, 1]] = memory.blocks["y"].data[[1, 0]]
    with pytest.raises(AssertionError):
        check(memory, "float16")


def test_what_does_not_fit_is_refused() -> None:
    memory = Memory()
    x = memory.put("x", np.zeros((2, 8)), "float16")
    y = memory.empty("y", (2, 8), "float16")
    w = memory.put("w", np.zeros(8), "float32")
    half = memory.put("half", np.zeros(8), "float16")
    gaps = dataclasses.replace(x, strides=(16, 1))
    for inputs, message in (
        ({"x": x, "w": half}, "half must be float32"),
        ({"x": gaps, "w": w}, "must have strides"),
        ({"x": x, "residual": w, "w": w}, "must be float16"),
        ({"x": dataclasses.replace(x, address=x.address + 2), "w": w}, "multiple of 16"),
    ):
        with pytest.raises(KernelError, match=message):
            launch.launches(ATTRS, inputs, {"y": y, "sum": y}, None, 80)
    with pytest.raises(KernelError, match="1 to 16384 channels"):
        launch.kernels({"channels": 16385}, {"x": "float16"}, 80)
