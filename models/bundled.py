"""The checkpoints that come with the package."""

from __future__ import annotations

from pathlib import Path

from tensorwright.errors import CheckpointError

NAMES = ("pico", "pico-draft")


def bundled_model(name: str = "pico") -> Path:
    """The directory of "pico" or its draft "pico-draft". Raises CheckpointError for any other name."""
    if name not in NAMES:
        raise CheckpointError(f"no bundled model is called {name!r}; there are {', '.join(NAMES)}")
    return Path(__file__).with_name(name)
