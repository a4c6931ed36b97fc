"""The yardstick: every peak does the work that it is counted for, and names that do not exist are refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import wait_until
from tensorwright import errors
from tensorwright.runtime import _runtime

ROOT = Path(__file__).resolve().parent.parent.parent
COMMON = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*COMMON, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
AMX = [*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8", "-mamx-bf16"]
PEAKS = [
    ("x86_avx2", COMMON, "tw_ceiling_fma_avx2", r"vfn?m(?:add|sub)\d+ps", 12),
    ("x86_avx2", COMMON, "tw_ceiling_int8_avx2", r"vpmaddubsw", 8),
    ("x86_avx512", AVX512, "tw_ceiling_fma_avx512", r"vfn?m(?:add|sub)\d+ps", 16),
    ("x86_avx512bf16", [*AVX512, "-mavx512bf16"], "tw_ceiling_bf16_avx512bf16", r"vdpbf16ps", 16),
    ("x86_avx512vnni", [*AVX512, "-mavx512vnni"], "tw_ceiling_int8_avx512vnni", r"vpdpbusd", 16),
    ("x86_amx", AMX, "tw_ceiling_int8_amx", r"tdpbssd", 4),
    ("x86_amx", AMX, "tw_ceiling_bf16_amx", r"tdpbf16ps", 4),
]


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize(("file", "flags", "function", "instruction", "count"), PEAKS, ids=[p[2] for p in PEAKS])
def test_the_compiler_merges_no_accumulators(
    file: str, flags: list[str], function: str, instruction: str, count: int
) -> None:
    """An accumulator computed once for two would make the machine look faster than it is."""
    source = ROOT / "plugins/common" / f"{file}.cc"
    command = ["g++", "-std=c++20", "-O3", "-ffp-contract=off", *flags, f"-I{ROOT}", "-S", str(source), "-o", "-"]
    assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    body = assembly.split(f"\n{function}:")[1].split(".cfi_endproc")[0]
    assert len(re.findall(instruction, body)) == count
    if instruction != "vpmaddubsw":  # sums in place: as many registers as instructions
        assert len(set(re.findall(rf"{instruction}\s.*%([xyzt]mm\d+)\s*$", body, re.MULTILINE))) == count


@pytest.mark.parametrize("what", ["read", "float32", "float32 avx2", "int8", "int8 avx2"])
def test_every_ceiling_is_measured(what: str) -> None:
    # Any x86-64 with AVX2 does more, when it is let.
    wait_until(lambda: _runtime.ceiling(what, 1, 1) > 1e8, what)


def test_an_unknown_ceiling_is_refused() -> None:
    with pytest.raises(errors.InvalidOptionError, match=r"of this processor: read, .*float32.*int8.*; not int3"):
        _runtime.ceiling("int3", 1, 1)


def test_the_command_answers_in_json() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/ceilings.py"), "--json", "--threads", "1"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert set(figures["1"]) >= {"read GB/s", "fp32 GFLOP/s", "int8 GOP/s"}
    assert all(value > 0 for value in figures["1"].values())
