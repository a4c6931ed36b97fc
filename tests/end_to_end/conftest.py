"""What several end-to-end tests share: real prompts.

The prompts are lines of the standard library's files that pico did not train on.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def held_out_lines() -> list[str]:
    """Lines of 20 characters or more, in a fixed order, from a spread of held-out files."""
    from tensorwright.models.train_pico import read_texts

    _, held_out = read_texts(None)
    lines = [[line for line in text.splitlines() if len(line) >= 20] for text in held_out]
    return [line for file in lines if len(file) > 60 for line in file[40:60:4]]
