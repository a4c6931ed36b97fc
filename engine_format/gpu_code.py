"""Says on which GPUs machine code runs, by compute capability (SM): 90 is 9.0."""

from __future__ import annotations

ARCH_SPECIFIC = 90
"""Code for this SM and above runs only on its own SM (sm_90a, sm_120a). The same is true of its PTX."""


def runs_on(at: int, sm: int) -> bool:
    """Says whether machine code for `at` runs on `sm`: its own, or below ARCH_SPECIFIC a later one of its generation.

    runtime/core/cuda/cuda_executor.cc asks the same of a plan that is opened.
    """
    return at == sm or (at // 10 == sm // 10 and at < sm and at < ARCH_SPECIFIC)
