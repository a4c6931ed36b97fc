"""Shows an estimate: as tables for people, and as plain data for --json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorwright.insight.devices.device import Device, devices
from tensorwright.insight.estimate.costs import token_bytes
from tensorwright.insight.estimate.estimate import Estimate, Memory
from tensorwright.insight.estimate.roofline import StepTime
from tensorwright.options.estimate import MAX_BATCH
from tensorwright.sizes import format_size

BOUNDS = {"bytes": "memory", "operations": "arithmetic"}
"""What holds a step up, in words."""


def as_dict(found: Estimate) -> dict[str, Any]:
    """Returns the estimate as plain data. Sizes are bytes, times seconds, rates per second."""
    subject, costs = found.subject, found.subject.costs
    latency = None
    if found.latency is not None:
        latency = {
            "first_token": found.latency.first,
            "per_token": found.latency.token,
            "images": found.latency.images,
            "total": found.latency.total,
            "prefill": _step(found.latency.prefill),
            "decode": _step(found.latency.decode),
        }
    vision = None
    if subject.vision is not None:
        vision = asdict(subject.vision) | {"tokens": subject.vision.tokens, "parameters": subject.vision.parameters}
    return {
        "model": {
            "name": subject.name, "family": subject.family, "dtype": subject.dtype, "quantize": subject.formats,
            "kv_cache_dtype": subject.cache_dtype, "parameters": subject.parameters or None, "layers": subject.layers,
            "counted_by": "plan" if subject.planned else "formula", "weights_bytes": costs.weights_bytes,
            "kv_bytes_per_token": token_bytes(costs), "state_bytes": costs.state_bytes, "vision": vision,
            "left_out": {name: dict(part) for name, part in subject.other_parts.items()},
        },
        "device": {
            "name": found.device.name, "platform": found.device.platform.name, "memory": found.device.memory,
            "bandwidth": found.device.bandwidth, "peaks": dict(found.device.peaks), "source": found.device.source,
            "count": found.devices, "turning_point": found.turning_point,
        },
        "asked": {"batch": found.asked.batch, **asdict(found.lengths), "images": found.asked.images},
        "memory": asdict(found.memory) | {"total": found.memory.total, "fits": found.memory.fits},
        "largest_batch": found.largest_batch, "longest_context": found.longest_context, "latency": latency,
        "batches": [asdict(batch) for batch in found.batches], "compute_bound_from_batch": found.turns_at,
        "notes": list(found.notes), "cannot": list(found.cannot),
    }  # fmt: skip


def _step(time: StepTime) -> dict[str, Any]:
    return asdict(time) | {"bound": time.bound, "intensity": time.intensity}


def show(found: Estimate, console: Console) -> None:
    """Prints an estimate for people."""
    subject, lengths, memory = found.subject, found.lengths, found.memory
    _pairs(console, "Model", _model_rows(found))
    _pairs(console, f"Memory on {_devices(found)}", _memory_rows(found, memory))
    if found.latency is not None:
        prefill, decode = found.latency.prefill, found.latency.decode
        rate = lengths.prompt / max(prefill.seconds, 1e-12)
        rows = {
            "first token": f"{_time(found.latency.first)} for a prompt of {lengths.prompt} tokens "
            f"({rate:.0f} tokens/s), held up by {_bound(prefill)}",
            "each further token": f"{_time(found.latency.token)} at batch {found.asked.batch}, held up by "
            f"{_bound(decode)}",
            "whole answer": f"{_time(found.latency.total)} for {lengths.tokens} tokens",
        }
        if found.latency.images:
            rows["images"] = f"{_time(found.latency.images)} for {found.asked.images}, in the first token's time"
        point = f"arithmetic takes longer from {found.turning_point:.0f} operations per byte on"
        rows["turns"] = (
            f"decoding waits for memory at every batch up to 4096; {point}"
            if found.turns_at is None
            else f"decoding waits for arithmetic from batch {found.turns_at} on; {point}"
        )
        _pairs(console, "Time", rows)
        _show_batches(found, console)
    _list(console, "Not run here", found.cannot)
    _list(console, "What this rests on", found.notes)
    if not memory.fits:
        console.print(Text(f"{subject.name} does not fit: {format_size(memory.total - memory.available)} too much."))


def _model_rows(found: Estimate) -> dict[str, str]:
    subject, costs = found.subject, found.subject.costs
    rows = {"model": f"{subject.name} ({subject.family}, {subject.layers} layers)"}
    if subject.parameters:
        rows["parameters"] = f"{subject.parameters:,}"
    rows["weights"] = f"{format_size(costs.weights_bytes)}, {subject.dtype}, quantized: {subject.formats}"
    rows["kv cache"] = f"{format_size(token_bytes(costs))} per token in {subject.cache_dtype}"
    windows = sorted({group.window for group in costs.groups if group.window})
    if windows:
        rows["kv cache"] += f"; layers that look back {', '.join(map(str, windows))} positions keep no more"
    if costs.state_bytes:
        rows["states"] = f"{format_size(costs.state_bytes)} per sequence, at any length"
    if subject.vision is not None:
        tower = subject.vision
        rows["vision tower"] = (
            f"{tower.kind}: {tower.parameters:,} parameters, {tower.layers} layers of width {tower.width}; an image of "
            f"{tower.image_size} pixels is {tower.tokens} tokens inside, {tower.passed_on} in the prompt"
        )
    return rows


def _memory_rows(found: Estimate, memory: Memory) -> dict[str, str]:
    batch, context = found.asked.batch, found.lengths.context
    least = "at least " if found.largest_batch == MAX_BATCH else ""
    waste = f", of it {format_size(memory.waste)} in blocks that are not full" if memory.waste else ""
    return {
        "weights": format_size(memory.weights),
        "caches": f"{format_size(memory.caches)} for {batch} x {context} positions{waste}",
        "activations": format_size(memory.activations),
        "process": format_size(memory.process),
        "in all": f"{format_size(memory.total)} of {format_size(memory.available)}: "
        + ("fits" if memory.fits else "does not fit"),
        "largest batch": f"{least}{found.largest_batch} sequences of {context} positions",
        "longest context": f"{found.longest_context} positions of each of {batch} sequences",
    }


def _show_batches(found: Estimate, console: Console) -> None:
    table = Table(title="Decoding by batch", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("batch", "ms per token", "tokens/s", "held up by", "operations per byte", "memory"):
        table.add_column(name, justify="left" if name == "held up by" else "right")
    for row in found.batches:
        over = row.bytes > found.memory.available
        table.add_row(
            str(row.sequences), f"{row.token_seconds * 1e3:.2f}", f"{row.tokens_per_second:.0f}", BOUNDS[row.bound],
            f"{row.intensity:.1f}", format_size(row.bytes) + (" (does not fit)" if over else ""),
        )  # fmt: skip
    console.print(table)
    console.print()


def show_devices(console: Console) -> None:
    """Prints the table of devices."""
    table = Table(title="Devices", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("name", "for --device", "memory", "GB/s", "peaks in TOPS", "targets of this project"):
        table.add_column(name, justify="right" if name in ("memory", "GB/s") else "left", overflow="fold")
    for device in devices():
        table.add_row(
            device.name, ", ".join(device.aliases), format_size(device.memory), f"{device.bandwidth / 1e9:g}",
            _peaks(device), ", ".join(device.platform.targets) or "none",
        )  # fmt: skip
    console.print(table)


def devices_as_dict() -> list[dict[str, Any]]:
    """Returns the table of devices as plain data: bytes, and rates per second."""
    return [
        {
            "name": device.name, "aliases": list(device.aliases), "platform": device.platform.name,
            "targets": list(device.platform.targets), "memory": device.memory, "bandwidth": device.bandwidth,
            "peaks": dict(device.peaks), "link": device.link,
            "link_seconds": device.link_seconds, "source": device.source,
        }
        for device in devices()
    ]  # fmt: skip


def _peaks(device: Device) -> str:
    return ", ".join(f"{dtype} {peak / 1e12:g}" for dtype, peak in device.peaks.items())


def _devices(found: Estimate) -> str:
    return found.device.name if found.devices == 1 else f"each of {found.devices} x {found.device.name}"


def _bound(time: StepTime) -> str:
    return f"{BOUNDS[time.bound]} ({time.intensity:.1f} operations per byte)"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _pairs(console: Console, title: str, rows: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(f"  {name}"), Text(value))
    console.print(table)
    console.print()


def _list(console: Console, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        _pairs(console, title, {str(number): line for number, line in enumerate(lines, 1)})
