"""Runs child.py at memory addresses that are the same each time. The parent starts this module, not child.py.

TensorRT orders some tables of a plan by where objects lie in memory, so that two processes write plans that differ in
that order. Without the randomisation of addresses, and with everything else alike, they are often byte-identical; they
still differ where TensorRT's threads meet in another order (docs/tensorrt.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

CHILD = "tensorwright.builder.emit.tensorrt.child"
ADDR_NO_RANDOMIZE = 0x0040000
"""A flag of Linux's personality(2). A sandbox may refuse it."""
_ASK = 0xFFFFFFFF


def is_fixed() -> bool:
    """Whether this process has no randomised addresses."""
    if not sys.platform.startswith("linux"):
        return False
    now = ctypes.CDLL(None).personality(_ASK)
    return now != -1 and bool(now & ADDR_NO_RANDOMIZE)


def main() -> None:
    """Turns this process into the child, without touching stdin."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        now = libc.personality(_ASK)
        if now != -1:
            libc.personality(now | ADDR_NO_RANDOMIZE)  # If it is refused, the child notices, and the report says so.
    os.execv(sys.executable, [sys.executable, "-P", "-m", CHILD])


if __name__ == "__main__":
    main()
