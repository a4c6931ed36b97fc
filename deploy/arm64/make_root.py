"""Makes a folder with Debian's Python for aarch64 and its headers, on a machine with another processor.

    python deploy/arm64/make_root.py 3.11        # prints the folder, build/arm64-roots/3.11; one that exists is kept

Wheels for aarch64 are compiled against its headers (deploy/wheel/make_wheels.py --arm64) and tried with its Python in
qemu-aarch64 (deploy/wheel/try_wheels.py). Debian's mmdebstrap makes it (apt-get install mmdebstrap): it fetches and
unpacks packages, and runs nothing of them. So nothing has to be emulated for it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOTS = Path(__file__).resolve().parents[2] / "build" / "arm64-roots"
SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""Versions of Python, and the release of Debian that has each."""
LOADER = "lib/ld-linux-aarch64.so.1"
"""What starts a program of the root, as programs name it."""


class RootError(Exception):
    """The root cannot be made."""


def packages(version: str) -> str:
    """Returns the packages that a root has, beside those that they need, as mmdebstrap takes them."""
    return f"base-files,python{version},libpython{version}-dev,libstdc++6,ca-certificates"


def make_root(version: str, out: Path) -> None:
    """Makes the root of a version of Python, such as "3.11", at `out`, if there is none. Raises RootError if it cannot
    be had."""
    if version not in SUITES:
        known = " and ".join(f"{each} (Debian {suite})" for each, suite in SUITES.items())
        raise RootError(f"no root has Python {version}: make one with {known}; the wheel of 3.13 is for 3.12 too")
    if out.exists():
        return
    if shutil.which("mmdebstrap") is None:
        raise RootError("mmdebstrap is not installed: apt-get install mmdebstrap")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:
        root = Path(work, "root")
        command = (
            "mmdebstrap", "--mode=auto", "--variant=extract", "--architectures=arm64", "--quiet",
            f"--include={packages(version)}", SUITES[version], str(root),
        )  # fmt: skip
        outcome = subprocess.run(command, stdout=sys.stderr)
        if outcome.returncode:
            raise RootError(f"{' '.join(command)} ended with code {outcome.returncode}")
        if not (root / LOADER).exists() or not (root / "usr" / "bin" / f"python{version}").exists():
            raise RootError(f"mmdebstrap made a root without {LOADER} or without python{version}")
        root.chmod(0o755)
        os.rename(root, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help=f"of Python: {' or '.join(SUITES)}")
    parser.add_argument("out", type=Path, nargs="?", help="the folder to make (default: build/arm64-roots/VERSION)")
    arguments = parser.parse_args()
    out = (arguments.out or ROOTS / arguments.version).resolve()
    try:
        make_root(arguments.version, out)
    except (RootError, OSError) as error:
        sys.exit(f"error: {error}")
    print(out)


if __name__ == "__main__":
    main()
