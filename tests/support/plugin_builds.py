"""Child processes in which TensorRT for RTX builds networks of plugins: what they are given, and what they made."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
SAME_ADDRESSES = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2)."""


@dataclass
class Built:
    """What a child process made of one network."""

    plan: bytes
    error: str
    layers: list[str]
    serialized: list[list[Any]]


class PluginBuilds:
    """`builds(jobs)` runs the jobs of support/plugin_build.py in one child process."""

    def __init__(self, folder: Path, cache_home: Path) -> None:
        self.folder = folder
        package = importlib.util.find_spec("tensorrt_rtx_libs")
        assert package is not None
        assert package.submodule_search_locations
        # the parser looks for this name and ends the process where it is missing
        (folder / "lib").mkdir()
        (library,) = Path(package.submodule_search_locations[0]).glob("libtensorrt_rtx.so.*")
        (folder / "lib" / "libtensorrt_rtx.so").symlink_to(library)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(TESTS),
            "PYTHONHASHSEED": "0",
            "PYTHONSAFEPATH": "1",
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "XDG_CACHE_HOME": str(cache_home),
        }

    def __call__(self, jobs: list[dict[str, Any]], same_addresses: bool = False) -> list[Built]:
        for index, job in enumerate(jobs):
            job["plan"] = str(self.folder / f"{index}.plan")
            (self.folder / f"{index}.onnx").write_bytes(job["onnx"])
            job["onnx"] = str(self.folder / f"{index}.onnx")
        (self.folder / "jobs.json").write_text(json.dumps(jobs))
        command = [sys.executable, "-m", "support.plugin_build", str(self.folder / "jobs.json")]
        setup = keep_addresses if same_addresses else None
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, preexec_fn=setup, check=False
        )
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
        return [
            Built(Path(job["plan"]).read_bytes(), r["error"], r["layers"].splitlines(), r["serialized"])
            for job, r in zip(jobs, json.loads(done.stdout), strict=True)
        ]


def keep_addresses() -> None:
    """In a child process before its program starts."""
    if ctypes.CDLL(None).personality(SAME_ADDRESSES) < 0:
        raise OSError("personality(ADDR_NO_RANDOMIZE) is not allowed here")


def may_keep_addresses() -> bool:
    """Containers may forbid it."""
    code = "from support.plugin_builds import keep_addresses; keep_addresses()"
    environment = {"PYTHONPATH": str(TESTS), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    return done.returncode == 0
