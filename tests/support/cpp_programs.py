"""Where the C++ tests are compiled, and how tests of pytest run programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from support.places import ROOT, build_folder, find_tool

BUILD = Path(os.environ.get("TENSORWRIGHT_CPP_BUILD", build_folder() or ROOT / "build" / "cpp-tests"))
"""Where the installed module was compiled, if it was here: then its library is not compiled again."""


def call(*command: str, env: dict[str, str] | None = None) -> str:
    """Returns what the program prints to stdout. Fails with all that it printed if its exit status is not 0."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def commands_of(folder: Path) -> dict[str, list[str]]:
    """Returns the C++ tests that a build folder was configured with, by name, and the command that runs each."""
    listed = json.loads(call(find_tool("ctest"), "--test-dir", str(folder), "--show-only=json-v1"))
    return {test["name"]: test["command"] for test in listed["tests"]}
