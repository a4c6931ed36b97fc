"""The emulator of PTX: what instructions compute, and that it refuses what a GPU does not promise, planted bugs too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import gpu_int4, gpu_rms_norm
from support.gpu_attention import Step
from support.ptx.emulator import Emulator
from support.ptx.fault import PtxFault
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import SCRATCH, Launch

THREADS, SHARED = 64, 1024
HEAD = """
.version 8.8
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry test(.param .u64 .ptr out, .param .u64 .ptr data, .param .u64 .ptr scratch, .param .u64 .ptr profile)
.reqntid 64
{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %d<8>;
ld.param.b64 %d0, [out]; ld.param.b64 %d1, [data];
mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4; add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;
mov.b32 %r15, global_smem; shl.b32 %r14, %r0, 2; add.s32 %r14, %r15, %r14; xor.b32 %r13, %r14, 128;
setp.lt.u32 %p0, %r0, 32;
"""


def run(body: str, grid: int = 1) -> np.ndarray:
    """Runs a body over 64 threads a block. Returns out.

    In it %r0 is the thread, %d3 and %d4 are its words of out and data, %r14 is its word of shared memory and %r13 that
    of a thread of the other warp. %p0 is true in the first warp.
    """
    memory = Memory()
    out = memory.empty("out", (THREADS,), "int32")
    data = memory.put("data", np.arange(THREADS), "int32")
    code = f"{HEAD}{body}\nret;\n}}"
    parameters = ("*i32", "*i32", SCRATCH, SCRATCH)
    kernel = CompiledKernel("test", "", 80, "test", THREADS // 32, SHARED, 0, 0, parameters, b"", code)
    Emulator(80).start(kernel, Launch("test", "", (grid, 1, 1), (out, data)), memory)
    return memory.array("out").view(np.uint32)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("prmt.b32 %r2, 0x44332211, 0x88776655, 0x7531", 0x88664422),
        ("prmt.b32 %r2, 0x00800011, 0, 0xAA08", 0xFFFF1100),
        ("bfe.s32 %r2, 0x0000F0, 4, 4", 0xFFFFFFFF),
        ("bfe.u32 %r2, 0x12345678, 8, 8", 0x56),
        ("lop3.b32 %r2, 0xF0F0, 0xFF00, 0x0FF0, 0x6A", (0xF0F0 & 0xFF00) ^ 0x0FF0),
        ("shf.l.wrap.b32 %r2, 0x80000000, 0x1, 33", 3),
        ("shl.b32 %r2, 1, 40", 0),
        ("shr.s32 %r2, -8, 99", 0xFFFFFFFF),
        ("shr.s32 %r2, -8, 1", 0xFFFFFFFC),
        ("div.s32 %r2, -7, 2", 0xFFFFFFFD),
        ("rem.s32 %r2, -7, 2", 0xFFFFFFFF),
        ("mul.hi.s32 %r2, -2, 3", 0xFFFFFFFF),
        ("mul.lo.s32 %r2, 0x10001, 0x10001", 0x20001),
        ("mul.hi.u64 %d5, 0xFFFFFFFFFFFFFFFF, 0x100000003; cvt.u32.u64 %r2, %d5", 2),
        ("mad.lo.cc.u32 %r3, 0xFFFFFFFF, 1, 1; madc.hi.u32 %r2, 2, 0x80000000, 5", 7),
        ("mad.wide.s32 %d5, -1, 4, 8; cvt.u32.u64 %r2, %d5", 4),
        ("popc.b32 %r2, 0xF0F", 8),
        ("cvt.rzi.s32.f32 %r2, 0f4F800000", 0x7FFFFFFF),
        ("cvt.rni.s32.f32 %r2, 0f40200000", 2),
        ("cvt.rzi.s32.f32 %r2, 0f7FC00000", 0),
        ("cvt.rzi.s64.f32 %d5, 0fD1C00000; shr.s64 %d5, %d5, 4; cvt.u32.u64 %r2, %d5", 0x80000000),
        ("cvt.rzi.s64.f32 %d5, 0f7F800000; shr.s64 %d5, %d5, 32; cvt.u32.u64 %r2, %d5", 0x7FFFFFFF),
        ("mov.b16 %h0, 0x80; cvt.s16.s8 %h1, %h0; mov.b32 %r2, {%h1, %h0}", 0x0080FF80),
        ("cvt.rn.bf16x2.f32 %r2, 0f3F808000, 0f3F818000", 0x3F803F82),
        ("cvt.rn.f16x2.f32 %r2, 0f3F800000, 0f40000000", 0x3C004000),
        ("fma.rn.bf16x2 %r2, 0x40003F80, 0x40003F80, 0x3F803F80", 0x40A04000),
        ("sub.rn.f16x2 %r2, 0x3E003C00, 0x3C003E00", 0x3800B800),
        ("fma.rn.f32 %r2, 0f3F800001, 0f3F800001, 0fBF800002", 0x28800000),
        ("mul.rn.ftz.f32 %r2, 0f00800000, 0f3F000000", 0),
        ("mul.f32 %r2, 0f00800000, 0f3F000000", 0x00400000),
        ("max.f32 %r2, 0f7FC00000, 0f3F800000", 0x3F800000),
        ("max.NaN.f32 %r2, 0f7FC00000, 0f3F800000", 0x7FC00000),
        ("setp.ltu.f32 %p1, 0f7FC00000, 0f0; selp.b32 %r2, 1, 2, %p1", 1),
        ("setp.lt.f32 %p1, 0f7FC00000, 0f0; selp.b32 %r2, 1, 2, %p1", 2),
        ("setp.lt.s32 %p1, -1, 0; selp.b32 %r2, 1, 2, %p1", 1),
        ("setp.gt.u32 %p1, -1, 0; selp.b32 %r2, 1, 2, %p1", 1),
        ("{ .reg .b32 %r2; mov.b32 %r2, 5; } mov.b32 %r2, 6", 6),
        ("redux.sync.min.s32 %r2, -5, -1", 0xFFFFFFFB),
    ],
)  # fmt: skip
def test_an_instruction_computes(code: str, expected: int) -> None:
    assert (run(f"{code}; st.global.b32 [%d3], %r2;") == expected).all()


def test_threads_exchange_branch_and_meet_again() -> None:
    lane, thread = np.arange(THREADS) % 32, np.arange(THREADS)
    store = "; st.global.b32 [%d3], %r2;"
    np.testing.assert_array_equal(run("shfl.sync.bfly.b32 %r2, %r0, 5, 31, -1" + store), thread ^ 5)
    np.testing.assert_array_equal(run("shfl.sync.idx.b32 %r2, %r0, 3, 31, -1" + store), thread - lane + 3)
    up = np.where(lane < 2, thread, thread - 2)
    np.testing.assert_array_equal(run("shfl.sync.up.b32 %r2, %r0, 2, 0, -1" + store), up)
    loop = "mov.b32 %r2, 0; again: add.s32 %r2, %r2, 2; setp.lt.s32 %p1, %r2, %r0; @%p1 bra again; bar.warp.sync -1"
    np.testing.assert_array_equal(run(loop + store), np.maximum(thread + thread % 2, 2))
    other = "st.shared.b32 [%r14], %r0; bar.sync 0; ld.shared.b32 %r2, [%r13]"
    np.testing.assert_array_equal(run(other + store), thread ^ 32)


COPY = "cp.async.ca.shared.global [%r14], [%d4], 4; cp.async.commit_group; "


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("frob.b32 %r2, 1;", "line 14, 'frob.b32 %r2, 1': opcode 'frob' is not emulated"),
        ("add.sat.s32 %r2, 1, 2;", "modifier '.sat' is not emulated"),
        ("add.f8 %r2, 1, 2;", "modifier '.f8' is not emulated"),
        ("add.s32 %r2, 1;", "must have 3 operands, it has 2"),
        ("add.s32 %r2, %r3, 1;", "register %r3 is read, and nobody has written it"),
        ("add.s32 %x2, %r0, 1;", "%x2 is no register of 32 bits"),
        ("cvt.s32.f32 %r2, 0f0;", "from f32 to s32 it must say one of"),
        ("bar.sync 1, 32;", "bar.sync with operands 1, 32 is not emulated"),
        ("st.global.b32 [%d3+256], %r0;", r"4 bytes at global address 0x\w+ lies outside .* \(block 0, thread 0\)"),
        ("ld.global.b32 %r2, [%d4+-4];", "outside every tensor"),
        ("ld.global.v2.b32 {%r2, %r3}, [%d1+4];", r"8 bytes at global address 0x\w+ is misaligned"),
        ("st.shared.b32 [%r14+1024], %r0;", "outside every tensor"),
        ("ld.shared.b32 %r2, [%r14];", "shared address 0x0 is read, and nobody has written it"),
        ("st.shared.b32 [%r14], %r0; ld.shared.b32 %r2, [%r13];", "a race: shared address .* is read"),
        ("st.shared.b32 [%r14], 0; bar.sync 0; ld.shared.b32 %r2, [%r13]; st.shared.b32 [%r14], 1;", ".* is written"),
        ("st.shared.b32 [%r15], %r0;", "a race: lanes write different values to shared address 0x0"),
        ("st.global.b32 [%d0], %r0;", "a race: lanes write different values to global address"),
        (COPY + "ld.shared.b32 %r2, [%r14];", "shared address 0x0 is read before its copy was waited for"),
        (COPY + "cp.async.wait_group 1; ld.shared.b32 %r2, [%r14];", "before its copy was waited for"),
        (COPY + "cp.async.wait_group 0; ld.shared.b32 %r2, [%r13];", "a race: shared address .* is read"),
        (COPY + "st.shared.b32 [%r14], 1;", "is written while a copy to it is under way"),
        ("st.shared.b32 [%r14], 0; bar.sync 0; ld.shared.b32 %r2, [%r13];" + COPY, "a race: .* is written"),
        ("@%p0 bar.sync 0;", "threads of a block have ended while others wait at the barrier of line 14"),
        ("@%p0 bar.sync 0; @%p0 bra past;\nbar.sync 0; past: ", "wait at the barriers of lines 14 and 15"),
        ("mov.b32 %r2, %laneid; setp.eq.b32 %p1, %r2, 3; @%p1 bra past; shfl.sync.idx.b32 %r2, %r0, 3, 31, -1; past: ",
         "all 32 threads must execute it together"),
    ],
)  # fmt: skip
def test_what_no_gpu_promises_is_refused(body: str, what: str) -> None:
    with pytest.raises(PtxFault, match=what):
        run(body)


def test_blocks_are_never_ordered() -> None:
    """Whatever barriers they pass. Both blocks write what is there, or their own number."""
    run("st.global.b32 [%d3], 7;", grid=2)
    with pytest.raises(PtxFault, match="a race: lanes write different values to global address"):
        run("mov.u32 %r2, %ctaid.x; bar.sync 0; st.global.b32 [%d3], %r2;", grid=2)
    with pytest.raises(PtxFault, match=r"a race: global address .* is written"):
        run("ld.global.b32 %r2, [%d4]; bar.sync 0; add.s32 %r2, %r2, 1; st.global.b32 [%d4], %r2;", grid=2)


# -- planted bugs -----------------------------------------------------------------------------------------------------


def attention(emulator: Emulator) -> None:
    Step(((20, 20), (1, 600)), head_dim=64, heads=4, kv_heads=2, dtype="bfloat16", sm=emulator.sm).check(emulator)


def int4(emulator: Emulator) -> None:
    memory = Memory()
    case = gpu_int4.make(memory, 17, 64, 256, 32, "float16")
    gpu_int4.run(emulator, memory, case, gpu_int4.started(memory, case, emulator.sm))
    gpu_int4.check(memory, case)


def norm(emulator: Emulator) -> None:
    gpu_rms_norm.check(gpu_rms_norm.run(emulator, 3, 576, "float16", True), "float16")


WORK: dict[str, Callable[[Any], None]] = {"attention": attention, "int4": int4, "norm": norm}


@pytest.mark.parametrize(
    ("work", "sm", "pattern", "instead", "what"),
    [
        ("norm", 80, r"bar\.sync\s+0;", "", "a race: shared address"),
        ("norm", 80, r"(?m)^\t@%p\d+ ld\.global", "\tld.global", "outside every tensor"),
        ("norm", 80, r"@%p\d+ st\.global", "st.global", "outside every tensor|a race"),
        ("norm", 80, r"(st\.global\.v4\.b32 \[ %rd\d+ \+) 0", r"\1 2", "misaligned"),
        ("norm", 80, r"(st\.global\.v4\.b32 \[ %rd\d+ \+) 0", r"\1 16", "outside every tensor|a race"),
        ("norm", 80, r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+,) 1,", r"\1 2,", "a race: lanes write different values"),
        ("int4", 80, r"cp\.async\.wait_group\s+\d;", "", "copy"),
        ("int4", 80, r"cp\.async\.wait_group\s+\d;", "cp.async.wait_group 6;", "copy"),
        ("int4", 80, r"0x6A;", "0xEA;", "AssertionError"),
        ("int4", 90, r"wgmma\.wait_group[^;]*;", "", "belongs to a wgmma that was not waited for"),
        ("int4", 90, r"fence\.proxy\.async[^;]*;", "", "fence.proxy.async is missing"),
        ("attention", 80, r"bar\.sync\s+0;", "", "a race: shared address"),
        ("attention", 80, r"cp\.async\.wait_group\s+\d;", "cp.async.wait_group 6;", "copy"),
        ("attention", 80, r"(ldmatrix\S*)\.trans", r"\1", "AssertionError"),
        ("attention", 90, r"wgmma\.fence[^;]*;", "", "wgmma.fence is missing"),
        ("attention", 90, r"bar\.sync\s+0;", "", "a race: shared address"),
        ("attention", 90, r", 1, 1, 1;", ", 1, 1, 0;", "a race|copy"),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(kernel_cache: Path, work: str, sm: int, pattern: str, instead: str, what: str) -> None:
    """The PTX is changed in each place that the pattern finds. Unchanged it passes, in test_machine_code.py."""
    changed = 0

    def edit(ptx: str) -> str:
        nonlocal changed
        made, times = re.subn(pattern, instead, ptx)
        changed += times
        return made

    expected = AssertionError if what == "AssertionError" else PtxFault
    with pytest.raises(expected, match=None if what == "AssertionError" else what):
        WORK[work](Emulator(sm, cache=kernel_cache, edit=edit))
    assert changed, "the pattern is not in the code"
