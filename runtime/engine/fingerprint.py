"""Says which engines compute the same bits: those of the same plan and weights, whose kernels are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tensorwright.engine_format.targets import TARGETS
from tensorwright.runtime.engine.engine_dir import EngineDir


def files_fingerprint(engine: EngineDir) -> str:
    """Returns a checksum of the checksums of plan and weights, as hexadecimal digits."""
    files = (name for name in TARGETS[engine.target].files if name in engine.files)
    return _digest(f"{name} {engine.files[name].digest}" for name in sorted(files))


def kernels_fingerprint(choices: Iterable[Mapping[str, Any]]) -> str:
    """Returns a checksum of the names of the kernels that run. choices: those of `native.dispatch_choices`."""
    return _digest(f"{choice['family']} {choice['taken']}" for choice in choices)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
