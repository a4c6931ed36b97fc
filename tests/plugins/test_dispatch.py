"""Which kernel runs: features, TENSORWRIGHT_ISA, tables and explanations."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.isa_levels import LEVELS, level_of
from tensorwright.errors import IsaError
from tensorwright.ir.records import Instruction, Op
from tensorwright.plugins.registry import MODULES, read_records
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

FAMILIES = 49


def lacks(level: str) -> bool:
    return level != "scalar" and not _runtime.cpu_features()[level]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_caps_every_choice(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    if lacks(level):
        with pytest.raises(IsaError, match=f"TENSORWRIGHT_ISA={level} must name .* it lacks"):
            _runtime.isa()
        return
    assert _runtime.isa() == level
    choices = _runtime.explain_dispatch()
    assert len(choices) == FAMILIES
    for _, taken, _ in choices:
        assert LEVELS.index(level_of(taken)) <= LEVELS.index(level)


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", "scalar")
    refused = {family: reasons for family, _, reasons in _runtime.explain_dispatch()}["matmul bfloat16"]
    assert [r.split(":")[0] for r in refused] == [n for n, isa, _ in _testing.matmul_table(1) if isa != "scalar"]
    for reason in refused:
        assert "which this processor lacks" in reason or "above the selected level scalar" in reason


@pytest.mark.parametrize("name", ["AVX512", "avx10", "sse2", " scalar"])
def test_an_unknown_level_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", name)
    with pytest.raises(IsaError, match=f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}"):
        _runtime.isa()
    with pytest.raises(IsaError, match=name):
        _runtime.explain_dispatch()


def dispatch_of(**environment: str) -> subprocess.CompletedProcess[str]:
    """Features and kernels of a process of its own, since features are read once."""
    script = "import json; from tensorwright.runtime import _runtime as r; "
    script += "print(json.dumps([r.cpu_features(), [taken for _, taken, _ in r.explain_dispatch()]]))"
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False, env=env)


OF_X86 = ["avx2", "avx512", "avx512_vnni,avx512_bf16", "avx_vnni", "fma,avx_vnni", "amx_int8", "amx_bf16"]
OF_ARM = ["neon", "neon_dotprod", "neon_i8mm", "neon_bf16,neon_i8mm"]


@pytest.mark.parametrize("without", OF_ARM if "neon" in LEVELS else OF_X86)
def test_a_processor_can_be_taken_for_a_smaller_one(without: str) -> None:
    done = dispatch_of(TENSORWRIGHT_CPU_WITHOUT=without, TENSORWRIGHT_ISA="")
    assert done.returncode == 0, done.stderr
    features, kernels = json.loads(done.stdout)
    names = without.split(",")
    assert features.keys() == _runtime.cpu_features().keys() >= set(names)
    assert not any(features[name] for name in names)
    if LEVELS[1] in names:
        assert not any(present for name, present in features.items() if name != "fma")
        assert {level_of(kernel) for kernel in kernels} == {"scalar"}
    if "avx512" in names:
        assert not any(present for name, present in features.items() if "512" in name)
        assert "avx512" not in {level_of(kernel) for kernel in kernels}
    suffixes = tuple("_" + name.replace("_", "").replace("dotprod", "dot") for name in names)
    assert not any(kernel.endswith(suffixes) for kernel in kernels)
    tiles = {"amx_bf16" if kernel.endswith("bf16_amx") else "amx_int8" for kernel in kernels if kernel.endswith("_amx")}
    assert not tiles & set(names)


def test_an_unknown_feature_is_an_error() -> None:
    done = dispatch_of(TENSORWRIGHT_CPU_WITHOUT="avx2,sse9")
    assert done.returncode == 1
    assert "TENSORWRIGHT_CPU_WITHOUT must list features" in done.stderr
    assert "'sse9'" in done.stderr


def test_unset_and_empty_take_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    best = next(level for level in reversed(LEVELS) if not lacks(level))
    monkeypatch.setenv("TENSORWRIGHT_ISA", "")
    assert _runtime.isa() == best
    monkeypatch.delenv("TENSORWRIGHT_ISA")
    assert _runtime.isa() == best
    taken = {family: name for family, name, _ in _runtime.explain_dispatch()}
    for code, dtype in enumerate(("float32", "bfloat16")):
        assert taken[f"matmul {dtype}"] == next(n for n, _, runnable in _testing.matmul_table(code) if runnable)


def tables() -> list[list[tuple[str, str, bool]]]:
    floats = [table(dtype) for table in (_testing.matmul_table, _testing.embedding_table) for dtype in (0, 1)]
    floats.append(_testing.matmul_table(-1))
    quantized = [_testing.quantized_matmul_table(dtype) for dtype in (3, 4)]
    rest = [_testing.swiglu_table(), _testing.quantize_rows_table(), _testing.quantize_weights_table()]
    return floats + quantized + rest


def test_tables_are_best_first_and_end_with_the_reference() -> None:
    for table in tables():
        levels = [LEVELS.index(isa) for _, isa, _ in table]
        assert levels == [LEVELS.index(level_of(name)) for name, _, _ in table]
        assert levels == sorted(levels, reverse=True)
        name, isa, runnable = table[-1]
        assert (isa, runnable) == ("scalar", True)
        assert name.endswith("_scalar")


def test_every_record_says_what_its_op_computes() -> None:
    records = list(read_records())
    assert len(records) >= len(MODULES)
    for record in records:
        assert callable(record.reference) or record.meets_ranks
        assert callable(record.infer) or isinstance(record, Instruction)
        assert isinstance(record, Instruction) == (record.stages == ("lowered",))
        assert isinstance(record, Op)
