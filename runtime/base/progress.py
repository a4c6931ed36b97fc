"""Draws a progress bar on standard error if the caller asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(description: str, total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of steps. If not enabled, the function does nothing."""
    if not enabled:
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda steps: progress.advance(task, steps)
