"""Calling the `tensorwright` command inside the test's process."""

from __future__ import annotations

import pytest

from tensorwright.runtime.commands.cli import main


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err
