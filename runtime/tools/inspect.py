"""Shows an engine for `tensorwright inspect`: its facts, passes, sizes and records, and this machine's kernels."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.file_names import REPORT
from tensorwright.engine_format.quantize_config import config_text
from tensorwright.engine_format.weight_formats import UNQUANTIZED, parse_spec
from tensorwright.errors import EngineError, reason
from tensorwright.json_text import read_json
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.executors import describe_engine
from tensorwright.runtime.requests.generation_defaults import named_defaults
from tensorwright.sizes import format_size

_SHOWN_APART = ("left_out", "expanded_kv_elements")
"""The facts of the model that `show` says in words of its own."""


def describe(engine: EngineDir) -> dict[str, Any]:
    """Returns config.json with the facts that the checks and this machine add, as plain data for --json."""
    return {
        "path": str(engine.path),
        **engine.config.to_dict(),
        "cache_dtype": engine.config.stored_cache_dtype,
        "target_facts": describe_engine(engine),
        "sampling_defaults": named_defaults(engine),
        "files": {name: entry.size for name, entry in engine.files.items()},
        "total_bytes": sum(entry.size for entry in engine.files.values()),
        "kernels": native.dispatch_choices() if engine.target == "cpu" else [],
        "weight_reads": native.weight_reads(engine) if engine.target == "cpu" else None,
        "tuning": _tuning(engine),
        "build_report": _build_report(engine),
    }


def _tuning(engine: EngineDir) -> dict[str, Any] | None:
    tuning = native.tuning_of(engine) if engine.target == "cpu" else None
    return None if tuning is None else asdict(tuning)


def quantize_config(engine: EngineDir) -> str:
    """Returns the formats of the engine's weights as a file for --quantize-config."""
    record = engine.config.quantization
    return config_text(UNQUANTIZED if record is None else record.spec)


def _build_report(engine: EngineDir) -> dict[str, Any] | None:
    """Reads build-report.json, or returns None if it is missing. The file is no part of the engine's identity, so no
    checksum covers it. Raises EngineError if it cannot be read."""
    path = engine.path / REPORT
    try:
        return read_json(path.read_bytes()) if path.exists() else None
    except (OSError, ValueError) as error:
        raise EngineError(
            f"{path}: cannot be read ({reason(error)}); remove it, the engine does not need it"
        ) from error


def show(facts: dict[str, Any], console: Console) -> None:
    """Prints the facts of `describe` as tables for people."""
    head = {
        "engine": facts["path"],
        "target": facts["target"],
        "dtype": facts["dtype"],
        "kv cache": facts["cache_dtype"],
    }
    if elements := facts["model"].get("expanded_kv_elements"):
        head["kv cache of a token"] = _latent_rows(facts, elements)
    if quantization := facts["source"].get("quantization"):
        head["quantized checkpoint"] = quantization
    built = {"built by": f"tensorwright {facts['tensorwright_version']}", "size": format_size(facts["total_bytes"])}
    _show_pairs(console, "Engine", head | built | facts["limits"] | _target_facts(facts["target_facts"]))
    _show_pairs(console, "Model", {name: value for name, value in facts["model"].items() if name not in _SHOWN_APART})
    if left_out := facts["model"].get("left_out"):
        _show_pairs(console, "Left out of the checkpoint", {name: _left_out(part) for name, part in left_out.items()})
    if heads := facts.get("heads"):
        _show_pairs(
            console, "Heads that propose tokens", {name: heads[name] for name in ("kind", "width", "vocab_size")}
        )
    _show_pairs(console, "Sampling", facts["sampling_defaults"] or {"defaults": "neutral, the model names none"})
    _show_pairs(console, "Passes", facts["passes"] or {"none": ""})
    if facts["weight_reads"] is not None:
        _show_pairs(console, "Weights read per decoded token", _weight_reads(facts["weight_reads"]))
    _show_pairs(console, "Files", {name: format_size(size) for name, size in facts["files"].items()})
    if facts["quantization"] is not None:
        _show_pairs(console, "Quantized weights", _quantization_pairs(facts["quantization"], facts["accuracy"]))
    accuracy = {name: value for name, value in (facts["accuracy"] or {}).items() if name != "output_errors"}
    _show_pairs(console, "Accuracy", accuracy or {"not measured": "build with --accuracy quick or full"})
    kernels = {}
    for choice in facts["kernels"]:
        refused = "; ".join(choice["refused"])
        kernels[choice["family"]] = choice["taken"] + (f"   (refused: {refused})" if refused else "")
    if tuning := facts["tuning"]:
        chosen = {"threads": tuning["threads"] or "the default"} | tuning["work_cut"]
        _show_pairs(console, "Tuned for this machine", chosen)
    if kernels:
        _show_pairs(console, "Kernels on this machine", kernels)


