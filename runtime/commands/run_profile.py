"""Profiles a run for `tensorwright run --profile`: measures the ceilings first, shows the steps' times at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.base.picture_file import check_picture
from tensorwright.runtime.tools.ceilings import Ceilings, measure_ceilings
from tensorwright.runtime.tools.profile import as_dict, summarise

WIDTH = 120  # the least width of the tables, also without a terminal or with a narrow one


@dataclass(frozen=True)
class Profiler:
    ceilings: Ceilings
    svg: Path | None

    def finish(self, llm: LLM, as_json: bool) -> None:
        """Stops measuring. It prints tables to stderr, or with --json one more object to stdout, and writes the
        picture."""
        llm.profile(False)
        phases = summarise(llm.get_profile(), self.ceilings)
        if as_json:
            click.echo(json.dumps({"profile": as_dict(phases, self.ceilings)}))
        else:
            from rich.console import Console

            from tensorwright.runtime.tools.profile_show import show_profile

            console = Console(stderr=True, highlight=False)
            console.width = max(console.width, WIDTH)
            show_profile(phases, self.ceilings, console)
        if self.svg is not None:
            from tensorwright.runtime.tools.profile_chart import draw_profile

            title = f"{llm.engine.path.resolve().name}: time by op"
            self.svg.write_text(draw_profile(phases, self.ceilings, title), encoding="utf-8")


def start_profiler(threads: int | None, svg: str | None) -> Profiler:
    """Measures the ceilings before the engine is loaded, so that nothing else runs meanwhile. Raises InvalidOptionError
    for impossible options."""
    path = None if svg is None else check_picture(svg, "--profile-svg")
    if threads is not None and threads < 1:
        raise InvalidOptionError(f"--threads must be positive, got {threads}")
    return Profiler(measure_ceilings(choose_threads(threads)), path)
