"""The starting points of the commands. Each prepares for Ctrl-C before it imports anything else."""

from __future__ import annotations

from tensorwright.interrupts import begin


def tensorwright() -> None:
    """Runs the command `tensorwright`."""
    begin()
    from tensorwright.runtime.commands.cli import main

    main()


def build_engine() -> None:
    """Runs the command `build-engine`."""
    begin()
    from tensorwright.builder.cli import main

    main()
