"""plugins/gpu: a specialisation is compiled without a GPU, and a launch runs in the interpreter as on one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import SCRATCH, KernelSpec, Launch, Tensor, kernel_values, make_launch

BLOCK = 32


def copy_spec(with_bias: bool = True, dtype: str = "fp16") -> KernelSpec:
    signature = [("x", f"*{dtype}"), ("y", f"*{dtype}"), ("n", "i32"), ("stride", "i32"), ("factor", "fp32")]
    constants = [("BLOCK", BLOCK), *([] if with_bias else [("bias", None)])]
    if with_bias:
        signature.insert(2, ("bias", "*fp32"))
    return KernelSpec("copy_kernel", "support.gpu_copy_kernel", tuple(signature), tuple(constants), ("x", "y"), 1)


def copy_launch(memory: Memory, rows: int, columns: int = 1, with_bias: bool = True) -> Launch:
    rng = np.random.default_rng(rows)
    x = memory.put("x", rng.standard_normal((rows, columns)), "float16")
    y = memory.empty("y", (rows,), "float16")
    values = {"x": x, "y": y, "n": rows, "stride": x.strides[0], "factor": 2.0}
    if with_bias:
        values["bias"] = memory.put("bias", rng.standard_normal(rows), "float32")
    return make_launch(copy_spec(with_bias), (-(-rows // BLOCK), 1, 1), values)


@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_launch_is_interpreted(interpreter: Interpreter, rows: int, with_bias: bool) -> None:
    memory = Memory()
    launch = copy_launch(memory, rows, 3, with_bias)
    interpreter.run([copy_spec(with_bias)], [launch], memory)
    wanted = memory.array("x")[:, 0].astype(np.float32) * 2 + (memory.array("bias") if with_bias else 0)
    np.testing.assert_array_equal(memory.array("y"), wanted.astype(np.float16))


def test_a_wrong_stride_or_size_is_noticed(interpreter: Interpreter) -> None:
    for index, wrong in ((3, BLOCK + 1), (4, 4)):  # n, stride
        memory = Memory()
        launch = copy_launch(memory, BLOCK, 3)
        args = list(launch.args)
        args[index] = wrong
        broken = dataclasses.replace(launch, grid=(2, 1, 1), args=tuple(args))
        with pytest.raises(KernelError, match="outside every tensor"):
            interpreter.run([copy_spec()], [broken], memory)


def test_an_unknown_specialisation_is_refused(interpreter: Interpreter) -> None:
    memory = Memory()
    launch = copy_launch(memory, 1)
    with pytest.raises(KernelError, match="no specification has it"):
        interpreter.run([copy_spec(with_bias=False)], [launch], memory)


def test_a_launch_is_checked() -> None:
    memory = Memory()
    launch = copy_launch(memory, 5)
    names = [name for name, _ in copy_spec().signature]
    good = dict(zip(names, launch.args, strict=True))
    x: Tensor = good["x"]
    for change, message in (
        ({"x": dataclasses.replace(x, address=x.address + 2)}, "multiple of 16"),
        ({"x": dataclasses.replace(x, dtype="bfloat16")}, "tensor of fp16"),
        ({"n": 2**31}, "32 bits"),
        ({"n": 1.0}, "32 bits"),
        ({"factor": 1}, "float"),
        ({"extra": 1}, "arguments must be"),
    ):
        with pytest.raises(KernelError, match=message):
            make_launch(copy_spec(), (1, 1, 1), {**good, **change})
    for grid in ((0, 1, 1), (1, 65536, 1)):
        with pytest.raises(KernelError, match="a grid must be"):
            make_launch(copy_spec(), grid, good)


@pytest.mark.parametrize("sm", [75, 80, 86, 89, 90, 120])
def test_compiled_without_a_gpu_and_the_same_twice(kernel_cache: Path, tmp_path: Path, sm: int) -> None:
    first = compile_kernel(copy_spec(), sm, cache=kernel_cache)
    assert first == compile_kernel(copy_spec(), sm, cache=tmp_path)
    assert first.cubin[:4] == b"\x7fELF"
    assert b".loc" not in first.ptx.encode()
    assert first.registers > 0
    assert first.spill_bytes == 0
    assert first.num_warps == 1


def test_parameters_are_the_arguments_and_two_scratch_pointers(kernel_cache: Path) -> None:
    memory = Memory()
    launch = copy_launch(memory, 5)
    compiled = compile_kernel(copy_spec(), 80, cache=kernel_cache)
    assert compiled.parameters == ("*fp16", "*fp16", "*fp32", "i32", "i32", "fp32", SCRATCH, SCRATCH)
    values = kernel_values(compiled.parameters, launch)
    assert values == (*(launch.args[i].address for i in range(3)), 5, 1, 2.0)
    with pytest.raises(KernelError, match="arguments are expected"):
        kernel_values(compiled.parameters[1:], launch)


@pytest.mark.parametrize(("sm", "most"), [(75, 65536), (86, 101376), (120, 101376), (90, 232448)])
def test_a_kernel_that_no_block_of_the_sm_can_hold_is_refused(tmp_path: Path, sm: int, most: int) -> None:
    """The driver would refuse it too, in the first step that starts it."""
    small = compile_kernel(copy_spec(), sm, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    bundle.write_cached(path, dataclasses.replace(small, shared_bytes=most))
    assert compile_kernel(copy_spec(), sm, cache=tmp_path).shared_bytes == most
    bundle.write_cached(path, dataclasses.replace(small, shared_bytes=most + 1))
    with pytest.raises(KernelError, match=f"at most {most} bytes on SM {sm}, .* {most + 1}: build without SM {sm}"):
        compile_kernel(copy_spec(), sm, cache=tmp_path)


def test_what_cannot_be_compiled_is_refused(kernel_cache: Path) -> None:
    with pytest.raises(KernelError, match="not 70"):
        compile_kernel(copy_spec(), 70, cache=kernel_cache)
    with pytest.raises(KernelError, match="SM 75 has no bfloat16"):
        compile_kernel(copy_spec(dtype="bf16"), 75, cache=kernel_cache)
    with pytest.raises(KernelError, match="the specification gives"):
        compile_kernel(dataclasses.replace(copy_spec(), constants=()), 80, cache=kernel_cache)


def test_the_cache_is_used_and_a_spoilt_file_is_not(tmp_path: Path) -> None:
    first = compile_kernel(copy_spec(), 80, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    other = dataclasses.replace(first, registers=1)
    file.write_bytes(bundle.to_bytes([other]))
    assert compile_kernel(copy_spec(), 80, cache=tmp_path) == other
    file.write_bytes(file.read_bytes()[:-1])
    assert compile_kernel(copy_spec(), 80, cache=tmp_path) == first


def test_a_bundle_of_several_sms_is_read_back(kernel_cache: Path) -> None:
    """PTX of the lowest SM only."""
    specs = (copy_spec(), copy_spec(with_bias=False))
    kernels = [compile_kernel(spec, sm, cache=kernel_cache) for spec in specs for sm in (80, 89)]
    found = bundle.from_bytes(bundle.to_bytes(kernels))
    assert found.sms() == (80, 89)
    for kernel in kernels:
        read = found.kernels[kernel.kernel, kernel.variant, kernel.sm]
        assert read == dataclasses.replace(kernel, ptx=kernel.ptx if kernel.sm == 80 else "")


HASHES = """
import hashlib, sys
from pathlib import Path
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.rms_norm import launch
for spec in launch.kernels({"channels": 96}, {"x": "float16"}, 80):
    kernel = compile_kernel(spec, int(sys.argv[1]), cache=Path(sys.argv[2]))
    print(hashlib.sha256(kernel.cubin + kernel.ptx.encode()).hexdigest(), kernel.variant)
"""


def test_the_bytes_do_not_depend_on_the_process_or_the_folder(tmp_path: Path) -> None:
    seen = set()
    for seed in ("1", "2"):
        place = tmp_path / seed
        place.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(place)}
        command = [sys.executable, "-P", "-c", HASHES, "90", str(place)]
        seen.add(subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True).stdout)
    (only,) = seen
    assert len(only.split()) == 2
