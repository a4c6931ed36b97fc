"""Coverage-guided fuzzing of python_targets.py: `python fuzz/fuzz_python.py TARGET [CORPUS] [options of libFuzzer]` in
the folder of the tests. Needs `pip install atheris`.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from importlib import machinery
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import atheris
from atheris.import_hook import AtherisMetaPathFinder

INSTRUMENTED = ["tensorwright", "fuzz", "llguidance", "uvicorn.protocols"]


class PlainLoader(MetaPathFinder):
    """Of what is installed as editable, whose own loader atheris does not instrument."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> machinery.ModuleSpec | None:
        if name.partition(".")[0] != "tensorwright":
            return None
        others = (each for each in sys.meta_path if not isinstance(each, AtherisMetaPathFinder | PlainLoader))
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = machinery.SourceFileLoader(name, spec.origin)
        return spec


sys.meta_path.insert(0, PlainLoader())
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
with atheris.instrument_imports(include=INSTRUMENTED):
    from fuzz.json_mutator import changed
    from fuzz.python_targets import TARGETS
    from fuzz.words import WORDS


def main() -> None:
    target = TARGETS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if target is None:
        raise SystemExit(f"fuzz_python.py: TARGET must be one of {', '.join(TARGETS)}")
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as dictionary:
        dictionary.writelines(f'"{_escaped(word)}"\n' for word in WORDS)
        dictionary.flush()
        itself = shlex.join([sys.executable, *sys.argv[:2]])  # a merge starts it again, by the shell
        atheris.Setup([itself, f"-dict={dictionary.name}", *sys.argv[2:]], target, custom_mutator=_mutated)
        atheris.Fuzz()


def _mutated(data: bytes, most: int, seed: int) -> bytes:
    """As JSON, or else as bytes. libFuzzer asks up to five times in a row."""
    made = changed(data, most, seed) if seed % 3 else None
    return atheris.Mutate(data, most) if made is None else made


def _escaped(word: str) -> str:
    """As libFuzzer's dictionaries have it."""
    plain = {ord("\\"): "\\\\", ord('"'): '\\"'}
    return "".join(chr(byte).translate(plain) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    main()
