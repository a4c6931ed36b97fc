"""Defines build-engine, which compiles a checkpoint to an engine (exit codes: tensorwright/command.py)."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import tensorwright
from tensorwright.builder.build import BuildResult, build
from tensorwright.builder.phases import process_start
from tensorwright.builder.process import terminate_as_interrupt
from tensorwright.click_command import SectionedCommand
from tensorwright.click_options import add_options, given
from tensorwright.command import run_command
from tensorwright.engine_format.engine_config import AccuracyRecord, QuantizationRecord
from tensorwright.engine_format.pooling import EMBED, GENERATE, PoolingRecord
from tensorwright.options.build import BuildFields, SourceFields
from tensorwright.options.declare import Door
from tensorwright.sizes import format_size

EPILOG = "Examples:  build-engine models/pico out/pico;  build-engine models/pico out/pico4 --quantize int4"


@click.command(cls=SectionedCommand, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.argument("out")
@add_options(Door.BUILD, BuildFields, SourceFields)
@click.option("--verify", is_flag=True, help="Check every pass against the graph before it, on real inputs.")
@click.option("--dump", help="Write the graph after each pass here.")
@click.option("--force", is_flag=True, help="Replace an engine that is already at OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else there.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the full traceback of a failure.")
@click.version_option(tensorwright.__version__, prog_name="build-engine")
def build_engine(
    model: str, out: str, verify: bool, dump: str | None, force: bool, as_json: bool, **options: Any
) -> None:
    """Compile MODEL, a checkpoint (a directory, a GGUF file or a hub name), into an engine directory OUT."""
    try:
        with terminate_as_interrupt(), progress_bar(Console(stderr=True)) as progress:
            result = build(
                model, out, verify=verify, dump=dump, overwrite=force, progress=progress, begin=process_start(),
                **given(options),
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; nothing half-built was left behind") from error
    if as_json:
        click.echo(json.dumps({"engine": out, "config": result.config, "report": result.report}))
    else:
        show(Console(), result)


@contextmanager
def progress_bar(console: Console) -> Iterator[Any]:
    """Gives the `progress` function for build(). It shows one line per phase if the console, which is
    stderr for both commands, is a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def advance(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                for earlier in tasks.values():
                    bar.update(earlier, total=1, completed=1)
                tasks[phase] = bar.add_task(phase, total=None)
            if total:
                bar.update(tasks[phase], total=total, completed=done)

        yield advance
        for task in tasks.values():
            bar.update(task, total=1, completed=1)


def show(console: Console, result: BuildResult) -> None:
    """Prints what was built, for a person."""
    config, report = result.engine_config, result.report
    table = Table(title=f"engine {result.path}", show_header=False)
    model = config.model
    layers = "?" if model.layers is None else model.layers
    table.add_row("model", f"{model.model_type}, {layers} layers, vocabulary {model.vocab_size}")
    table.add_row("task", task_line(config.pooling))
    table.add_row("target", f"{config.target}, {config.dtype}, up to {config.limits.max_seq_len} tokens")
    table.add_row("tokenizer", tokenizer_line(report["tokenizer"]))
    if config.quantization is not None:
        table.add_row("weights", quantization_line(config.quantization))
    table.add_row("size", format_size(report["engine_bytes"]))
    for name, line in tensorrt_lines(report):
        table.add_row(name, line)
    table.add_row("passes", ", ".join(f"{name} {count}" for name, count in config.passes.items() if count))
    table.add_row("accuracy", accuracy_line(config.accuracy))
    table.add_row("build", f"{report['total_seconds']:.1f} s{memory_note(report)}")
    console.print(table)


def task_line(record: PoolingRecord | None) -> str:
    """Returns what the engine answers with."""
    if record is None:
        return GENERATE
    if record.task != EMBED:
        return record.task
    length = ", of length 1" if record.normalize else ""
    named = f"; prompts {', '.join(record.prompts)}" if record.prompts else ""
    return f"{record.task}: pooling {record.pooling}{length}{named}"


def tokenizer_line(record: dict[str, Any]) -> str:
    """Returns where the tokenizer comes from. Standard error says why there is none, or why it differs."""
    if not record["source"]:
        return "none, so the engine takes and gives token ids only"
    line = " and ".join(record["source"])
    return f"{line}, {len(record['differences'])} texts otherwise than transformers" if record["differences"] else line


def memory_note(report: dict[str, Any]) -> str:
    peak = report["peak_memory_bytes"].get("anonymous")
    return "" if peak is None else f", at most {peak / 1e6:.0f} MB of memory beside mapped files"


def tensorrt_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the lines about the build of a TensorRT plan; none for other targets."""
    notes = report.get("tensorrt")
    if notes is None:
        return []
    peak = notes["peak_memory_bytes"].get("anonymous", 0)
    plan = f"{notes['plan_bytes'] / 1e6:.1f} MB, of it kernels of the plugins {notes['kernel_bytes'] / 1e6:.2f} MB"
    line = f"TensorRT {notes['library_version']}: {plan}; {notes['seconds']:.1f} s, at most {peak / 1e6:.0f} MB held"
    return [("plan", line)] + ([("library", notes["note"])] if notes["note"] is not None else [])


def quantization_line(record: QuantizationRecord) -> str:
    bits = {role: count for role, count in record.bits_per_weight.items() if count is not None}
    return f"{record.spec.summary}; bits per weight: {', '.join(f'{role} {count}' for role, count in bits.items())}"


def accuracy_line(record: AccuracyRecord | None) -> str:
    if record is None:
        return "not measured"
    if record.least_cosine is not None:
        return (
            f"over {record.tokens} tokens against {record.reference_dtype}: largest error of a hidden state "
            f"{record.largest_hidden_state_error}, least cosine {record.least_cosine}"
        )
    return (
        f"over {record.tokens} tokens against {record.reference_dtype}: largest logit error "
        f"{record.largest_logit_error}, KL {record.kl_divergence}, same top token {record.top1_agreement}, "
        f"perplexity {record.perplexity_reference} -> {record.perplexity_engine}{bits_per_byte(record)}"
    )


def bits_per_byte(record: AccuracyRecord) -> str:
    """Returns the end of the line about accuracy; nothing if no text was measured."""
    if record.bits_per_byte_engine is None:
        return ""
    return f", bits per byte {record.bits_per_byte_reference} -> {record.bits_per_byte_engine}"


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits. Without `arguments` it reads sys.argv, and ends the process at once."""
    try:
        run_command(build_engine, arguments, "build-engine")
    except SystemExit as end:
        if arguments is None and isinstance(end.code, int):
            leave_at_once(end.code)
        raise


def leave_at_once(code: int) -> None:
    """Ends the process without taking apart the million objects of an exporter, which takes Python seconds.

    Returns only if stdout cannot be written: the usual way out then reports that.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
