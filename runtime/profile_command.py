"""`tensorwright run --profile`: measures the ceilings first, and at the end shows what the steps came to."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import click

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.ceilings import Ceilings, measure_ceilings
from tensorwright.runtime.host import default_threads
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.profile import as_dict, summarise

WIDTH = 120  # of the tables, also where there is no terminal, or a narrow one


@dataclass(frozen=True)
class Profiler:
    ceilings: Ceilings
    svg: Path | None

    def finish(self, llm: LLM, as_json: bool) -> None:
        """Stops measuring. Tables on stderr, or one more object on stdout; and the picture."""
        llm.profile(False)
        phases = summarise(llm.get_profile(), self.ceilings, llm.engine.dtype)
        if as_json:
            click.echo(json.dumps({"profile": as_dict(phases, self.ceilings)}))
        else:
            from rich.console import Console

            from tensorwright.runtime.profile_show import show_profile

            console = Console(stderr=True, highlight=False)
            console.width = max(console.width, WIDTH)
            show_profile(phases, self.ceilings, console)
        if self.svg is not None:
            from tensorwright.runtime.profile_chart import draw_profile

            title = f"{llm.engine.path.resolve().name}: time by op"
            self.svg.write_text(draw_profile(phases, self.ceilings, title), encoding="utf-8")


def start_profiler(threads: int | None, svg: str | None) -> Profiler:
    """Before the engine is loaded, so that nothing else runs meanwhile."""
    path = None if svg is None else _picture(svg)
    if threads is not None and threads < 1:
        raise InvalidOptionError(f"--threads must be positive, got {threads}")
    return Profiler(measure_ceilings(default_threads() if threads is None else threads), path)


def _picture(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() != ".svg":
        raise InvalidOptionError(f"--profile-svg draws SVG, so the file's name must end in .svg, got {name!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidOptionError(f"--profile-svg must name a file in a folder that exists, got {name!r}")
    return path
