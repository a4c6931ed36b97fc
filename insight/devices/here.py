"""Measures this machine as a device: its memory, and the ceilings that it holds.

On a shared machine the best millisecond of reads is more than a step of an engine finds, so the median of several
measurements counts. Of arithmetic the best does.
"""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import replace

from tensorwright.insight.devices.device import Device, platforms
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.tools.ceilings import Ceilings, figures, measure_ceilings
from tensorwright.runtime.tools.rank_link import measure_link

MEASUREMENTS, ROUNDS = 7, 6
"""How many measurements, and of how many rounds of a millisecond or two each."""


def measure_here(threads: int | None, linked: bool = False) -> tuple[Device, int]:
    """Returns this machine and the threads that were measured. threads: None means one per usable processor. linked:
    the memory that ranks share is measured too, as a link to others of its kind: sockets of one machine, all like this
    one.

    It takes about two seconds, during which nothing else should run. Raises IsaError, InvalidOptionError.
    """
    count = choose_threads(threads)
    found = [measure_ceilings(count, ROUNDS) for _ in range(MEASUREMENTS)]
    held = Ceilings(
        count,
        statistics.median(each.read for each in found),
        max(each.float32 for each in found),
        None if found[0].bfloat16 is None else max(each.bfloat16 or 0.0 for each in found),
        max(each.int8 for each in found),
    )
    peaks = {"float32": held.float32, "int8": held.int8}
    if held.bfloat16 is not None:
        peaks["bfloat16"] = held.bfloat16
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    source = f"measured now with {count} threads: {figures(held)}"
    here = Device(
        "this machine",
        platforms()["x86" if platform.machine() == "x86_64" else "arm"],
        memory,
        held.read,
        peaks,
        source,
    )
    if linked:
        link = measure_link()
        here = replace(
            here, link=link.rate, link_seconds=link.seconds,
            source=f"{source}; between two ranks {link.rate / 1e9:.1f} GB/s and {link.seconds * 1e6:.1f} us each",
        )  # fmt: skip
    return here, count
