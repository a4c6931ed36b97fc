"""Folders of this repository that tests read."""

import sys
import sysconfig
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def build_folder() -> Path | None:
    """Where `pip install -e .` compiled the module for this Python, or None if it never did."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    folder = ROOT / "build" / f"{version}-{version}-{platform}"
    return folder if (folder / "CMakeCache.txt").exists() else None