def _latent_rows(facts: dict[str, Any], elements: int) -> str:
    """Compares the cache with one that would hold K and V of every head."""
    limits = facts["limits"]
    taken = limits["kv_block_bytes"] / limits["block_size"]
    expanded = elements * ITEM_BYTES[facts["cache_dtype"]]
    return f"{taken:.0f} bytes, rows of latents; K and V of every head would take {expanded}"


def _left_out(part: dict[str, Any]) -> str:
    return f"{part['reason']}: {part['tensors']} tensors, {format_size(part['bytes'])}"


def _weight_reads(reads: dict[str, Any]) -> dict[str, Any]:
    """Returns the bytes of all weights that a token reads, and of those of experts. Equal layers share a row."""
    mixtures = [(m["experts"], m["taken"], m["bytes_of_one"]) for m in reads["mixtures"]]
    of_experts = sum(taken * size for _, taken, size in mixtures)
    pairs = {"bytes": format_size(reads["bytes"])}
    if mixtures:
        pairs["of experts"] = format_size(of_experts)
    for kind in dict.fromkeys(mixtures):
        experts, taken, size = kind
        layers = mixtures.count(kind)
        pairs[f"{layers} layer{'s' * (layers > 1)} of experts"] = (
            f"{taken} of {experts} experts, {format_size(size)} each"
        )
    return pairs


def _quantization_pairs(record: dict[str, Any], accuracy: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the rows of quantization: formats, bits, and the relative errors by kind of matrix, as the mean over the
    layers and the worst layer."""
    spec = parse_spec(record["spec"])
    pairs: dict[str, Any] = {"formats": spec.summary}
    if "formats" in record:
        pairs["format by layer"] = {name: _runs(row) for name, row in record["formats"].items()}
    if "choice" in record:
        pairs["chosen"] = _choice(record["choice"])
    if record["tied"]:
        pairs["tied"] = "embedding and lm_head are one matrix of the checkpoint, stored once for each format"
    if "calibration" in record:
        calibration = record["calibration"]
        pairs["calibration"] = f"{calibration['method']}, {calibration['tokens']} tokens of {calibration['text']}"
        if calibration["rounded_to_nearest"]:
            pairs["not calibrated"] = ", ".join(calibration["rounded_to_nearest"])
    pairs["bits per weight"] = {role: bits for role, bits in record["bits_per_weight"].items() if bits is not None}
    if "densities" in record:
        pairs["2:4 sparse"] = {name: f"{_spread(row)} kept" for name, row in record["densities"].items()}
    pairs["error of weights"] = {name: _spread(row) for name, row in record["weight_errors"].items()}
    if accuracy is not None:
        pairs["error of outputs"] = {name: _spread(row) for name, row in accuracy.get("output_errors", {}).items()}
    return pairs


def _choice(choice: dict[str, Any]) -> str:
    if choice["method"] == "mixed":
        total = sum(value or 0.0 for row in choice["divergences"].values() for value in row)
        return f"mixed, KL divergences of {total:.3g} in all over {choice['tokens']} tokens of {choice['text']}"
    decoded = choice["decoded"]
    return f"kept codes of the checkpoint; decoded: {', '.join(decoded)}" if decoded else "kept codes of the checkpoint"


def _runs(row: list[str | None]) -> str:
    """Describes one format per layer: each format with its layers, as in "int4:g32 0-3,7; int8:g64 4-6"."""
    runs: dict[str, list[list[int]]] = {}
    for layer, fmt in enumerate(row):
        if fmt is None:
            continue
        found = runs.setdefault(fmt, [])
        if found and found[-1][1] == layer - 1:
            found[-1][1] = layer
        else:
            found.append([layer, layer])
    if len(runs) == 1:
        return next(iter(runs))
    named = {fmt: ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found) for fmt, found in runs.items()}
    return "; ".join(f"{fmt} {layers}" for fmt, layers in named.items())


def _spread(row: list[float | None]) -> str:
    """Describes the mean and the largest of one value per layer. Some values may be absent."""
    values = [(value, layer) for layer, value in enumerate(row) if value is not None]
    if not values:
        return "not a number"
    mean, (worst, layer) = sum(value for value, _ in values) / len(values), max(values)
    return f"{mean:.3g}" if len(row) == 1 else f"{mean:.3g}, at most {worst:.3g} (layer {layer})"


def _target_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value if value != [] else "the library's defaults" for name, value in facts.items()}


def _show_pairs(console: Console, title: str, pairs: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _flat(pairs):
        table.add_row(Text(f"  {name}"), Text(value))  # rich would read a plain str as markup.
    console.print(table)
    console.print()


def _flat(pairs: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested tables into rows with dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in pairs.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", _text(value)))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
