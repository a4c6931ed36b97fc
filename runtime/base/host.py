"""Finds how much memory and how many processors this process may use, within the limits of its containers.

runtime/core/base/host.h finds the same for the C interface; tests/runtime/engine/test_memory.py compares.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from pathlib import Path

from tensorwright.errors import TensorwrightWarning

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Returns the bytes that the process may still take: the kernel's estimate, or what its control groups leave if
    that is less."""
    room = _meminfo(proc)["MemAvailable"]
    for folder, limit, used, reclaimable in _memory_groups(proc, cgroup):
        most = _number(folder / limit)
        if most is not None:
            # Clean file pages count as used, but the kernel gives them up when a process asks for memory.
            taken = (_number(folder / used) or 0) - _stat(folder / "memory.stat", reclaimable)
            room = min(room, max(0, most - taken))
    return room


def default_threads(proc: Path = PROC, cgroup: Path = CGROUP, cpus: Path = CPUS) -> int:
    """Returns the number of physical cores that this process may use, at most the quota of its control groups."""
    allowed = os.sched_getaffinity(0)
    cores = {_core(cpus, cpu) for cpu in allowed}
    quotas = [quota for folder in _groups(proc, cgroup, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, min([len(cores), *(int(quota) for quota in quotas)]))


def processor(proc: Path = PROC) -> tuple[str, set[str]]:
    """Returns the name of the processor, and the flags of its features as the kernel writes them.

    On aarch64 the kernel knows no name: the numbers of the implementer and of its part stand for it, as in
    "aarch64 0x41 0xd0c".
    """
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return platform.machine(), set()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    numbers = [re.search(rf"^CPU {what}\s*:\s*(.*)$", text, re.MULTILINE) for what in ("implementer", "part")]
    unnamed = " ".join([platform.machine(), *(number[1] for number in numbers if number)])
    return model[1] if model else unnamed, set(flags[1].split()) if flags else set()


def choose_threads(asked: int | None) -> int:
    """Returns `asked`, or default_threads() if it is None. Warns if `asked` is more than the process's processors."""
    if asked is None:
        return default_threads()
    processors = len(os.sched_getaffinity(0))
    if asked > processors:
        warnings.warn(
            f"threads={asked}: this process may run on {processors} processors, and more threads than that only "
            f"wait for each other; leave it out for the best number ({default_threads()})",
            TensorwrightWarning,
            stacklevel=2,
        )
    return asked


def _core(cpus: Path, cpu: int) -> tuple[int, int, int]:
    """Returns what the processors of one core have in common: package, number of the core, lowest processor.

    The numbers of cores repeat in each cluster of a machine that a device tree describes, so the list of a core's
    processors decides where there is one (Linux, admin-guide/cputopology; kernels before 5.3 call it
    thread_siblings_list).
    """
    topology = cpus / f"cpu{cpu}" / "topology"
    core = _number(topology / "core_id")
    lists = (_word(topology / name) for name in ("core_cpus_list", "thread_siblings_list"))
    first = next((int(number[0]) for text in lists if (number := re.match(r"\d+", text))), None)
    if core is None and first is None:  # as in some virtual machines: every processor counts as a core
        return (-1, -1, cpu)
    package = _number(topology / "physical_package_id") or 0
    return (package, -1 if core is None else core, -1 if first is None else first)


def _cpu_quota(folder: Path) -> float | None:
    """Returns how many processors' time a group may use; None means no limit. Tries cgroup version 2 first, then 1."""
    both = _words(folder / "cpu.max")
    quota, period = both if len(both) == 2 else (_word(folder / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _memory_groups(proc: Path, cgroup: Path) -> list[tuple[Path, str, str, str]]:
    """Returns (folder, limit file, usage file, key of reclaimable bytes) for each control group of this process."""
    version_2 = ("memory.max", "memory.current", "inactive_file")
    version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return [(folder, *names) for folder in _groups(proc, cgroup, "memory") for names in (version_2, version_1)]


def _groups(proc: Path, cgroup: Path, controller: str) -> list[Path]:
    """Returns the folders of this process's group and of all groups above it, in the layout of either version."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 mounts each controller in its own folder. In a container, the group's own folder is the root.
        root = cgroup / controllers if controllers else cgroup
        inside = Path(path.lstrip("/"))
        folders += [root / part for part in (inside, *inside.parents)]
        if controllers:
            folders += [cgroup / controller / part for part in (inside, *inside.parents)]
    return list(dict.fromkeys(folders))


def _meminfo(proc: Path) -> dict[str, int]:
    """Returns the entries of /proc/meminfo, in bytes."""
    lines = (proc / "meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _word(path: Path) -> str:
    return next(iter(_words(path)), "")


def _number(path: Path) -> int | None:
    """Returns the number in a file; None if the file does not exist or contains "max"."""
    word = _word(path)
    return int(word) if word.isdigit() else None


def _stat(path: Path, key: str) -> int:
    words = _words(path)
    return next((int(value) for name, value in zip(words[::2], words[1::2], strict=False) if name == key), 0)
