"""Whether tests that need an NVIDIA GPU can run here."""

from __future__ import annotations

import ctypes


def no_driver() -> bool:
    """Asked of libcuda itself, so that an absent package does not look like an absent driver."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) != 0
    except OSError:
        return True


REASON = "no NVIDIA driver"
