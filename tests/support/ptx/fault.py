"""The error of a program that does what a GPU would not do, or does not promise to do."""

from __future__ import annotations

from tensorwright.errors import KernelError


class PtxFault(KernelError):
    """A program that the emulator refuses: an unknown instruction, a wrong access, a race, a wait that is missing."""
