"""The types of the compiled module, for editors and mypy, are those that the module has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.places import ROOT

STUB = "runtime/_runtime.pyi"
MAKE = ("-m", "nanobind.stubgen", "-m", "tensorwright.runtime._runtime", "-p", "runtime/bindings/stub_patterns.txt")


def test_the_stub_is_that_of_the_module(tmp_path: Path) -> None:
    made = tmp_path / "_runtime.pyi"
    subprocess.run([sys.executable, "-P", *MAKE, "-q", "-o", str(made)], check=True, cwd=ROOT)
    assert (ROOT / STUB).read_text() == made.read_text(), f"run python -P {' '.join(MAKE)} -o {STUB}"
