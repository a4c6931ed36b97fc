"""Coverage-guided fuzzing of python_targets.py: `python fuzz/fuzz_python.py TARGET [CORPUS] [options of libFuzzer]` in
the folder of the tests. Needs `pip install atheris`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
with atheris.instrument_imports(include=["tensorwright", "fuzz"]):
    from fuzz.python_targets import TARGETS


def main() -> None:
    target = TARGETS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if target is None:
        raise SystemExit(f"fuzz_python.py: TARGET must be one of {', '.join(TARGETS)}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
