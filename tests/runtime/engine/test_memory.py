"""The default size of the KV cache and the number of threads, on made-up machines and control groups.

Python and the C++ core, which the C interface asks, compute both: each case holds for the two.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import engine_config, write_engine
from tensorwright.errors import InvalidOptionError, OutOfMemoryError, TensorwrightWarning
from tensorwright.runtime import _testing
from tensorwright.runtime.base import host
from tensorwright.runtime.engine import memory
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.memory import CacheShares, check_kv_bytes
from tensorwright.sizes import format_size, parse_size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (GIB, GIB),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1.5GiB", 3 * GIB // 2),
        ("2GB", 2_000_000_000),
        ("2g", 2_000_000_000),
        ("7", 7),
        ("4KiB", 4096),
    ],
)
def test_sizes_are_read(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "0", "MiB", "1 XB", "-1MiB", "1e9", "", None, [], "0.1", "9" * 400])
def test_impossible_sizes_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match="kv_cache_memory must be a positive number of bytes"):
        parse_size(bad)


def test_sizes_are_shown() -> None:
    assert [format_size(size) for size in (5, 1536, 3 << 30, 5 << 40)] == ["5 B", "1.5 KiB", "3.0 GiB", "5.0 TiB"]


def engine(tmp_path: Path, **limits: int) -> EngineDir:
    config = engine_config(limits={"max_seq_len": 128, "block_size": 32, "kv_block_bytes": 2048, **limits})
    return open_engine(write_engine(tmp_path / "engine", config))


def needs(engine: EngineDir) -> Any:
    """What the core is told of an engine's memory."""
    weights = engine.weights.stat().st_size
    return _testing.CacheNeeds(weights, engine.kv_block_bytes, engine.state_bytes, engine.most_held, engine.block_size)


def default_kv_bytes(engine: EngineDir, batch: int, available: int, prefixes: bool = True) -> int:
    try:
        size = memory.default_kv_bytes(engine, batch, available, prefixes=prefixes)
    except OutOfMemoryError:
        with pytest.raises(OutOfMemoryError, match=f"got {available} bytes of available memory"):
            _testing.default_cache_bytes(needs(engine), batch, available, prefixes)
        raise
    assert _testing.default_cache_bytes(needs(engine), batch, available, prefixes) == size
    return size


def share_cache(engine: EngineDir, size: int, batch: int, snapshots: int | None) -> CacheShares:
    try:
        shares = memory.share_cache(engine, size, batch, snapshots)
    except OutOfMemoryError:
        with pytest.raises(OutOfMemoryError, match=f"got {snapshots}; ask for fewer"):
            _testing.share_cache(needs(engine), size, batch, snapshots)
        raise
    assert CacheShares(*_testing.share_cache(needs(engine), size, batch, snapshots)) == shares
    return shares


def populated_bytes(available: int) -> int:
    size = memory.populated_bytes(available)
    assert _testing.populated_bytes(available) == size
    return size


def available_memory(proc: Path, cgroup: Path) -> int:
    size = host.available_memory(proc, cgroup)
    assert _testing.available_memory(str(proc), str(cgroup)) == size
    return size


def test_default_is_what_a_full_batch_can_use(tmp_path: Path) -> None:
    small = engine(tmp_path)
    assert default_kv_bytes(small, 8, available=GIB) == 2048 * 4 * 8  # bytes of a block, blocks, sequences


def test_default_is_at_most_half_of_what_is_left(tmp_path: Path) -> None:
    large = engine(tmp_path, max_seq_len=1 << 20)
    weights = large.weights.stat().st_size
    assert default_kv_bytes(large, 64, available=weights + 10 * (1 << 20)) == 5 * (1 << 20)


def test_little_is_taken_before_requests_come() -> None:
    assert populated_bytes(available=64 * GIB) == GIB
    assert populated_bytes(available=2 * GIB) == GIB // 4


def test_no_room_is_an_error_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match=r"at least 2.0 KiB, but 1.0 KiB .* set kv_cache_memory"):
        default_kv_bytes(engine(tmp_path), 8, available=1024)


STATES = {"state_bytes": 10_000}
FULL = 8 * (10_000 + 4 * 2048)  # the states of 8 sequences and their longest positions


def test_states_come_first_then_snapshots_and_blocks_get_the_rest(tmp_path: Path) -> None:
    hybrid = engine(tmp_path, **STATES)
    size = default_kv_bytes(hybrid, 8, available=GIB)
    assert size == FULL + int(FULL / 3), "a quarter of all is for snapshots"
    shares = share_cache(hybrid, size, 8, None)
    assert shares == CacheShares(size - 12 * 10_000, 8, 4)
    assert shares.kv_bytes >= 8 * 4 * 2048
    assert share_cache(hybrid, size, 8, 0) == CacheShares(size - 8 * 10_000, 8, 0)
    assert default_kv_bytes(hybrid, 8, available=GIB, prefixes=False) == FULL
    large = share_cache(hybrid, GIB, 8, None)
    assert (large.sequences, large.snapshots) == (8, 32), "no more than 4 for each sequence"


