"""Starts programs under MPI, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

LAUNCHERS = {
    "openmpi": ("mpirun.openmpi", "--oversubscribe", "--bind-to", "none"),
    "mpich": ("mpiexec.mpich",),
}
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Open MPI does not start processes for root unless this says that it may."""


def launcher_of(kind: str) -> tuple[str, ...]:
    """Returns the program of one of LAUNCHERS with its options. Skips the test if it is not installed."""
    launcher, *options = LAUNCHERS[kind]
    if shutil.which(launcher) is None:
        pytest.skip(f"no {launcher} on this machine (Debian: {'openmpi-bin' if kind == 'openmpi' else 'mpich'})")
    return launcher, *options


def answered(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **ALLOWED})
