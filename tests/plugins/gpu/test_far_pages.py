"""Offsets into the KV cache have 64 bits: pages behind 2^31 elements are written and read where they are."""

from __future__ import annotations

import os
import subprocess
import sys

from support.places import TESTS


def test_pages_behind_2_31_elements() -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-P", "-m", "support.far_pages"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "all found\n", done.stderr[-3000:]