def test_short_memory_holds_the_states_of_fewer_sequences(tmp_path: Path) -> None:
    hybrid = engine(tmp_path, **STATES)
    assert share_cache(hybrid, FULL // 2, 8, 0) == CacheShares(4 * 4 * 2048, 4, 0)
    one = share_cache(hybrid, 12_048, 8, None)
    assert one == CacheShares(2048, 1, 0), "a block, and no snapshot"
    with pytest.raises(
        OutOfMemoryError, match=r"one block of 2048 bytes and the states of one completion, 10000 bytes"
    ):
        check_kv_bytes(12_047, hybrid, available=GIB)
    with pytest.raises(OutOfMemoryError, match=r"needs at least 11\.8 KiB, but 1\.0 KiB"):
        default_kv_bytes(hybrid, 8, available=1024)
    with pytest.raises(
        OutOfMemoryError, match=r"state_snapshots=9: beside the states of 4 completions, .* holds 2 snapshots"
    ):
        share_cache(hybrid, FULL // 2, 8, 9)


def test_a_model_without_attention_has_states_alone(tmp_path: Path) -> None:
    pure = engine(tmp_path, **STATES, kv_block_bytes=0)
    size = default_kv_bytes(pure, 8, available=GIB)
    assert share_cache(pure, size, 8, None) == CacheShares(size - 10 * 10_000, 8, 2)


def machine(root: Path, files: dict[str, str]) -> dict[str, Path]:
    """Writes a /proc and a /sys/fs/cgroup; 8 GiB are available to the kernel."""
    files = {"proc/meminfo": f"MemTotal: 16777216 kB\nMemAvailable: {8 << 20} kB\n", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return {"proc": root / "proc", "cgroup": root / "cgroup"}


def test_without_control_groups_the_kernel_is_believed(tmp_path: Path) -> None:
    assert available_memory(**machine(tmp_path, {})) == 8 * GIB
    unlimited = {"proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "max\n", "cgroup/a/memory.current": "5\n"}
    assert available_memory(**machine(tmp_path, unlimited)) == 8 * GIB


def test_version_2_limit_of_a_parent_group_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "cgroup/pod/memory.max": f"{4 * GIB}\n",
        "cgroup/pod/memory.current": f"{3 * GIB}\n",
        "cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
        "cgroup/pod/container/memory.max": "max\n",
    }
    assert available_memory(**machine(tmp_path, files)) == GIB + GIB // 2


def test_version_1_limit_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/box\n0::/\n",
        "cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
        "cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
        "cgroup/memory/box/memory.stat": f"total_inactive_file {GIB // 4}\n",
    }
    assert available_memory(**machine(tmp_path, files)) == GIB + GIB // 4


def test_inside_a_container_the_root_holds_the_limit(tmp_path: Path) -> None:
    """There /proc/self/cgroup names a path of the host that does not exist inside."""
    files = {
        "proc/self/cgroup": "0::/docker/abc\n",
        "cgroup/memory.max": f"{GIB}\n",
        "cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert available_memory(**machine(tmp_path, files)) == 0


def test_this_machine_has_some_memory() -> None:
    assert 0 < host.available_memory() < 1 << 50


def cpus(root: Path, cores: list[int], lists: dict[str, list[str]] | None = None) -> Path:
    """The folder of processors of a machine, of which `cores` has the core_id of each, and `lists` more files."""
    for cpu, core in enumerate(cores):
        topology = root / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text("0\n")
        for name, texts in (lists or {}).items():
            (topology / name).write_text(f"{texts[cpu]}\n")
    return root / "cpu"


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 2),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "150000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "max 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/\n",
                "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "3:cpu:/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, 2),
    ],
)
def test_threads_are_cores_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    two_threads_per_core = cpus(tmp_path, [0, 1, 0, 1])
    folders = machine(tmp_path, files)
    assert host.default_threads(**folders, cpus=two_threads_per_core) == threads
    quota = _testing.processor_quota(*map(str, folders.values()))
    assert (2 if quota is None else max(1, int(quota))) == threads


@pytest.mark.parametrize(
    ("ids", "lists", "cores"),
    [
        # Two clusters of two cores, as a device tree describes them: the numbers repeat.
        ([0, 1, 0, 1], {"core_cpus_list": ["0", "1", "2", "3"]}, 4),
        ([0, 1, 0, 1], {"thread_siblings_list": ["0", "1", "2", "3"]}, 4),
        ([0, 0, 0, 0], {"core_cpus_list": ["0-1", "0-1", "2-3", "2-3"]}, 2),
        ([0, 1, 0, 1], {"core_cpus_list": ["0,2", "1,3", "0,2", "1,3"]}, 2),
        # The newer name counts where a kernel has both.
        ([0, 1, 0, 1], {"core_cpus_list": ["0", "1", "2", "3"], "thread_siblings_list": ["0-3"] * 4}, 4),
        # Without the lists the numbers are all that there is, and without both each processor is a core.
        ([0, 1, 0, 1], {}, 2),
        ([], {}, 4),
    ],
)
def test_cores_are_told_apart_by_the_processors_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int], lists: dict[str, list[str]], cores: int
) -> None:
    usable = [0, 1, 2, 3]
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(usable))
    assert host.default_threads(**machine(tmp_path, {}), cpus=cpus(tmp_path, ids, lists)) == cores
    assert _testing.count_cores(str(tmp_path), usable) == cores


def test_the_core_counts_the_same_threads_of_this_machine() -> None:
    assert _testing.default_threads() == host.default_threads()


def test_more_threads_than_processors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [host.choose_threads(asked) for asked in (1, 2)] == [1, 2]
        assert host.choose_threads(None) == host.default_threads()
    with pytest.warns(TensorwrightWarning, match="threads=1000: this process may run on 2 processors"):
        assert host.choose_threads(1000) == 1000
