"""Writes what an engine did when into a file in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

The format: "Trace Event Format" of the Chromium project. One process of the file is the engine, with a row each for
steps, draws, instructions, and every thread; another one has a row for each request. A request is also a flow, an arrow
from each of its steps to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorwright.errors import InvalidOptionError
from tensorwright.new_file import NewFile

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime

STEP, SHARE, SAMPLE, OP, TASKS, ARRIVED, ENDED, MICROBATCH = range(8)
"""The kinds of spans; runtime/core/base/timeline.h has the same numbers."""
ENGINE, REQUESTS = 1, 2
"""The processes of the file."""
STEPS, DRAWS, OPS, FIRST_THREAD, FIRST_STAGE = 0, 1, 2, 10, 2000
"""The rows of the engine's process."""
Json = dict[str, Any]


class Span(NamedTuple):
    """A span as `Engine.timeline` gives it. Times are nanoseconds."""

    kind: int
    begin: int
    end: int
    id: int
    track: int
    a: int
    b: int
    c: int
    d: int


class TraceFile:
    """The file of a trace."""

    def __init__(self, path: str | Path):
        """Raises InvalidOptionError if the file cannot be written, before an engine starts."""
        self._file = NewFile(path, "trace")

    def discard(self) -> None:
        """Removes what was begun."""
        self._file.discard()

    def write(self, engine: _runtime.Engine, name: str) -> None:
        """Writes the timeline of an engine whose loop has ended. name: what the engine is called. Raises OSError."""
        with self._file.write() as file:
            rows, dropped = engine.timeline()
            try:
                instructions = [(row["op"], row["name"]) for row in engine.profile_table()]
            except InvalidOptionError:  # an engine of another target measures no instructions
                instructions = []
            file.write('{"displayTimeUnit": "ms", "otherData": ')
            json.dump({"engine": name, "spans": len(rows), "spans left out, for the trace was full": dropped}, file)
            file.write(', "traceEvents": [\n')
            separator = ""
            for event in events_of((Span(*row) for row in rows.tolist()), instructions):
                file.write(separator + json.dumps(event))
                separator = ",\n"
            file.write("\n]}\n")


def events_of(spans: Iterable[Span], instructions: list[tuple[str, str]]) -> Iterator[Json]:
    """Yields the events of a trace. instructions: (op, module) of each instruction of the plan, by its number. Times
    count from the first span, in microseconds."""
    everything = sorted(spans, key=lambda span: span.begin)
    zero = everything[0].begin if everything else 0
    yield from _names(*(1 + max((s.track for s in everything if s.kind == k), default=-1) for k in (TASKS, MICROBATCH)))
    prompts: dict[int, int] = {}
    flowing: set[int] = set()
    last = {span.id: number for number, span in enumerate(everything) if span.kind == SHARE}
    ended = {span.id: number for number, span in enumerate(everything) if span.kind == ENDED}  # of the last completion
    for number, span in enumerate(everything):
        at, lasts = (span.begin - zero) / 1e3, (span.end - span.begin) / 1e3
        if span.kind == STEP:
            yield _slice(
                STEPS, f"step {span.id}", at, lasts, tokens=span.a, sequences=span.b, rows=span.c, waiting=span.d
            )
            yield _counter("batch", at, running=span.b, waiting=span.d)
            yield _counter("tokens of a step", at, tokens=span.a)
        elif span.kind == SAMPLE:
            yield _slice(DRAWS, "draw tokens", at, lasts, rows=span.a)
            yield _counter("free KV blocks", at + lasts, blocks=span.b)
        elif span.kind == OP:
            op, module = instructions[span.id] if span.id < len(instructions) else (f"instruction {span.id}", "")
            yield _slice(OPS, op, at, lasts, module=module, tokens=span.a)
        elif span.kind == TASKS:
            op = instructions[span.id][0] if span.id < len(instructions) else f"instruction {span.id}"
            yield _slice(FIRST_THREAD + span.track, op, at, lasts, tasks=span.a)
        elif span.kind == MICROBATCH:
            yield _slice(FIRST_STAGE + span.track, f"microbatch {span.id}", at, lasts, tokens=span.a)
        elif span.kind == ARRIVED:
            prompts[span.id] = span.a
            yield _request("b", f"request {span.id}", span.id, at, prompt_tokens=span.a)
        elif span.kind == ENDED:
            if ended[span.id] == number:
                yield _request("e", f"request {span.id}", span.id, at)
        else:
            name = "prefill" if span.b < prompts.get(span.id, 0) and span.a > 1 else "decode"
            yield _request("b", name, span.id, at, tokens=span.a, position=span.b, completion=span.track)
            yield _request("e", name, span.id, at + lasts)
            phase = "f" if last[span.id] == number else "t" if span.id in flowing else "s"
            if phase != "f" or span.id in flowing:
                flowing.add(span.id)
                yield _flow(phase, span.id, at)


def _names(threads: int, stages: int) -> Iterator[Json]:
    for process, name in ((ENGINE, "engine"), (REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    rows = {STEPS: "steps", DRAWS: "draws", OPS: "instructions"}
    rows |= {FIRST_THREAD + thread: f"thread {thread}" for thread in range(threads)}
    rows |= {FIRST_STAGE + stage: f"stage {stage}" for stage in range(stages)}
    for row, name in rows.items():
        yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": row, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": ENGINE, "tid": row, "args": {"sort_index": row}}


def _slice(row: int, name: str, at: float, lasts: float, **args: Any) -> Json:
    return {"ph": "X", "name": name, "pid": ENGINE, "tid": row, "ts": at, "dur": lasts, "args": args}


def _counter(name: str, at: float, **values: int) -> Json:
    return {"ph": "C", "name": name, "pid": ENGINE, "tid": 0, "ts": at, "args": values}


def _request(phase: str, name: str, request: int, at: float, **args: Any) -> Json:
    event = {"ph": phase, "cat": "request", "name": name, "id": request, "pid": REQUESTS, "tid": 0, "ts": at}
    return event | ({"args": args} if args else {})


def _flow(phase: str, request: int, at: float) -> Json:
    event = {"ph": phase, "cat": "flow", "name": f"request {request}", "id": request, "pid": ENGINE, "tid": STEPS}
    return event | {"ts": at} | ({"bp": "e"} if phase == "f" else {})
