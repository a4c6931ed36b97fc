"""Runs `tensorwright doctor`, which prints facts as tables or JSON and sets the exit code."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tensorwright.command import EXIT_FAILED
from tensorwright.runtime.tools.doctor.engine import examine_engine
from tensorwright.runtime.tools.doctor.machine import examine_machine, examine_nvidia
from tensorwright.runtime.tools.doctor.packages import examine_packages
from tensorwright.runtime.tools.doctor.report import add_report
from tensorwright.sizes import format_size


def examine(engine: str | None, as_json: bool, report: bool = False) -> None:
    """Prints the facts. report: also what add_report() finds, as JSON. Exits with 1 if an engine was given that cannot
    run here, or whose run failed."""
    facts: dict[str, Any] = {
        "machine": examine_machine(),
        "nvidia": examine_nvidia(),
        "packages": examine_packages(),
        "engine": None if engine is None else examine_engine(engine),
    }
    if report:
        facts = add_report(facts, engine)
    if as_json or report:
        click.echo(json.dumps(facts, indent=2))
    else:
        show(facts, Console(highlight=False, markup=False))
    if engine is not None and not (facts["engine"]["runs"] and "error" not in facts.get("run", {})):
        sys.exit(EXIT_FAILED)


def show(facts: dict[str, Any], console: Console) -> None:
    """Prints the facts as tables for people."""
    machine = facts["machine"]
    rows = {
        "tensorwright": f"{machine['tensorwright']}, Python {machine['python']}, {machine['system']}",
        "processor": f"{machine['processor']}: {' '.join(machine['instruction_sets']) or 'none of the sets we use'}",
        "threads, memory": f"{machine['threads']}, {format_size(machine['available_memory_bytes'])} available",
        "kernels": _kernels(machine["kernels"]),
        "NVIDIA": _nvidia(facts["nvidia"]),
    }
    for variable, fact in (("TENSORWRIGHT_ISA", "isa_override"), ("TENSORWRIGHT_CPU_WITHOUT", "cpu_without")):
        if machine[fact] is not None:
            rows[variable] = machine[fact]
    _table(console, "Machine", list(rows.items()))
    _table(console, "Packages", [_package(package) for package in facts["packages"]])
    if facts["engine"] is not None:
        _show_engine(facts["engine"], console)


def _kernels(kernels: dict[str, Any]) -> str:
    if "error" in kernels:
        return kernels["error"]
    return ", ".join(f"{family}: {taken}" for family, taken in kernels["taken"].items())


def _nvidia(nvidia: dict[str, Any]) -> str:
    if nvidia["error"] is not None:
        return nvidia["error"]
    gpus = ", ".join(f"{gpu['name']} (SM {gpu['sm']}, {format_size(gpu['memory_bytes'])})" for gpu in nvidia["gpus"])
    return f"driver {nvidia['driver'] or 'of unknown version'}, CUDA {nvidia['cuda']}: {gpus or 'no GPU'}"


def _package(package: dict[str, Any]) -> tuple[str, str]:
    state = package["version"] or "absent"
    if package["ok"]:
        return package["name"], state
    return package["name"], f"{state} (wanted {package['wanted']} for {package['use']}): {package['remedy']}"


def _show_engine(engine: dict[str, Any], console: Console) -> None:
    verdict = "runs here" if engine["runs"] else "cannot run here"
    rows = [("engine", f"{engine['path']}: {verdict}")]
    if engine["target"] is not None:
        rows.append(
            ("target", ", ".join([engine["target"], *(f"{k} {_words(v)}" for k, v in engine["facts"].items())]))
        )
    rows += [(problem["type"], problem["message"]) for problem in engine["problems"]]
    rows += [("warning", warning) for warning in engine["warnings"]]
    _table(console, "Engine", rows)


def _words(value: Any) -> str:
    return str(value) if not isinstance(value, list) else " ".join(map(str, value)) or "by the library's choice"


def _table(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(f"  {name}", text)
    console.print(table)
    console.print()
