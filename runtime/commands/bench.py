"""Runs `tensorwright bench`, which measures how long made-up requests take and how many pass per second.

Prompts are random token ids, and outputs have a fixed length. Percentiles are taken over all measured requests; those
of ITL over all gaps between tokens, those of rates over the repeats. Rooflines come from a separate last round.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import Door
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.base.percentiles import PERCENTILES, distribution
from tensorwright.runtime.commands.first_use import open_named
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.tools.bench_engine import BenchEngine, Load, Trace
from tensorwright.runtime.tools.ceilings import Ceilings, describe, measure_ceilings
from tensorwright.runtime.tools.profile import PhaseProfile, summarise


def bench_latency(engine: str, as_json: bool, options: dict[str, Any]) -> None:
    """Measures latencies. Batches run one after the other: a batch starts when the last request of the one before has
    ended."""
    opened, _lease = open_named(engine, Door.BENCH, options)
    load = Load(**options)
    load.check(opened)
    if load.requests % load.batch_size:
        raise InvalidOptionError(
            f"--requests must be a multiple of --batch-size {load.batch_size}, for batches run one after the other, "
            f"got {load.requests}"
        )
    ceilings = _ceilings(load)
    prompts = load.prompts(opened, load.requests)
    with BenchEngine(opened, load, load.batch_size) as bench:
        _warm_up(bench, load, opened)
        batches = range(0, load.requests, load.batch_size)
        rounds = [bench.run(prompts[first : first + load.batch_size]) for first in batches]
        _report("latency", opened, load, bench, rounds, ceilings, as_json)


def bench_throughput(engine: str, repeats: int, as_json: bool, options: dict[str, Any]) -> None:
    """Measures throughput. Each of `repeats` rounds submits all requests at once; a step runs --batch-size of them."""
    opened, _lease = open_named(engine, Door.BENCH, options)
    load = Load(**options)
    load.check(opened)
    if repeats < 1:
        raise InvalidOptionError(f"--repeats must be positive, got {repeats}")
    ceilings = _ceilings(load)
    prompts = load.prompts(opened, load.requests)
    with BenchEngine(opened, load, load.requests) as bench:
        _warm_up(bench, load, opened)
        rounds = [bench.run(prompts) for _ in range(repeats)]
        _report("throughput", opened, load, bench, rounds, ceilings, as_json)


def _ceilings(load: Load) -> Ceilings:
    """Measures the ceilings before the engine is loaded, so that nothing else runs meanwhile."""
    if load.threads is not None and load.threads < 1:
        raise InvalidOptionError(f"--threads must be positive, got {load.threads}")
    return measure_ceilings(choose_threads(load.threads))


def _warm_up(bench: BenchEngine, load: Load, engine: EngineDir) -> None:
    for part in range(load.warmup):
        bench.run(load.prompts(engine, min(load.batch_size, load.requests), part + 1))


def latencies(traces: list[Trace]) -> dict[str, list[float]]:
    """Returns the latencies in seconds, by name: to the first token (ttft), per token after it (tpot), between tokens
    (itl), and of whole requests (request)."""
    several = [trace for trace in traces if len(trace.tokens) > 1]
    return {
        "ttft": [trace.first for trace in traces],
        "tpot": [trace.per_token for trace in several],
        "itl": [gap for trace in several for gap in trace.gaps],
        "request": [trace.whole for trace in traces],
    }


def rates(rounds: list[list[Trace]], load: Load) -> dict[str, list[float]]:
    """Returns the rates per second of each round, measured from the first submission to the last token."""
    seconds = [max(t.tokens[-1] for t in traces) - min(t.submitted for t in traces) for traces in rounds]
    counts = [len(traces) for traces in rounds]
    return {
        "requests": [count / s for count, s in zip(counts, seconds, strict=True)],
        "input_tokens": [count * load.input_len / s for count, s in zip(counts, seconds, strict=True)],
        "output_tokens": [count * load.output_len / s for count, s in zip(counts, seconds, strict=True)],
    }


def _report(
    kind: str,
    engine: EngineDir,
    load: Load,
    bench: BenchEngine,
    rounds: list[list[Trace]],
    ceilings: Ceilings,
    as_json: bool,
) -> None:
    preemptions = bench.stats()["preemptions"]
    phases: list[PhaseProfile] = []  # Only target cpu measures its instructions.
    if engine.target == "cpu":
        measured = bench.profiled(load.prompts(engine, min(load.batch_size, load.requests)))
        phases = summarise(measured, ceilings)
    seconds = latencies([trace for traces in rounds for trace in traces])
    result: dict[str, Any] = {
        "benchmark": kind,
        "engine": {"path": str(engine.path), "dtype": engine.dtype, "build_options": engine.config.build_options},
        "load": asdict(load)
        | {name: getattr(bench.options, name) for name in ("max_num_tokens", "threads", "kv_cache_bytes")},
        "rounds": len(rounds),
        "seconds": {name: distribution(values) for name, values in seconds.items()},
        "per_second": {name: distribution(values) for name, values in rates(rounds, load).items()},
        "preemptions": preemptions,
        "speculation": bench.speculation(),
        "ceilings": asdict(ceilings),
        "phases": {phase.phase: _phase_as_dict(phase) for phase in phases},
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _show(result, load, ceilings)


def _phase_as_dict(phase: PhaseProfile) -> dict[str, float]:
    """Returns the figures of a phase's steps, without scheduling and sampling."""
    return {
        "steps": phase.steps,
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "tokens_per_second": phase.tokens / phase.seconds if phase.seconds else 0.0,
        "roofline": phase.roofline,
    }


def _show(result: dict[str, Any], load: Load, ceilings: Ceilings) -> None:
    measured = result["rounds"] * (load.requests if result["benchmark"] == "throughput" else load.batch_size)
    click.echo(
        f"{result['engine']['path']}: {measured} requests of {load.input_len} + {load.output_len} tokens, "
        f"batch size {load.batch_size}, {result['load']['threads']} threads"
    )
    click.echo(f"{'':20}{'mean':>12}" + "".join(f"{f'P{p}':>12}" for p in PERCENTILES))
    for name, values in result["seconds"].items():
        if values is not None:
            _show_row(f"{name.upper() if name != 'request' else name} ms", values, 1e3, 2)
    for name, values in result["per_second"].items():
        _show_row(f"{name.replace('_', ' ')}/s", values, 1, 2)
    for name, phase in result["phases"].items():
        click.echo(
            f"{name}: {phase['roofline']:.0%} of the roofline, {phase['tokens_per_second']:.1f} tokens/s in "
            f"{phase['steps']} steps"
        )
    if drafts := result["speculation"]:
        right, proposed = drafts["accepted_tokens"], drafts["draft_tokens"]
        click.echo(f"{right} of {proposed} proposed tokens were right, in {drafts['drafts']} proposals")
    if result["preemptions"]:
        click.echo(f"{result['preemptions']} preemptions: the KV cache was too small; raise --kv-cache-memory")
    click.echo(describe(ceilings))


def _show_row(name: str, values: dict[str, float], scale: float, digits: int) -> None:
    click.echo(f"{name:20}" + "".join(f"{value * scale:12.{digits}f}" for value in values.values()))
